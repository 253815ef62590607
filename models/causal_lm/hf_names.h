// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace moegrad::models {

/// How a checkpoint stores the experts of one layer.
enum class HfExperts : std::uint8_t {
  kPerExpert,  // experts.{e}.gate_proj.weight, .up_proj.weight [I, H], .down_proj.weight [H, I]
  kFused,      // experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]: transformers 5
};

/// How a family's checkpoints name what a module of this library calls mlp.gate and
/// mlp.experts.{e}.{gate,up,down}_proj, where experts are stored one by one.
struct HfNames {
  std::string_view mixture = "mlp";
  std::array<std::string_view, 3> projections = {"gate_proj", "up_proj", "down_proj"};

  friend bool operator==(const HfNames&, const HfNames&) = default;
};

}  // namespace moegrad::models
