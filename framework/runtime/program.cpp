// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/program.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <mutex>
#include <streambuf>
#include <system_error>

#include "framework/runtime/error.h"
#include "framework/runtime/exception_message.h"
#include "framework/runtime/ignored_signals.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

// Runs before the static objects of the program are made. If there is no /dev/null, the root folder
// takes the number: then reads and writes fail, and no file gets the number.
__attribute__((constructor(101))) void open_closed_descriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) != -1 || errno != EBADF) continue;
    if (open("/dev/null", number == STDIN_FILENO ? O_RDONLY : O_WRONLY) < 0) {
      [[maybe_unused]] const int folder = open("/", O_RDONLY | O_DIRECTORY);
    }
  }
}

/// Passes characters on to another buffer, escaped by append_printable.
class PrintableBuffer final : public std::streambuf {
 public:
  explicit PrintableBuffer(std::ostream& stream) : stream_(stream), target_(stream.rdbuf(this)) {}
  /// From now on, what is written is dropped.
  void drop() { drops_ = true; }
  ~PrintableBuffer() override {
    write({}, /*more=*/false);
    stream_.rdbuf(target_);
  }
  PrintableBuffer(const PrintableBuffer&) = delete;
  PrintableBuffer& operator=(const PrintableBuffer&) = delete;

 protected:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    return write({text, static_cast<std::size_t>(count)}, /*more=*/true) ? count : 0;
  }
  int_type overflow(int_type character) override {
    const char c = traits_type::to_char_type(character);
    const bool any = !traits_type::eq_int_type(character, traits_type::eof());
    return !any || write({&c, 1}, true) ? traits_type::not_eof(character) : traits_type::eof();
  }
  int sync() override {
    const std::lock_guard lock(mutex_);
    return target_->pubsync();
  }

 private:
  // `more`: the next call may complete a character that is not whole yet.
  bool write(std::string_view text, bool more) {
    const std::lock_guard lock(mutex_);
    if (drops_) return true;
    begun_ += text;
    std::string shown;
    begun_.erase(0, append_printable(shown, begun_, more));
    return target_->sputn(shown.data(), std::ssize(shown)) == std::ssize(shown);
  }

  std::mutex mutex_;
  std::ostream& stream_;
  std::streambuf* target_;
  std::string begun_;
  bool drops_ = false;
};

// The streams, signals and exits of a process exist once, and so do these variables.
std::ostream raw_output(nullptr);  // standard output without escaping, while a program runs
std::string program_name;
std::atomic<int> noted_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

struct StopSignal {
  int number;
  const char* name;
  bool may_repeat = false;  // a second one does not end the program
};
constexpr std::array<StopSignal, 6> kStopSignals = {{{SIGINT, "SIGINT"},
                                                     {SIGTERM, "SIGTERM"},
                                                     {SIGHUP, "SIGHUP"},
                                                     {SIGUSR1, "SIGUSR1", true},
                                                     {SIGUSR2, "SIGUSR2", true},
                                                     {SIGXCPU, "SIGXCPU", true}}};
// The message for each signal. Made in advance, because a signal handler must not allocate.
std::array<std::string, kStopSignals.size()> stop_messages;

void note_signal(int signal) {
  const int reason = errno;
  std::size_t i = 0;
  while (kStopSignals[i].number != signal) ++i;
  int none = 0;
  if (noted_signal.compare_exchange_strong(none, signal)) {
    const auto& message = stop_messages[i];
    [[maybe_unused]] const auto written = write(STDERR_FILENO, message.data(), message.size());
  } else if (!kStopSignals[i].may_repeat) {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    raise(signal);  // is delivered when this handler has returned
  }
  errno = reason;
}

bool is_save_signal(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

// Notes kStopSignals[i], unless it is noted or ignored.
void note(std::size_t i) {
  const auto& [number, name, may_repeat] = kStopSignals[i];
  struct sigaction action = {};
  sigaction(number, nullptr, &action);
  if (action.sa_handler == SIG_IGN || action.sa_handler == note_signal) return;
  const std::string line_end = isatty(STDERR_FILENO) != 0 ? "\n" : "";  // of a progress bar
  stop_messages[i] = line_end + program_name + ": " + name + ": stopping after this step; " +
                     (may_repeat ? "SIGINT or SIGTERM ends" : "a second signal ends") +
                     " at once\n";
  action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

void say(const std::string& message) {
  std::string shown;
  append_printable(shown, program_name + ": " + message, /*more=*/false);
  shown += '\n';
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

// Called for an exception in a destructor, or on a thread that passes no exceptions on.
[[noreturn]] void end_at_once() {
  if (std::current_exception() != nullptr) {
    say(message_of_exception());
  } else {
    say("ended without an exception");
  }
  std::_Exit(1);
}

bool output_is_written() {
  std::cout.flush();
  return std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

}  // namespace

int run_program(const std::string& name, const std::function<int()>& body, int failure) {
  program_name = name;
  if (const auto started = mpi_environment()) {
    program_name += " (rank " + std::to_string(started->rank) + ")";
  }
  std::set_terminate(end_at_once);
  restore_ignored_signals();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file past its size limit is an error like a full disk
  raw_output.rdbuf(std::cout.rdbuf());
  int code = failure;
  {
    PrintableBuffer output(std::cout), errors(std::cerr);
    if (!is_first_process()) output.drop();
    try {
      code = body();
    } catch (const UsageError& error) {
      std::cout.flush();
      say(error.what());
      code = kWrongUsage;
    } catch (...) {
      std::cout.flush();
      say(message_of_exception());
    }
  }
  if (!output_is_written()) {
    say("standard output could not be written");
    if (code == 0) code = failure;
  }
  raw_output.rdbuf(nullptr);
  return code;
}

int run_program_once(const std::string& name, const std::function<int()>& body, int failure) {
  if (is_first_process()) return run_program(name, body, failure);
  const auto started = mpi_environment().value();
  program_name = name;
  say("does nothing, since rank 0 does the work and this is rank " + std::to_string(started.rank) +
      " of " + std::to_string(started.size) + ", as " + started.rank_variable + " and " +
      started.size_variable + " say; unset them where no launcher has started this program");
  return 0;
}

std::ostream& terminal_output() { return raw_output.rdbuf() == nullptr ? std::cout : raw_output; }

void note_stop_signals() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) note(i);
}

void note_save_signals() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    if (is_save_signal(kStopSignals[i].number)) note(i);
  }
}

int stop_signal() { return noted_signal; }

int exit_code_of_signal(int signal) { return is_save_signal(signal) ? 0 : 128 + signal; }

}  // namespace moegrad
