// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace moegrad {

/// What a block of memory is for; bytes are counted per tag.
enum class MemoryTag : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kCommunication,
  kCheckpoint
};
inline constexpr std::size_t kMemoryTags = 6;

std::string_view to_string(MemoryTag tag);

}  // namespace moegrad
