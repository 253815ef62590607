// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace moegrad::tools {

/// The kinds of golden folders (Note [Golden folders]).
enum class GoldenKind : std::uint8_t {
  kTraining,    // config.json and input.json
  kPretrained,  // config.json and expected.safetensors
  kBlock,       // config.json and block.safetensors
  kOptim,       // after_20_steps.safetensors or schedules.json
};

/// The kind of a folder, told by its files alone. ValueError for a folder of no kind, and for one
/// whose config.json is of an unknown model.
GoldenKind golden_kind(const std::filesystem::path& folder);

}  // namespace moegrad::tools
