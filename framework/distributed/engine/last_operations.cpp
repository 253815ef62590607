// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/last_operations.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

// A signal handler finds what it needs in variables of the process alone.
constexpr std::size_t kMostRanks = 4096;
std::array<std::atomic<const LastOperations*>, kMostRanks> installed = {};
static_assert(std::atomic<const LastOperations*>::is_always_lock_free);
struct sigaction previous_action = {};
std::mutex guards_mutex;
int guards = 0;

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

/// The text of a request, without an allocation.
class RequestText {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    (add_one(parts), ...);
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  void add_one(std::string_view text) {
    const auto size = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), size);
    size_ += size;
  }
  void add_one(std::int64_t number) {
    const auto result = std::to_chars(text_.data() + size_, text_.data() + text_.size(), number);
    if (result.ec == std::errc()) size_ = static_cast<std::size_t>(result.ptr - text_.data());
  }

  std::array<char, 240> text_;
  std::size_t size_ = 0;
};

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
  const bool is_handled =
      (previous_action.sa_flags & SA_SIGINFO) != 0 || previous_action.sa_handler != SIG_DFL;
  for (const auto& each : installed) {
    if (const auto* const operations = each.load()) operations->write_on_sigterm(is_handled);
  }
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

LastOperations::LastOperations(int rank, std::string file, bool is_process)
    : file_(std::move(file)), is_process_(is_process) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  title_ = "rank " + std::to_string(rank) + " on host " + host.data() + " (process " +
           std::to_string(getpid()) + ", ";
}

std::uint64_t LastOperations::add(std::string_view text) {
  const auto number = added_.load();
  auto& slot = slot_of(number);
  slot.number = kNone;
  Line line{};
  std::memcpy(line.data(), text.data(), std::min(text.size(), line.size() - 1));
  for (std::size_t i = 0; i < slot.text.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, line.data() + i * sizeof(word), sizeof(word));
    slot.text[i].store(word, std::memory_order_relaxed);
  }
  slot.state = "issued";
  slot.number = number;
  added_ = number + 1;
  return number;
}

std::uint64_t LastOperations::add(const CollectiveRequest& request) {
  RequestText text;
  text.add("group ", request.group);
  if (is_point_to_point(request.op)) {
    text.add(", rank ", request.from, " to ", request.to, ", tag ", request.tag);
  }
  if (request.queue != CollectiveQueue::kDefault) text.add(", queue ", to_string(request.queue));
  text.add("  sequence ", request.sequence, "  ", to_string(request.op));
  if (request.op == CollectiveOp::kBroadcast) text.add("(root ", request.root, ")");
  if (is_reduction(request.op)) text.add(request.reduce == ReduceOp::kSum ? "(sum)" : "(max)");
  if (request.op != CollectiveOp::kBarrier) {
    text.add(" of ");
    if (request.op != CollectiveOp::kAllToAll) text.add(request.count, " ");
    text.add(to_string(request.dtype));
  }
  text.add("  ", request.label);
  return add(text.view());
}

void LastOperations::set_state(std::uint64_t number, const char* state) {
  auto& slot = slot_of(number);
  if (slot.number == number) slot.state = state;
}

LastOperations::Line LastOperations::read(const Slot& slot) {
  Line line;
  for (std::size_t i = 0; i < slot.text.size(); ++i) {
    const auto word = slot.text[i].load(std::memory_order_relaxed);
    std::memcpy(line.data() + i * sizeof(word), &word, sizeof(word));
  }
  return line;
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
  if (oldest < added) text.add(read(slot_of(oldest)).data());
  text.add("\nlast operations of this rank, the oldest first:\n");
  if (added == 0) text.add("  no operation\n");
  for (auto number = first; number < added; ++number) {
    const auto& slot = slot_of(number);
    const auto copy = read(slot);
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

void LastOperations::write_on_sigterm(bool is_handled) const {
  Text text;
  describe("SIGTERM", text);
  const bool is_written = write_file(text);
  if (is_process_ || !is_handled || !is_written) text.write_to(STDERR_FILENO);
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
  struct stat status = {};
  const bool is_own = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);  // no device
  const bool is_written = text.write_to(descriptor);
  if (close(descriptor) == 0 && is_written) return true;
  const int reason = errno;
  if (is_own) unlink(file_.c_str());  // rather none than half of it
  errno = reason;
  return false;
}

LastOperations::SignalGuard::SignalGuard(LastOperations& operations) : operations_(operations) {
  const std::lock_guard lock(guards_mutex);
  const auto free =
      std::ranges::find_if(installed, [](const auto& each) { return each == nullptr; });
  if (free != installed.end()) *free = &operations;
  if (guards++ > 0) return;
  sigaction(SIGTERM, nullptr, &previous_action);
  if (previous_action.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_sigaction = handle_sigterm;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(SIGTERM, &action, nullptr);
}

LastOperations::SignalGuard::~SignalGuard() {
  const std::lock_guard lock(guards_mutex);
  const auto own =
      std::ranges::find_if(installed, [this](const auto& each) { return each == &operations_; });
  if (--guards == 0) {
    // The program's own second-signal rule may have changed the handler since.
    struct sigaction current = {};
    sigaction(SIGTERM, nullptr, &current);
    if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == handle_sigterm) {
      sigaction(SIGTERM, &previous_action, nullptr);
    }
  }
  if (own != installed.end()) *own = nullptr;
}

}  // namespace moegrad
