// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/check_launch_options.h"

#include "framework/runtime/error.h"

namespace moegrad {

void check_launch_options(std::string_view launch, const LaunchOptions& options) {
  // Within these bounds no time that is computed from them overflows.
  constexpr std::chrono::hours kDay(24);
  check<ValueError>(options.deadline.count() > 0 && options.deadline <= kDay, launch,
                    ": deadline must be in (0, 24 h], got ", options.deadline.count(), " ms");
  const auto exit_after = options.exit_after.value_or(options.deadline);
  check<ValueError>(exit_after.count() > 0 && exit_after <= kDay, launch,
                    ": exit_after must be in (0, 24 h], got ", exit_after.count(), " ms");
  const auto jitter = options.jitter.maximum;
  check<ValueError>(jitter.count() >= 0 && jitter <= kDay, launch,
                    ": jitter must be in [0, 24 h], got ", jitter.count(), " ns");
}

}  // namespace moegrad
