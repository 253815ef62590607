// SPDX-License-Identifier: Apache-2.0
#include "train/data/length_grouped_sampler.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"

namespace moegrad::training {
namespace {

// As in XTuner: a quarter of the steps of an epoch, at most 50, so that the order stays random.
constexpr std::int64_t kMegabatchesPerEpoch = 4;
constexpr std::int64_t kMaxStepsPerMegabatch = 50;

std::vector<std::int64_t> count_up(std::int64_t n) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Fisher-Yates, with draws from `first` on.
void shuffle(std::span<std::int64_t> values, const Random& random, std::int64_t first) {
  for (std::size_t left = values.size(); left > 1; --left) {
    const auto index = static_cast<std::uint64_t>(first) + left;
    const auto other = random.integer(index, static_cast<std::int64_t>(left));
    std::swap(values[left - 1], values[static_cast<std::size_t>(other)]);
  }
}

// Takes packs by falling work. Returns an order whose halves weigh about the same, as do the halves
// of the halves, and so on. Of every four packs, one half gets the first and the fourth, the other
// half the second and the third. Packs at the same position of two parts are neighbours in the
// sorted order, so ranks also keep step from one micro-batch to the next.
void spread(std::span<std::int64_t> group) {
  if (group.size() < 3) return;
  std::array<std::vector<std::int64_t>, 2> halves;
  for (std::size_t i = 0; i < group.size(); ++i) halves[(i + 1) / 2 % 2].push_back(group[i]);
  auto at = group.begin();
  for (auto& half : halves) {
    spread(half);
    at = std::ranges::copy(half, at).out;
  }
}

}  // namespace

LengthGroupedSampler::LengthGroupedSampler(std::vector<std::int64_t> work,
                                           std::int64_t micro_batches, std::uint64_t seed)
    : work_(std::move(work)), micro_batches_(micro_batches), seed_(seed) {
  check<ValueError>(!work_.empty(), "sampler: needs at least 1 pack, got 0");
  check<ValueError>(micro_batches >= 1, "sampler: needs at least 1 micro-batch per step, got ",
                    micro_batches);
}

std::vector<std::int64_t> LengthGroupedSampler::packs(std::int64_t first,
                                                      std::int64_t count) const {
  const std::lock_guard lock(mutex_);
  const auto n = std::ssize(work_);
  std::vector<std::int64_t> packs;
  for (auto i = first; i < first + count; ++i) {
    if (i / n != epoch_) order_ = order_of(epoch_ = i / n);
    packs.push_back(order_[static_cast<std::size_t>(i % n)]);
  }
  return packs;
}

std::vector<std::int64_t> LengthGroupedSampler::packs_of_step(std::int64_t step) const {
  return packs(step * micro_batches_, micro_batches_);
}

std::vector<std::int64_t> LengthGroupedSampler::order_of(std::int64_t epoch) const {
  const auto n = std::ssize(work_);
  auto order = count_up(n);
  shuffle(order, Random(seed_, "packs of an epoch"), epoch * n);
  // The first packs complete the step in which the previous epoch ended.
  const auto begun = epoch * n % micro_batches_;
  const auto head = std::min(n, begun == 0 ? 0 : micro_batches_ - begun);
  const auto whole = (n - head) / micro_batches_ * micro_batches_;
  group(std::span(order).subspan(static_cast<std::size_t>(head), static_cast<std::size_t>(whole)),
        epoch);
  return order;
}

void LengthGroupedSampler::group(std::span<std::int64_t> packs, std::int64_t epoch) const {
  const auto n = std::ssize(work_);
  const auto size = static_cast<std::size_t>(micro_batches_);
  const auto steps_per_megabatch =
      std::clamp<std::int64_t>(n / kMegabatchesPerEpoch / micro_batches_, 1, kMaxStepsPerMegabatch);
  const auto megabatch = static_cast<std::size_t>(steps_per_megabatch) * size;
  const auto work_of = [&](std::int64_t pack) { return work_[static_cast<std::size_t>(pack)]; };
  for (std::size_t at = 0; at < packs.size(); at += megabatch) {
    std::ranges::stable_sort(packs.subspan(at, std::min(megabatch, packs.size() - at)),
                             std::greater<>(), work_of);
  }
  auto groups = count_up(std::ssize(packs) / micro_batches_);
  shuffle(groups, Random(seed_, "steps of an epoch"), epoch * n);
  const std::vector<std::int64_t> sorted(packs.begin(), packs.end());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto from = std::span(sorted).subspan(static_cast<std::size_t>(groups[g]) * size, size);
    const auto step = packs.subspan(g * size, size);
    std::ranges::copy(from, step.begin());
    spread(step);
  }
}

}  // namespace moegrad::training
