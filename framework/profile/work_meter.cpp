// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/work_meter.h"

#include "framework/runtime/rank_context.h"

namespace moegrad {

std::string_view to_string(WorkClass what) {
  constexpr std::array<std::string_view, kWorkClasses> kNames = {"compute", "communication", "data",
                                                                 "checkpoint"};
  return kNames[static_cast<std::size_t>(what)];
}

WorkGuard::WorkGuard(WorkClass what)
    : what_(what), meter_(RankContext::current().work()), elsewhere_before_(meter_.elsewhere_) {}

WorkGuard::~WorkGuard() {
  const std::chrono::nanoseconds whole = std::chrono::steady_clock::now() - begin_;
  meter_.totals_->add(what_, whole - (meter_.elsewhere_ - elsewhere_before_));
  meter_.elsewhere_ = elsewhere_before_ + whole;
}

}  // namespace moegrad
