// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/dtype.h"

namespace moegrad::tools {

/// The largest allowed difference of a value from the reference's value in float64.
///
/// The limits for float32 are ten times the largest difference between the reference's own float32
/// and float64 runs, over several models and two float32 runs of each. The limits for float64 only
/// allow for another order of sums. If a limit follows from another one, its comment says how.
struct GoldenLimits {
  double logits;           // largest |difference|; also for hidden states, which differed by less
  double router_logits;    // also for top-k weights: a softmax changes by at most half as much
  double router_margin;    // twice router_logits: it is a difference of two of them
  double loss;             // total, cross-entropy and auxiliary
  double gradient;         // ||difference|| / ||expected|| of each tensor
  double rounded;          // the same, if the expected values are rounded to float32
  double least_share = 0;  // a gradient is compared relative to at least this part of all gradients
};

inline constexpr GoldenLimits kLimitsFloat32 = {.logits = 4e-5,
                                                .router_logits = 2e-5,
                                                .router_margin = 4e-5,
                                                .loss = 1e-5,
                                                .gradient = 3e-5,
                                                .rounded = 3e-5};
inline constexpr GoldenLimits kLimitsFloat64 = {.logits = 1e-12,
                                                .router_logits = 1e-12,
                                                .router_margin = 2e-12,
                                                .loss = 1e-13,
                                                .gradient = 1e-11,
                                                .rounded = 6e-8};  // a rounding is up to 2^-24

inline const GoldenLimits& limits_of(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? kLimitsFloat32 : kLimitsFloat64;
}

/// The same for folders of the kind kPretrained. Those of float32 are again ten times the largest
/// difference between the reference's two runs, over five models: 7.3e-7, 4.8e-7 and 1.4e-6. The
/// reference's run in float64 is only good to float32's precision: this model's logits differ from
/// it by up to 4.1e-7, its loss (which is stored in float32) by 3.3e-7, its gradients by 3.6e-7.
/// Small gradients are differences of large terms, so their rounding errors are not relative to
/// their own norms: hence least_share.
inline constexpr GoldenLimits kPretrainedFloat32 = {.logits = 7e-6,
                                                    .router_logits = 7e-6,
                                                    .router_margin = 1.4e-5,
                                                    .loss = 5e-6,
                                                    .gradient = 1.5e-5,
                                                    .rounded = 1.5e-5,
                                                    .least_share = 1e-2};
inline constexpr GoldenLimits kPretrainedFloat64 = {.logits = 1e-6,
                                                    .router_logits = 1e-6,
                                                    .router_margin = 2e-6,
                                                    .loss = 1e-6,
                                                    .gradient = 1e-6,
                                                    .rounded = 1e-6,
                                                    .least_share = 1e-2};

inline const GoldenLimits& pretrained_limits_of(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? kPretrainedFloat32 : kPretrainedFloat64;
}

/// The smallest margin of a generation is a difference of two logits of a float32 run.
inline constexpr double kGenerationMargin = 2 * kPretrainedFloat32.logits;

/// If a token's k-th and next router logits (Note [Choices that are rounding]) are closer than
/// this, its choice of experts in float32 is a matter of rounding.
inline constexpr double kFloat32RouterMargin = 2e-5;

/// If the norm of a tensor's gradient in the reference is below this part of the norm of all
/// gradients, the gradient is only rounding error, without a correct digit: the exact gradient is
/// zero. (One case is the router's gradient of the cross-entropy if one expert has all of a token's
/// weight.) It is compared relative to all gradients.
inline constexpr double kWithoutDigits = 1e-14;

/// Limits of training, over all steps.
struct GoldenTrainingLimits {
  double loss;        // total and cross-entropy, also after training
  double aux;         // auxiliary loss; the reference's differed no more than the total
  double grad_norm;   // relative
  double parameters;  // at the end: ||difference|| / ||expected|| over all parameters together
  double parameter;   // at the end, each as the folder stores it, rounded to float32: in float32
                      // the largest |difference|, in float64 ||difference|| / ||expected||
};

/// Rounding errors grow less if the norm is clipped and the learning rate falls to zero. After 30
/// steps the parameters of the reference's float32 runs differed from those of its float64 runs by
///
///     at a constant rate    4.2e-6 relative, at most 8.0e-5
///     clipped and falling   8.5e-7 relative, at most 3.0e-5
inline constexpr GoldenTrainingLimits kConstantFloat32 = {
    .loss = 1e-4, .aux = 1e-4, .grad_norm = 2e-4, .parameters = 4.2e-5, .parameter = 8e-4};
inline constexpr GoldenTrainingLimits kClippedFloat32 = {
    .loss = 2e-5, .aux = 2e-5, .grad_norm = 3e-5, .parameters = 8.5e-6, .parameter = 3e-4};
inline constexpr GoldenTrainingLimits kTrainingFloat64 = {
    .loss = 1e-10, .aux = 1e-10, .grad_norm = 1e-10, .parameters = 1e-10, .parameter = 6e-8};

/// The folder may contain the difference between another float32 run of the reference and its
/// float64 run. Ten times that difference is allowed if it is more than the limits above, but at
/// most ten times these limits.
inline constexpr double kTimesOtherRun = 10;
inline constexpr double kMostTimesWider = 10;

/// Relative to the peak: a few roundings of a float64.
inline constexpr double kLearningRate = 1e-15;

}  // namespace moegrad::tools
