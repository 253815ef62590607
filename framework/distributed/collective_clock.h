// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace moegrad {

using CollectiveClock = std::chrono::steady_clock;

}  // namespace moegrad
