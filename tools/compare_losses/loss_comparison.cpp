// SPDX-License-Identifier: Apache-2.0
#include "tools/compare_losses/loss_comparison.h"

#include <bit>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "framework/runtime/error.h"

namespace moegrad::tools {
namespace {

constexpr std::string_view kValidation = "validation";

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool equal(double a, double b, const ComparisonOptions& options) {
  if (same_bits(a, b)) return true;
  // Written so that a NaN on one side counts as a difference.
  return !options.bitwise && std::abs(a - b) <= options.atol + options.rtol * std::abs(a);
}

void record(LargestDifference& largest, double value, std::int64_t step) {
  if (value > largest.value) largest = {.value = value, .step = step};
}

void record(QuantityComparison& quantity, double a, double b, std::int64_t step) {
  if (same_bits(a, b)) return;
  const double difference = std::abs(a - b);
  if (std::isnan(difference)) {
    record(quantity.absolute, std::numeric_limits<double>::infinity(), step);
    record(quantity.relative, std::numeric_limits<double>::infinity(), step);
    return;
  }
  record(quantity.absolute, difference, step);
  if (difference > 0) record(quantity.relative, difference / std::abs(a), step);
}

template <class Values>
std::vector<std::int64_t> steps_of_one(const std::map<std::int64_t, Values>& one,
                                       const std::map<std::int64_t, Values>& other) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, values] : one) {
    if (!other.contains(step)) steps.push_back(step);
  }
  return steps;
}

// Compares a value that both runs have. The first that differs is the one of the earliest step.
void compare(LossComparison& comparison, QuantityComparison& quantity, DifferingValue value,
             const ComparisonOptions& options) {
  record(quantity, value.a, value.b, value.step);
  if (equal(value.a, value.b, options)) return;
  ++quantity.differing;
  if (!comparison.first || value.step < comparison.first->step) comparison.first = value;
}

// The first few steps as "3, 7 to 9, 12".
std::string ranges(const std::vector<std::int64_t>& steps) {
  constexpr int kMost = 8;
  std::ostringstream out;
  std::size_t begin = 0;
  for (int count = 0; begin < steps.size() && count < kMost; ++count) {
    auto end = begin + 1;
    while (end < steps.size() && steps[end] == steps[end - 1] + 1) ++end;
    out << (count == 0 ? "" : ", ") << steps[begin];
    if (end - begin > 1) out << " to " << steps[end - 1];
    begin = end;
  }
  if (begin < steps.size()) out << " and " << steps.size() - begin << " more";
  return out.str();
}

void write_run(std::ostream& out, char name, const MetricsRun& run) {
  out << name << ": " << run.path << ", " << run.steps.size() << " steps from "
      << run.steps.begin()->first << " to " << run.steps.rbegin()->first;
  if (run.bytes_left_out > 0) {
    out << "; its last line is cut short, " << run.bytes_left_out << " bytes left out";
  }
  out << '\n';
}

void write_largest(std::ostream& out, const LargestDifference& largest) {
  out << std::scientific << std::setprecision(2) << std::setw(13) << largest.value << std::setw(9)
      << (largest.step ? std::to_string(*largest.step) : "-");
}

void write_quantity(std::ostream& out, std::string_view name, const QuantityComparison& quantity) {
  out << std::left << std::setw(11) << name << std::right << std::setw(9) << quantity.differing
      << "  ";
  write_largest(out, quantity.absolute);
  out << "      ";
  write_largest(out, quantity.relative);
  out << '\n';
}

void write_steps(std::ostream& out, std::string_view what, const std::vector<std::int64_t>& steps) {
  if (!steps.empty()) out << what << ": " << ranges(steps) << '\n';
}

}  // namespace

LossComparison compare_losses(const MetricsRun& a, const MetricsRun& b,
                              const ComparisonOptions& options) {
  LossComparison comparison = {
      .only_a = steps_of_one(a.steps, b.steps),
      .only_b = steps_of_one(b.steps, a.steps),
      .validation_only_a = steps_of_one(a.validation_losses, b.validation_losses),
      .validation_only_b = steps_of_one(b.validation_losses, a.validation_losses)};
  for (const auto& [step, values] : a.steps) {
    const auto other = b.steps.find(step);
    if (other == b.steps.end()) continue;
    ++comparison.steps;
    for (std::size_t i = 0; i < values.size(); ++i) {
      compare(
          comparison, comparison.quantities[i],
          {.step = step, .quantity = kComparedQuantities[i], .a = values[i], .b = other->second[i]},
          options);
    }
  }
  for (const auto& [step, loss] : a.validation_losses) {
    const auto other = b.validation_losses.find(step);
    if (other == b.validation_losses.end()) continue;
    compare(comparison, comparison.validation,
            {.step = step, .quantity = kValidation, .a = loss, .b = other->second}, options);
  }
  check<ValueError>(!options.common || comparison.steps > 0, "metrics: ", a.path, " and ", b.path,
                    " must have a step in common, got none");
  const bool same_steps = comparison.only_a.empty() && comparison.only_b.empty() &&
                          comparison.validation_only_a.empty() &&
                          comparison.validation_only_b.empty();
  comparison.equal = !comparison.first && (same_steps || options.common);
  return comparison;
}

std::string to_string(const MetricsRun& a, const MetricsRun& b, const ComparisonOptions& options,
                      const LossComparison& comparison) {
  std::ostringstream out;
  write_run(out, 'a', a);
  write_run(out, 'b', b);
  out << comparison.steps << " steps compared, ";
  if (options.bitwise) {
    out << "bit for bit\n";
  } else {
    out << "|a - b| <= " << options.atol << " + " << options.rtol << " * |a|\n";
  }
  out << "           differing    max |a - b|  at step  max |a - b| / |a|  at step\n";
  for (std::size_t i = 0; i < kComparedQuantities.size(); ++i) {
    write_quantity(out, kComparedQuantities[i], comparison.quantities[i]);
  }
  write_quantity(out, kValidation, comparison.validation);
  if (const auto& first = comparison.first) {
    out << "first to differ: " << first->quantity << " at step " << first->step << ", "
        << std::defaultfloat << std::setprecision(std::numeric_limits<double>::max_digits10) << "a "
        << first->a << ", b " << first->b << '\n';
  }
  write_steps(out, "steps only in a", comparison.only_a);
  write_steps(out, "steps only in b", comparison.only_b);
  write_steps(out, "validation losses only in a, after steps", comparison.validation_only_a);
  write_steps(out, "validation losses only in b, after steps", comparison.validation_only_b);
  out << (!comparison.equal ? "DIFFERENT"
          : options.bitwise ? "equal"
                            : "within the tolerance")
      << '\n';
  return out.str();
}

}  // namespace moegrad::tools
