// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/last_operations.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad::mpi {
namespace {

// A signal handler finds what it needs in variables of the process alone.
std::atomic<const LastOperations*> installed = nullptr;
static_assert(std::atomic<const LastOperations*>::is_always_lock_free);
struct sigaction previous_action = {};

}  // namespace

// Collects text and writes it in one call, so that the lines of several ranks do not mix.
class LastOperations::Text {
 public:
  void add(std::string_view text) {
    const auto size = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), size);
    size_ += size;
  }
  bool write_to(int descriptor) const {
    for (std::size_t begin = 0; begin < size_;) {
      const auto written = ::write(descriptor, text_.data() + begin, size_ - begin);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      begin += static_cast<std::size_t>(written);
    }
    return true;
  }

 private:
  std::array<char, 12'288> text_;  // kLength lines and a title
  std::size_t size_ = 0;
};

namespace {

/// The time in UTC, as "2026-11-24T09:30:00Z". gmtime_r() is no function for a signal handler.
std::array<char, 21> now() {
  using namespace std::chrono;
  const auto time = floor<seconds>(system_clock::now());
  const auto midnight = floor<days>(time);
  const year_month_day date{midnight};
  const hh_mm_ss clock{time - midnight};
  std::array<char, 21> text = {"....-..-..T..:..:..Z"};
  const auto put = [&](std::size_t begin, std::size_t digits, std::int64_t value) {
    for (auto i = begin + digits; i > begin; value /= 10) {
      text[--i] = static_cast<char>('0' + value % 10);
    }
  };
  put(0, 4, static_cast<int>(date.year()));
  put(5, 2, static_cast<unsigned>(date.month()));
  put(8, 2, static_cast<unsigned>(date.day()));
  put(11, 2, clock.hours().count());
  put(14, 2, clock.minutes().count());
  put(17, 2, clock.seconds().count());
  return text;
}

void handle_sigterm(int signal, siginfo_t* info, void* context) {
  const int reason = errno;
  if (const auto* const operations = installed.load()) operations->write("SIGTERM");
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL) {
    previous_action.sa_handler(signal);
  } else {
    constexpr timespec kLastWait{.tv_sec = 0, .tv_nsec = 500'000'000};  // Note [SIGTERM]
    nanosleep(&kLastWait, nullptr);
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    raise(signal);  // is delivered when this handler has returned
  }
  errno = reason;
}

}  // namespace

LastOperations::LastOperations(int rank, std::string file) : file_(std::move(file)) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  title_ = "rank " + std::to_string(rank) + " on host " + host.data() + " (process " +
           std::to_string(getpid()) + ", ";
}

LastOperations::~LastOperations() = default;

std::uint64_t LastOperations::add(std::string_view text) {
  const auto number = added_.load();
  auto& slot = slot_of(number);
  slot.number = kNone;
  const auto size = std::min(text.size(), slot.text.size() - 1);
  std::memcpy(slot.text.data(), text.data(), size);
  slot.text[size] = '\0';
  slot.state = "issued";
  slot.number = number;
  added_ = number + 1;
  return number;
}

void LastOperations::set_state(std::uint64_t number, const char* state) {
  auto& slot = slot_of(number);
  if (slot.number == number) slot.state = state;
}

void LastOperations::describe(const char* reason, Text& text) const {
  constexpr std::size_t kLongestReason = 1024;
  text.add(title_);
  text.add(now().data());
  text.add("): ");
  text.add(std::string_view(reason).substr(0, kLongestReason));
  const auto added = added_.load();
  const auto first = added > kLength ? added - kLength : 0;
  const auto is_under_way = [&](std::uint64_t number) {
    const auto& slot = slot_of(number);
    return slot.number == number && std::string_view(slot.state.load()) != "done";
  };
  auto oldest = first;
  while (oldest < added && !is_under_way(oldest)) ++oldest;
  text.add(oldest < added ? " in " : " outside collectives");
  if (oldest < added) text.add(slot_of(oldest).text.data());
  text.add("\nlast operations of this rank, the oldest first:\n");
  if (added == 0) text.add("  no operation\n");
  for (auto number = first; number < added; ++number) {
    const auto& slot = slot_of(number);
    const auto copy = slot.text;
    const std::string_view state = slot.state.load();
    if (slot.number != number) continue;  // a thread is writing it
    constexpr std::string_view kBlanks = "          ";
    text.add("  ");
    text.add(state);
    text.add(kBlanks.substr(std::min(state.size(), kBlanks.size() - 1)));
    text.add(copy.data());
    text.add("\n");
  }
}

void LastOperations::write(const char* reason) const {
  // Other threads go on working: both places get the same moment. The file comes first, as nobody
  // may read what is written to standard error.
  Text text;
  describe(reason, text);
  write_file(text);
  text.write_to(STDERR_FILENO);
}

bool LastOperations::write_file(const char* reason) const {
  Text text;
  describe(reason, text);
  return write_file(text);
}

bool LastOperations::write_file(const Text& text) const {
  if (file_.empty()) return true;
  // Somebody else may have put a link or a pipe into a shared folder.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int descriptor = open(file_.c_str(), kFlags, 0644);
  if (descriptor < 0) return false;
  const bool is_written = text.write_to(descriptor);
  return close(descriptor) == 0 && is_written;
}

LastOperations::SignalGuard::SignalGuard(LastOperations& operations) {
  sigaction(SIGTERM, nullptr, &previous_action);
  if (previous_action.sa_handler == SIG_IGN) return;
  installed = &operations;
  struct sigaction action = {};
  action.sa_sigaction = handle_sigterm;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(SIGTERM, &action, nullptr);
  installed_ = true;
}

LastOperations::SignalGuard::~SignalGuard() {
  if (!installed_) return;
  // The program's own second-signal rule may have changed the handler since.
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == handle_sigterm) {
    sigaction(SIGTERM, &previous_action, nullptr);
  }
  installed = nullptr;
}

}  // namespace moegrad::mpi
