// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace moegrad {

// Note [Programs]
// What all programs have in common, so that none has a main() of its own design:
//
//   - Standard input, output and error that are closed are opened on /dev/null before any other
//     file, which would get such a number, and log lines would be written into it.
//   - Every exception becomes one message `<program>: <what>` and an exit code, also on threads
//     that nobody waits for. An exhausted memory or number of threads is said with what was asked
//     for.
//   - What is printed is escaped (append_printable): names and samples may hold control characters.
//   - A program whose output could not be written says so and fails. SIGPIPE is ignored, so that a
//     reader who leaves does not end a training run.
//   - A training run notes signals and ends after a step (note_stop_signals).

/// What main() returns: runs `body` as Note [Programs] says. `failure` is the exit code for an
/// exception and for output that could not be written.
int run_program(const std::string& name, const std::function<int()>& body, int failure = 1);

/// Standard output where nothing is escaped, for what moves a terminal's cursor.
std::ostream& terminal_output();

/// From now on the first SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU is noted, and said on standard
/// error, instead of ending the program; a second one ends it. Signals that the caller of the
/// program ignores, as nohup does, stay ignored.
void note_stop_signals();

/// The signal noted so far; 0 if none.
int stop_signal();

/// Exit code of a program that ended early because of a signal, as shells have it.
int exit_code_of_signal(int signal);

}  // namespace moegrad
