// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/swap_space.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "framework/autograd/swapped.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

// What comes back into a storage.
class Arrival final : public PendingBytes {
 public:
  explicit Arrival(CopyQueue::CopyPtr copy) : copy_(std::move(copy)) {}
  ~Arrival() override { copy_->await_end(); }
  void wait() override { copy_->wait(); }

 private:
  CopyQueue::CopyPtr copy_;
};

void check_options(const SwapOptions& options) {
  check<ValueError>(options.window > 0, "swap space: window must be above 0, got ", options.window);
  check<ValueError>(options.host_budget >= 0, "swap space: host_budget must not be negative, got ",
                    options.host_budget);
  check<ValueError>(options.link.latency.count() >= 0,
                    "swap space: latency must not be negative, got ", options.link.latency.count(),
                    " ns");
  check<ValueError>(options.link.bytes_per_second >= 0,
                    "swap space: bytes_per_second must not be negative, got ",
                    options.link.bytes_per_second);
  check<ValueError>(options.next != nullptr,
                    "swap space: next must be a function, got an empty one");
}

}  // namespace

std::ptrdiff_t in_tape_order(const SwappedTensor& used,
                             std::span<const SwappedTensor* const> away) {
  const auto later = std::ranges::lower_bound(away, used.number, {}, &SwappedTensor::number);
  return later - away.begin() - 1;
}

Swapped::~Swapped() { space->forget(*this); }

Tensor Swapped::output(std::size_t /*i*/) { return space->bring_back(*this); }

std::shared_ptr<SwapSpace> SwapSpace::make(SwapOptions options) {
  check_options(options);
  return std::shared_ptr<SwapSpace>(new SwapSpace(std::move(options)));
}

SwapSpace::SwapSpace(SwapOptions options)
    : options_(std::move(options)),
      queue_(std::make_unique<CopyQueue>(options_.link, options_.jitter)) {
  host_->set_budget(options_.host_budget);
}

SwapSpace::~SwapSpace() = default;

std::shared_ptr<Swapped> SwapSpace::send(const Tensor& tensor, const std::string& path) {
  auto& storage = tensor.storage();
  const auto bytes = storage.bytes();
  const std::lock_guard lock(mutex_);
  while (!leaving_.empty() && bytes_in_window_ + bytes > options_.window) {
    let_go(*leaving_.front());
  }
  std::byte* host = nullptr;
  try {
    host = host_->allocate(bytes, MemoryTag::kActivations);
  } catch (const MemoryBudgetError& error) {
    throw MemoryBudgetError(std::string("swap space, host's arena: ") + error.what(), error.live());
  }
  const Shape whole = {bytes / size_of(tensor.dtype())};
  auto swapped = std::make_shared<Swapped>(
      shared_from_this(),
      SwappedTensor{.number = saved_++,
                    .path = path,
                    .micro_batch = ThreadState::current().micro_batch.number,
                    .bytes = bytes},
      Tensor::as_strided(tensor, whole, {1}, 0), host);
  leaving_.push_back(swapped.get());
  bytes_in_window_ += bytes;
  swapped->out =
      queue_->begin([&storage] { return storage.data(); }, host, bytes, CopyPriority::kOut);
  storage.read_by(swapped->out);
  RankContext::current().counters().swapped_out_bytes += bytes;
  return swapped;
}

// Its bytes have gone, and it holds them here no longer.
void SwapSpace::let_go(Swapped& swapped) {
  swapped.out->wait();
  std::erase(leaving_, &swapped);
  bytes_in_window_ -= swapped.info.bytes;
  swapped.here = Tensor();
  swapped.state = Swapped::State::kAway;
  const auto behind = std::ranges::lower_bound(
      away_, swapped.info.number, {}, [](const Swapped* each) { return each->info.number; });
  away_.insert(behind, &swapped);
}

Tensor SwapSpace::bring_back(Swapped& swapped) {
  using State = Swapped::State;
  const std::lock_guard lock(mutex_);
  if (swapped.state == State::kBack) {
    check(swapped.here.storage().version() == swapped.version_back, "swap space: a tensor of ",
          swapped.info.bytes, " bytes saved for backward in '", swapped.info.path,
          "' has been modified in place since");
    return swapped.here;
  }
  // What has been edited since comes back as it was saved.
  if (swapped.state == State::kLeaving && swapped.here.storage().version() != swapped.version) {
    let_go(swapped);
  }
  if (swapped.state == State::kAway) {
    fetch(swapped, CopyPriority::kNow);
    std::erase(away_, &swapped);
  } else {
    std::erase(swapped.state == State::kLeaving ? leaving_ : coming_, &swapped);
    bytes_in_window_ -= swapped.info.bytes;
    if (swapped.state == State::kLeaving) queue_->take_back(swapped.out);
  }
  swapped.state = State::kBack;
  swapped.version_back = swapped.here.storage().version();
  fetch_ahead(swapped.info);
  return swapped.here;
}

void SwapSpace::fetch(Swapped& swapped, CopyPriority priority) {
  const MemoryTagGuard tag(MemoryTag::kActivations);
  Tensor here = Tensor::empty({swapped.info.bytes / size_of(swapped.dtype)}, swapped.dtype);
  swapped.back = queue_->begin([from = swapped.host] { return from; }, here.storage().data(),
                               swapped.info.bytes, priority);
  here.storage().fill_by(std::make_unique<Arrival>(swapped.back));
  swapped.here = std::move(here);
  RankContext::current().counters().swapped_in_bytes += swapped.info.bytes;
}

void SwapSpace::fetch_ahead(const SwappedTensor& used) {
  while (!away_.empty()) {
    std::vector<const SwappedTensor*> away;
    for (const auto* each : away_) away.push_back(&each->info);
    const auto next = options_.next(coming_.empty() ? used : coming_.back()->info, away);
    if (next == -1) return;
    check<ValueError>(next >= 0 && next < std::ssize(away),
                      "swap space: next must return -1 or a position in [0, ", away.size(),
                      "), got ", next);
    auto& swapped = *away_[static_cast<std::size_t>(next)];
    const auto bytes = swapped.info.bytes;
    // What forward has saved since is wanted later.
    while (bytes_in_window_ + bytes > options_.window && !leaving_.empty() &&
           leaving_.front()->info.number > used.number) {
      let_go(*leaving_.front());
    }
    if (bytes_in_window_ > 0 && bytes_in_window_ + bytes > options_.window) return;
    try {
      fetch(swapped, CopyPriority::kAhead);
    } catch (const MemoryBudgetError&) {
      return;  // it comes when it is asked for
    }
    std::erase(away_, &swapped);
    swapped.state = Swapped::State::kComing;
    coming_.push_back(&swapped);
    bytes_in_window_ += bytes;
  }
}

void SwapSpace::forget(Swapped& swapped) noexcept {
  using State = Swapped::State;
  const std::lock_guard lock(mutex_);
  std::erase(leaving_, &swapped);
  std::erase(away_, &swapped);
  std::erase(coming_, &swapped);
  if (swapped.state == State::kLeaving || swapped.state == State::kComing) {
    bytes_in_window_ -= swapped.info.bytes;
  }
  for (const auto& copy : {swapped.out, swapped.back}) {
    if (copy != nullptr && !queue_->take_back(copy)) copy->await_end();
  }
  host_->deallocate(swapped.host, swapped.info.bytes, MemoryTag::kActivations);
}

}  // namespace moegrad
