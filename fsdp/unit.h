// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/param_group.h"

namespace moegrad::fsdp {

/// What may be switched on a State between steps; the setters of State say what each one does.
struct Switches {
  std::optional<bool> reshard_after_forward = std::nullopt;  // at first the policy's
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;
  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;
  bool reduce_scatter_unused_params = false;
  std::size_t max_reduce_inputs = 1;
  bool is_last_backward = true;  // of the root
};

/// The parameters that one fully_shard call has taken, by mesh, and how they are handled.
struct Unit {
  std::vector<std::unique_ptr<ParamGroup>> groups;
  Switches switches;

  /// Gathers, and waits.
  void unshard(GatheredFor use = GatheredFor::kForward) const {
    issue_unshard(use);
    wait_for_unshard();
  }
  void issue_unshard(GatheredFor use = GatheredFor::kForward) const {
    for (const auto& group : groups) group->unshard(Event::kUnshard, use);
  }
  void wait_for_unshard() const {
    for (const auto& group : groups) group->wait_for_unshard();
  }
  void reshard() const {
    for (const auto& group : groups) group->reshard();
  }
};

}  // namespace moegrad::fsdp
