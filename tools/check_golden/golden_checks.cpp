// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "framework/runtime/error.h"
#include "tools/check_golden/golden_compare.h"
#include "tools/check_golden/golden_limits.h"
#include "tools/check_golden/golden_routing.h"

namespace moegrad::tools {
namespace {

using Checks = std::vector<GoldenCheck>;

void append(Checks& checks, Checks more) {
  for (auto& check : more) checks.push_back(std::move(check));
}

// --- losses

double off(double value, const std::optional<double>& expected) {
  return expected ? std::abs(value - *expected) : 0.0;
}

/// One check for each kind of loss in the folder, over every file that contains it.
Checks check_losses(const std::vector<GoldenLosses>& expected, const GoldenComputed& computed,
                    double limit, double aux_limit, const std::string& prefix) {
  Worst loss, ce, aux;
  bool has_loss = false, has_ce = false, has_aux = false;
  for (const auto& losses : expected) {
    has_loss = has_loss || losses.loss;
    has_ce = has_ce || losses.ce;
    has_aux = has_aux || losses.aux;
    loss.include(off(computed.loss, losses.loss));
    ce.include(off(computed.ce, losses.ce));
    aux.include(off(computed.aux, losses.aux));
  }
  Checks checks;
  if (has_loss) checks.push_back(loss.check(prefix + "loss", limit));
  if (has_ce) checks.push_back(ce.check(prefix + "cross-entropy", limit));
  if (has_aux) checks.push_back(aux.check(prefix + "auxiliary loss", aux_limit));
  return checks;
}

// --- gradients

double l2_of_all(const NamedTensors& tensors) {
  double squares = 0;
  for (const auto& [name, tensor] : tensors) squares += std::pow(stats_of(tensor).l2, 2);
  return std::sqrt(squares);
}

/// A difference relative to the expected norm of its tensor. If the expected value is zero, the
/// value must be zero.
double relative(double difference, double expected) {
  if (expected == 0.0 && difference == 0.0) return 0.0;
  if (expected == 0.0) return std::numeric_limits<double>::infinity();
  return difference / expected;
}

/// The same for a gradient, of which `all` is the norm of all tensors.
double relative_gradient(double difference, double expected, double all,
                         const GoldenLimits& limits) {
  if (expected == 0.0) return relative(difference, expected);
  if (expected < kWithoutDigits * all) return difference / all;
  return difference / std::max(expected, limits.least_share * all);
}

Checks check_gradients(const NamedTensors& expected, const NamedTensors& gradients,
                       const GoldenLimits& limits, const std::string& prefix) {
  const double all = l2_of_all(gradients);
  Checks checks;
  for (const bool rounded : {false, true}) {
    Worst worst;
    std::size_t count = 0;
    for (const auto& [name, tensor] : expected) {
      if ((tensor.dtype() == Dtype::kFloat32) != rounded) continue;
      const auto norms = norms_of(golden_tensor(gradients, name), tensor);
      worst.include(relative_gradient(norms.difference, norms.expected, all, limits), name);
      ++count;
    }
    const auto quantity = prefix + (rounded ? "gradients, rounded to fp32" : "gradients");
    if (count == 0) continue;
    checks.push_back(
        worst.check(counted(quantity, count), rounded ? limits.rounded : limits.gradient));
  }
  return checks;
}

/// The four figures of each tensor, and the norm of all.
Checks check_figures(const NamedStats& expected, const std::optional<double>& l2,
                     const NamedTensors& gradients, const GoldenLimits& limits,
                     const std::string& prefix) {
  const double all = l2_of_all(gradients);
  Checks checks;
  if (!expected.empty()) {
    Worst worst;
    for (const auto& [name, stats] : expected) {
      const Tensor& gradient = golden_tensor(gradients, name);
      for (const double difference : differences(stats_of(gradient), stats, gradient.numel())) {
        worst.include(relative_gradient(difference, stats.l2, all, limits), name);
      }
    }
    checks.push_back(worst.check(counted(prefix + " figures", expected.size()), limits.gradient));
  }
  if (l2) checks.push_back({prefix + " norm", relative(std::abs(all - *l2), *l2), limits.gradient});
  return checks;
}

// --- a row

Checks check_row(const GoldenCase& golden, const GoldenValues& expected,
                 const GoldenComputed& computed, Dtype dtype, const std::string& prefix) {
  const bool pretrained = golden.kind == GoldenKind::kPretrained;
  const auto& limits = pretrained ? pretrained_limits_of(dtype) : limits_of(dtype);
  Checks checks;
  if (expected.logits.defined()) {
    Worst logits;
    logits.include(max_difference(computed.logits, expected.logits));
    checks.push_back(logits.check(prefix + "logits", limits.logits));
  }
  const auto hidden_states = std::ranges::count_if(expected.hidden, &Tensor::defined);
  if (hidden_states > 0) {
    Worst hidden;
    for (std::size_t i = 0; i < expected.hidden.size(); ++i) {
      if (!expected.hidden[i].defined()) continue;
      hidden.include(max_difference(computed.hidden[i], expected.hidden[i]),
                     "hidden state " + std::to_string(i));
    }
    const auto quantity =
        counted(prefix + "hidden states", static_cast<std::size_t>(hidden_states));
    checks.push_back(hidden.check(quantity, limits.logits));
  }
  append(checks, check_routing(golden, expected, computed, dtype, prefix));
  append(checks, check_losses(expected.losses, computed, limits.loss, limits.loss, prefix));
  append(checks, check_gradients(expected.gradients, computed.gradients, limits, prefix));
  append(checks, check_figures(expected.gradient_stats, expected.gradient_l2, computed.gradients,
                               limits, prefix + "gradients'"));
  append(checks, check_figures(expected.ce_gradient_stats, expected.ce_gradient_l2,
                               computed.ce_gradients, limits, prefix + "cross-entropy gradients'"));
  return checks;
}

// --- generation

Checks check_generations(const std::vector<GoldenGeneration>& expected,
                         const std::vector<GoldenGeneration>& generated) {
  if (expected.empty()) return {};
  Worst others, margin;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto prompt = "prompt of " + std::to_string(expected[i].prompt.size());
    double other = 0;
    for (std::size_t t = 0; t < expected[i].tokens.size(); ++t) {
      other += generated[i].tokens[t] == expected[i].tokens[t] ? 0 : 1;
    }
    others.include(other, prompt);
    margin.include(std::abs(generated[i].smallest_margin - expected[i].smallest_margin), prompt);
  }
  return {others.check("greedy generation, other tokens", 0),
          margin.check("greedy generation, smallest margin", kGenerationMargin)};
}

// --- training

/// max over steps of |value - expected|, relative to `unit`, or else to |expected|.
Worst over_steps(const std::vector<double>& values, const std::vector<double>& expected,
                 const std::optional<double>& unit) {
  Worst worst;
  for (std::size_t step = 0; step < values.size(); ++step) {
    const double difference = std::abs(values[step] - expected[step]);
    worst.include(relative(difference, unit.value_or(std::abs(expected[step]))),
                  "step " + std::to_string(step));
  }
  return worst;
}

GoldenTrainingLimits limits_of(const GoldenVariant& variant, Dtype dtype) {
  if (dtype == Dtype::kFloat64) return kTrainingFloat64;
  const auto& spec = variant.optimizer;
  auto limits = spec.clip && spec.cosine ? kClippedFloat32 : kConstantFloat32;
  const auto allow = [&](double& limit, double other) {
    check<ValueError>(other <= kMostTimesWider * limit, variant.name,
                      ": another float32 run must be within ", kMostTimesWider * limit,
                      " of the float64 run, got ", other);
    limit = std::max(limit, std::min(kTimesOtherRun * other, kMostTimesWider * limit));
  };
  const auto& other = variant.other_run;
  allow(limits.loss, over_steps(other.loss, variant.loss, 1.0).error());
  allow(limits.grad_norm, over_steps(other.grad_norm, variant.grad_norm, {}).error());
  limits.aux = limits.loss;
  allow(limits.aux, other.aux_error);
  allow(limits.parameters, other.parameters_error);
  allow(limits.parameter, other.parameter_error);
  return limits;
}

/// Checks the parameters after training that the folder stores, rounded to float32.
Checks check_parameters(const GoldenVariant& variant, const NamedTensors& parameters,
                        const GoldenTrainingLimits& limits, Dtype dtype,
                        const std::string& prefix) {
  if (variant.final_parameters.empty()) return {};
  double difference = 0, expected = 0;
  Worst each;
  for (const auto& [name, tensor] : variant.final_parameters) {
    const Tensor& parameter = golden_tensor(parameters, name);
    const auto norms = norms_of(parameter, tensor);
    difference = std::hypot(difference, norms.difference);
    expected = std::hypot(expected, norms.expected);
    each.include(dtype == Dtype::kFloat32 ? max_difference(parameter, tensor)
                                          : relative(norms.difference, norms.expected),
                 name);
  }
  const auto quantity = counted(prefix + "parameters", variant.final_parameters.size());
  Checks checks = {each.check(quantity, limits.parameter)};
  if (dtype == Dtype::kFloat32) {
    checks.push_back(
        {prefix + "parameters together", relative(difference, expected), limits.parameters});
  }
  return checks;
}

/// Checks the four figures of each parameter after training. The differences of each figure over
/// all parameters together are no more than the parameters' own differences.
Checks check_parameter_figures(const GoldenVariant& variant, const NamedTensors& parameters,
                               const GoldenTrainingLimits& limits, const std::string& prefix) {
  if (variant.final_stats.empty()) return {};
  std::array<double, 4> off_by{};
  double expected = 0;
  for (const auto& [name, stats] : variant.final_stats) {
    const Tensor& parameter = golden_tensor(parameters, name);
    const auto own = differences(stats_of(parameter), stats, parameter.numel());
    for (std::size_t i = 0; i < own.size(); ++i) off_by[i] = std::hypot(off_by[i], own[i]);
    expected = std::hypot(expected, stats.l2);
  }
  Worst worst;
  for (const double difference : off_by) worst.include(relative(difference, expected));
  return {worst.check(counted(prefix + "parameters' figures", variant.final_stats.size()),
                      limits.parameters)};
}

Checks check_variant(const GoldenVariant& variant, const GoldenTrained& trained, Dtype dtype) {
  const auto limits = limits_of(variant, dtype);
  const auto prefix = variant.name + ": ";
  const auto lr = over_steps(trained.lr, variant.lr, variant.optimizer.lr);
  const auto loss = over_steps(trained.loss, variant.loss, 1.0);
  const auto ce = over_steps(trained.ce, variant.ce, 1.0);
  const auto aux = over_steps(trained.aux, variant.aux, 1.0);
  const auto grad_norm = over_steps(trained.grad_norm, variant.grad_norm, {});
  Checks checks = {lr.check(prefix + "learning rate", kLearningRate),
                   loss.check(prefix + "loss", limits.loss),
                   ce.check(prefix + "cross-entropy", limits.loss),
                   aux.check(prefix + "auxiliary loss", limits.aux),
                   grad_norm.check(prefix + "gradient norm", limits.grad_norm)};
  const auto after = prefix + "afterwards, ";
  append(checks,
         check_losses({variant.final_eval}, trained.final_eval, limits.loss, limits.aux, after));
  const auto& parameters = trained.parameters;
  append(checks, check_parameters(variant, parameters, limits, dtype, after));
  append(checks, check_parameter_figures(variant, parameters, limits, after));
  return checks;
}

}  // namespace

std::vector<GoldenCheck> check_golden(const GoldenCase& golden, const GoldenResults& results,
                                      Dtype dtype) {
  Checks checks = check_row(golden, golden.expected, results.batch, dtype, "");
  // The float32 run of the reference may have made other choices where they are rounding.
  const bool has_float32 = golden.kind == GoldenKind::kPretrained && dtype == Dtype::kFloat32;
  if (has_float32 && !results.batch.replayed) {
    append(checks, check_row(golden, golden.expected_float32, results.batch, dtype, "fp32: "));
  }
  append(checks, check_generations(golden.generations, results.generations));
  if (golden.packed) {
    append(checks, check_row(golden, golden.expected_packed, *results.packed, dtype, "packed: "));
  }
  for (std::size_t i = 0; i < golden.alone.size(); ++i) {
    if (golden.alone[i].num_targets == 0) continue;  // without a loss
    append(checks, check_row(golden, golden.expected_alone[i], results.alone[i], dtype,
                             "packed sequence " + std::to_string(i + 1) + " alone: "));
  }
  for (std::size_t i = 0; i < golden.variants.size(); ++i) {
    append(checks, check_variant(golden.variants[i], results.variants[i], dtype));
  }
  return checks;
}

}  // namespace moegrad::tools
