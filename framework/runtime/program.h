// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "framework/runtime/error.h"

namespace moegrad {

/// Options of a program that cannot be, or not together.
class UsageError : public ValueError {
 public:
  using ValueError::ValueError;
};

/// The exit code for wrong usage.
inline constexpr int kWrongUsage = 2;

// Note [Programs]
// All programs share this main():
//
//   - If standard input, output or error is closed, it is opened on /dev/null before any other
//     file. Otherwise another file would get its number, and log lines would be written into it.
//   - Every exception becomes one message `<program>: <what>` and an exit code, also on threads
//     that no thread waits for. If memory or threads run out, the message says what was requested.
//   - Everything that is printed is escaped (append_printable): names and samples may contain
//     control characters.
//   - A program whose output could not be written says so and fails. SIGPIPE is ignored, so that a
//     reader who leaves does not end a training run.
//   - A training run notes signals and ends after a step (note_stop_signals).
//   - Where mpirun has started the program as several processes, standard output is that of rank 0.
//     Messages are those of all, and each names its rank.

/// Runs `body` as Note [Programs] says, and returns the exit code for main(): kWrongUsage for a
/// UsageError, `failure` for any other exception and for output that could not be written.
int run_program(const std::string& name, const std::function<int()>& body, int failure = 1);

/// The same for a program without ranks: where mpirun has started it as several processes, the
/// first one alone runs `body`. The others say so on standard error and return 0, since mpirun
/// would end the first one otherwise.
int run_program_once(const std::string& name, const std::function<int()>& body, int failure = 1);

/// Standard output without escaping, for text that moves a terminal's cursor.
std::ostream& terminal_output();

/// From now on the first SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU does not end the
/// program: it is noted, and reported on standard error. A second SIGINT, SIGTERM or SIGHUP ends
/// the program. The other three do not: the system sends SIGXCPU every second, and a launcher may
/// send SIGUSR1 to ranks to which mpirun passes it on as well. Signals that the program's caller
/// ignores, as nohup does, stay ignored.
void note_stop_signals();

/// The same for SIGUSR1 and SIGUSR2 alone. mpirun passes them on from the start, and they would end
/// a program that has nothing to save yet with another exit code than 0. To be called first.
void note_save_signals();

/// The signal noted so far; 0 if none.
int stop_signal();

/// The exit code of a program that has ended early, in good order, because of a signal: 0 for
/// SIGUSR1 and SIGUSR2, which ask for nothing else; for the others the code that shells give to
/// them.
int exit_code_of_signal(int signal);

}  // namespace moegrad
