// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace moegrad::nn {

/// What init_weights writes into a parameter. The layer declares it when it registers the
/// parameter:
///
///     register_parameter("bias", bias_, InitialValues::zeros());
///
/// The default declares nothing (Note [Who initialises a parameter]).
class InitialValues {
 public:
  enum class Kind : std::uint8_t { kUndeclared, kNormal, kOnes, kZeros };

  InitialValues() = default;
  /// normal(0, std). Without `std`, the one that init_weights is called with.
  static InitialValues normal(std::optional<double> std = {}) {
    return InitialValues(Kind::kNormal, std);
  }
  static InitialValues ones() { return InitialValues(Kind::kOnes); }
  static InitialValues zeros() { return InitialValues(Kind::kZeros); }

  Kind kind() const { return kind_; }
  std::optional<double> std() const { return std_; }

 private:
  explicit InitialValues(Kind kind, std::optional<double> std = {}) : kind_(kind), std_(std) {}

  Kind kind_ = Kind::kUndeclared;
  std::optional<double> std_;
};

}  // namespace moegrad::nn
