// SPDX-License-Identifier: Apache-2.0
#include "nn/initial_values.h"

#include <cmath>

#include "framework/runtime/error.h"
#include "nn/normal_quantile.h"

namespace moegrad::nn {
namespace {

void check_width(const char* what, double width) {
  check<ValueError>(std::isfinite(width) && width >= 0.0, what, " must be finite and >= 0, got ",
                    width);
}

double kaiming_gain(double negative_slope) {
  check<ValueError>(std::isfinite(negative_slope), "kaiming: negative_slope must be finite, got ",
                    negative_slope);
  return std::sqrt(2.0 / (1.0 + negative_slope * negative_slope));
}

}  // namespace

InitialValues InitialValues::normal(std::optional<double> std) {
  if (std) check_width("normal: std", *std);
  return InitialValues(Normal{std});
}

InitialValues InitialValues::constant(double value) {
  check<ValueError>(!std::isnan(value), "constant: value must be a number, got nan");
  return InitialValues(Constant{value});
}

InitialValues InitialValues::uniform(double low, double high) {
  check<ValueError>(std::isfinite(high - low) && low <= high,
                    "uniform: [low, high) must be an interval, got [", low, ", ", high, ")");
  return InitialValues(Uniform{low, high});
}

InitialValues InitialValues::trunc_normal(double mean, double std, double low, double high) {
  check<ValueError>(std::isfinite(std) && std > 0.0,
                    "trunc_normal: std must be finite and > 0, got ", std);
  check<ValueError>(low < high, "trunc_normal: low must be below high, got ", low, " and ", high);
  check<ValueError>(normal_mass((low - mean) / std, (high - mean) / std) > 0.0,
                    "trunc_normal: [low, high] must be within 37 std of the mean ", mean, ", got [",
                    low, ", ", high, "] and std ", std);
  return InitialValues(TruncNormal{mean, std, low, high});
}

InitialValues InitialValues::kaiming_uniform(double negative_slope, Fan fan) {
  return InitialValues(Scaled{kaiming_gain(negative_slope), fan, /*normal=*/false});
}

InitialValues InitialValues::kaiming_normal(double negative_slope, Fan fan) {
  return InitialValues(Scaled{kaiming_gain(negative_slope), fan, /*normal=*/true});
}

InitialValues InitialValues::xavier_uniform(double gain) {
  check_width("xavier_uniform: gain", gain);
  return InitialValues(Scaled{gain, Fan::kMean, /*normal=*/false});
}

InitialValues InitialValues::xavier_normal(double gain) {
  check_width("xavier_normal: gain", gain);
  return InitialValues(Scaled{gain, Fan::kMean, /*normal=*/true});
}

}  // namespace moegrad::nn
