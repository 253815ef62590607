// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "framework/distributed/process_group.h"

namespace moegrad {

/// A name that no other group of this rank has, for operators that are told the name of a group, as
/// torch_npu's hcom. The same each time for the same group. It may differ between ranks. ValueError
/// for null. Called by the rank's compute thread.
std::string comm_handle(const std::shared_ptr<ProcessGroup>& group);

/// The group of that name. ValueError, which begins with `op`, if this rank has none, or no longer.
std::shared_ptr<ProcessGroup> group_of_handle(std::string_view op, const std::string& handle);

}  // namespace moegrad
