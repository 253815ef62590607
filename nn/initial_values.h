// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

namespace moegrad::nn {

/// Which features of a weight the width of its initial values is measured by: those that it reads
/// (fan_in), those that it writes (fan_out), or the mean of both.
enum class Fan : std::uint8_t { kIn, kOut, kMean };

/// What init_weights writes into a parameter. The layer declares it when it registers the
/// parameter:
///
///     register_parameter("bias", bias_, InitialValues::zeros());
///
/// The default declares nothing (Note [Who initialises a parameter]). Names and defaults are those
/// of torch.nn.init, but for the std of normal(). ValueError for a width that is negative or not
/// finite, for a constant that is NaN, and for an empty interval.
class InitialValues {
 public:
  /// normal(0, std). Without `std`, the one that init_weights is called with.
  struct Normal {
    std::optional<double> std;
  };
  struct Constant {
    double value;
  };
  /// In [low, high).
  struct Uniform {
    double low, high;
  };
  /// normal(mean, std) within [low, high].
  struct TruncNormal {
    double mean, std, low, high;
  };
  /// Normal or uniform around 0, with variance gain^2 / fan.
  struct Scaled {
    double gain;
    Fan fan;
    bool normal;
  };
  using Rule = std::variant<std::monostate, Normal, Constant, Uniform, TruncNormal, Scaled>;

  InitialValues() = default;
  static InitialValues normal(std::optional<double> std = {});
  static InitialValues ones() { return constant(1.0); }
  static InitialValues zeros() { return constant(0.0); }
  static InitialValues constant(double value);
  static InitialValues uniform(double low = 0.0, double high = 1.0);
  static InitialValues trunc_normal(double mean = 0.0, double std = 1.0, double low = -2.0,
                                    double high = 2.0);
  /// For a weight before leaky_relu with this slope, 0 for relu: gain^2 = 2 / (1 + slope^2).
  ///
  /// Reference: He et al., 2015, https://arxiv.org/abs/1502.01852
  static InitialValues kaiming_uniform(double negative_slope = 0.0, Fan fan = Fan::kIn);
  static InitialValues kaiming_normal(double negative_slope = 0.0, Fan fan = Fan::kIn);
  /// By the mean of fan_in and fan_out.
  ///
  /// Reference: Glorot and Bengio, 2010, https://proceedings.mlr.press/v9/glorot10a.html
  static InitialValues xavier_uniform(double gain = 1.0);
  static InitialValues xavier_normal(double gain = 1.0);

  bool is_declared() const { return !std::holds_alternative<std::monostate>(rule_); }
  const Rule& rule() const { return rule_; }

 private:
  explicit InitialValues(Rule rule) : rule_(rule) {}

  Rule rule_;
};

}  // namespace moegrad::nn
