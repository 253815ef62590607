// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/distributed/launch_options.h"

namespace moegrad {

/// ValueError `<launch>: <option> must be in ...` where a time is out of its range.
void check_launch_options(std::string_view launch, const LaunchOptions& options);

}  // namespace moegrad
