// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "framework/autograd/gradcheck_derivatives.h"
#include "framework/autograd/gradcheck_inputs.h"
#include "framework/autograd/weight_gradients.h"
#include "framework/runtime/log.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

using detail::CentralDifferences;
using detail::CheckedInputs;
using detail::element_name;
using detail::gradcheck_fail;
using detail::RetainedGraph;
using detail::Slot;
using enum GradcheckFailure;

using Vector = std::vector<double>;

// Elements in [0.5, 1.5) with random sign, so that no element has almost no weight.
Vector random_vector(const Slot& slot, const Random& random) {
  Vector vector(slot.size());
  for (std::size_t i = 0; i < vector.size(); ++i) {
    const double u = 2 * random.uniform(slot.begin + i);
    vector[i] = u < 1 ? 0.5 + u : 0.5 - u;
  }
  return vector;
}

Vector unit_vector(const Slot& slot, const Random& random) {
  Vector vector = random_vector(slot, random);
  double squares = 0;
  for (const auto value : vector) squares += value * value;
  for (auto& value : vector) value /= std::sqrt(squares);
  return vector;
}

double dot(const Vector& a, std::size_t begin, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += a[begin + i] * b[i];
  return sum;
}

double sum_of_magnitudes(const Vector& vector) {
  double sum = 0;
  for (const auto value : vector) sum += std::abs(value);
  return sum;
}

Tensor to_tensor(const Vector& values, const Slot& slot) {
  return to_dtype(Tensor::from(values, slot.shape), slot.dtype);
}

// As torch.allclose: an infinity agrees with itself only, a NaN with nothing.
bool close(double got, double numeric, double allowed) {
  const double off = std::abs(got - numeric);
  return got == numeric || (std::isfinite(off) && off <= allowed);
}

// The difference divided by the bound. An element that is not finite is worse than any other.
double times_allowed(double got, double numeric, double allowed) {
  const double times = std::abs(got - numeric) / allowed;
  return std::isnan(times) ? std::numeric_limits<double>::infinity() : times;
}

// Without the sign that a NaN may have.
double as_shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string against_numeric(double got, double numeric, double allowed) {
  std::ostringstream text;
  text << " is " << got << " by backward and " << numeric << " by central differences, off by "
       << std::abs(got - numeric) << " where " << allowed << " is allowed";
  return text.str();
}

class Gradcheck {
 public:
  using F = std::function<TensorList(const TensorList&)>;

  Gradcheck(const F& f, const CheckedInputs& inputs, const GradcheckOptions& options)
      : f_(f),
        inputs_(inputs),
        options_(options),
        graph_(f, inputs),
        differences_(f, inputs, graph_.slots(), options.eps) {}

  // The checks that need backward only.
  void check_backward() const {
    check_values();
    backward_twice(cotangents(weights()));
    const TensorList zeros = cotangents(Vector(size_of_outputs(), 0.0));
    expect_zeros(graph_.backward(zeros), kNotMultipliedByGradOutput,
                 "backward must multiply by grad_output: for zeros");
    if (options_.check_undefined_grad) check_undefined(zeros);
  }

  void check_jacobian() const {
    // All of backward comes first: moving an input counts as modifying what was saved.
    const auto jacobian = rows();
    const Vector weights = this->weights(), combined = graph_.backward(cotangents(weights));
    std::size_t compared = 0, wrong = 0;
    double worst = -1;
    std::string message;
    for (const auto& input : inputs_.slots()) {
      for (std::size_t i = input.begin; i < input.end(); ++i) {
        const Vector numeric = differences_.by_element(input, i - input.begin);
        for (const auto& output : graph_.slots()) {
          if (!graph_.differentiable(output)) {
            expect_constant(output, numeric, input_name(i));
            continue;
          }
          for (std::size_t o = output.begin; o < output.end(); ++o) {
            ++compared;
            if (std::isnan(numeric[o])) {
              gradcheck_fail(kNotFinite, "the derivative of ", output_name(o), " with respect to ",
                             input_name(i),
                             " is nan by central differences: the function must "
                             "have a value eps = ",
                             options_.eps, " to either side of its inputs");
            }
            const double allowed = bound(numeric[o]);
            if (close(jacobian[o][i], numeric[o], allowed)) continue;
            ++wrong;
            const double excess = times_allowed(jacobian[o][i], numeric[o], allowed);
            if (excess <= worst * (1 + 1e-6)) continue;  // noise must not choose among equal ones
            worst = excess;
            message = "gradient of " + output_name(o) + " with respect to " + input_name(i) +
                      against_numeric(jacobian[o][i], numeric[o], allowed);
          }
        }
      }
    }
    if (wrong > 0) {
      gradcheck_fail(kJacobianMismatch, message, "; ", wrong, " of ", compared,
                     " elements disagree", wrong > 1 ? ", this one most" : "");
    }
    check_linear(jacobian, weights, combined);
  }

  // A Function that keeps a plain Tensor sees the edit; one that keeps a SavedTensor throws.
  void check_edits() const {
    const auto& inputs = inputs_.all();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_edit("input", i, [&](const RetainedGraph&) { return inputs[i]; });
    }
    for (std::size_t o = 0; o < graph_.slots().size(); ++o) {
      check_edit("output", o, [&](const RetainedGraph& graph) { return graph.output(o); });
    }
  }

  void check_projections() const {
    const Random output_random(options_.seed, "gradcheck output direction");
    const Random input_random(options_.seed, "gradcheck input direction");
    std::vector<Vector> v, gradients;  // by output; empty for an output without gradient
    for (const auto& output : graph_.slots()) {
      v.push_back(unit_vector(output, output_random));
      gradients.push_back(graph_.differentiable(output)
                              ? backward_twice(cotangents_of(output, to_tensor(v.back(), output)))
                              : Vector());
    }
    for (const auto& input : inputs_.slots()) {
      Vector u = unit_vector(input, input_random);
      const Vector numeric = differences_.along(input, 0, u);
      for (const auto& output : graph_.slots()) {
        if (!graph_.differentiable(output)) {
          expect_constant(output, numeric, "input " + std::to_string(input.index));
          continue;
        }
        compare_projection(output, input, dot(gradients[output.index], input.begin, u),
                           dot(numeric, output.begin, v[output.index]),
                           sum_of_magnitudes(v[output.index]) * sum_of_magnitudes(u));
      }
    }
  }

 private:
  double bound(double numeric) const { return options_.atol + options_.rtol * std::abs(numeric); }
  std::size_t size_of_outputs() const { return graph_.slots().back().end(); }
  std::string input_name(std::size_t i) const { return element_name("input", inputs_.slots(), i); }
  std::string output_name(std::size_t o) const { return element_name("output", graph_.slots(), o); }

  Vector weights() const {
    const Random random(options_.seed, "gradcheck cotangent");
    Vector all;
    for (const auto& output : graph_.slots()) {
      const Vector vector = random_vector(output, random);
      all.insert(all.end(), vector.begin(), vector.end());
    }
    return all;
  }

  // One tensor for each output that carries a gradient.
  TensorList cotangents(const Vector& values) const {
    TensorList tensors(graph_.slots().size());
    for (const auto& output : graph_.slots()) {
      if (!graph_.differentiable(output)) continue;
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(output.begin);
      tensors[output.index] =
          to_tensor(Vector(begin, begin + static_cast<std::ptrdiff_t>(output.size())), output);
    }
    return tensors;
  }

  // Leaves the other outputs' cotangents undefined, or zero where backward must not meet undefined.
  TensorList cotangents_of(const Slot& output, const Tensor& cotangent) const {
    TensorList tensors = options_.check_undefined_grad ? TensorList(graph_.slots().size())
                                                       : cotangents(Vector(size_of_outputs(), 0.0));
    tensors[output.index] = cotangent;
    return tensors;
  }

  Vector backward_twice(const TensorList& cotangents) const {
    const Vector first = graph_.backward(cotangents);
    WeightGradientQueue queue;  // the second time what may wait comes after the rest
    const WeightGradientsGuard guard(queue);
    const Vector second = graph_.backward(cotangents);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool same = close(first[i], second[i], options_.nondet_tol) ||
                        (std::isnan(first[i]) && std::isnan(second[i]));
      if (same) continue;
      gradcheck_fail(kNotReentrant,
                     "backward must give the same when it runs twice, but the gradient of ",
                     input_name(i), " is ", first[i], " and then ", second[i],
                     ", further apart than nondet_tol = ", options_.nondet_tol);
    }
    return first;
  }

  void check_values() const {
    if (inputs_.slots().back().end() == 0) return;  // nothing moves; the mean of nothing is nan
    for (const auto& output : graph_.slots()) {
      if (!graph_.differentiable(output)) continue;
      const Vector values = detail::to_doubles(graph_.output(output.index));
      for (std::size_t o = 0; o < values.size(); ++o) {
        if (!std::isnan(values[o])) continue;
        gradcheck_fail(kNotFinite, output_name(output.begin + o),
                       " is nan: the function must have a value at its inputs");
      }
    }
  }

  // ": output 0 at [1] is inf" if one is.
  std::string infinite_output() const {
    for (const auto& output : graph_.slots()) {
      const Vector values = detail::to_doubles(graph_.output(output.index));
      for (std::size_t o = 0; o < values.size(); ++o) {
        if (!std::isinf(values[o])) continue;
        return ": " + output_name(output.begin + o) + " is " + (values[o] > 0 ? "inf" : "-inf");
      }
    }
    return {};
  }

  void expect_zeros(const Vector& gradients, GradcheckFailure kind, const std::string& what) const {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i] == 0) continue;
      if (!std::isfinite(gradients[i])) {
        gradcheck_fail(kNotFinite, "for a grad_output of zeros the gradient of ", input_name(i),
                       " is ", as_shown(gradients[i]),
                       "; the function must have a finite value and a finite derivative at its "
                       "inputs",
                       infinite_output());
      }
      gradcheck_fail(kind, what, " the gradient of ", input_name(i), " is ", gradients[i]);
    }
  }

  void check_undefined(const TensorList& zeros) const {
    for (const auto& output : graph_.slots()) {
      if (!graph_.differentiable(output)) continue;
      TensorList cotangents = zeros;
      cotangents[output.index] = Tensor();
      const std::string name = "gradient of output " + std::to_string(output.index);
      Vector gradients;
      try {
        gradients = graph_.backward(cotangents);
      } catch (const GradcheckError&) {
        throw;
      } catch (const std::exception& error) {
        gradcheck_fail(kUndefinedGradThrows, "backward must run when the ", name,
                       " is left out, got: ", error.what());
      }
      expect_zeros(gradients, kUndefinedGradNotZero,
                   "left out, the " + name + " must count as zeros: with zeros for the others");
    }
  }

  // [element of all outputs][element of all inputs]; empty for outputs without gradient.
  std::vector<Vector> rows() const {
    std::vector<Vector> jacobian(size_of_outputs());
    for (const auto& output : graph_.slots()) {
      if (!graph_.differentiable(output)) continue;
      for (std::size_t o = 0; o < output.size(); ++o) {
        Vector one_hot(output.size(), 0.0);
        one_hot[o] = 1;
        jacobian[output.begin + o] =
            backward_twice(cotangents_of(output, to_tensor(one_hot, output)));
      }
    }
    return jacobian;
  }

  // A backward may be right for each output element alone and wrong for several at once.
  void check_linear(const std::vector<Vector>& jacobian, const Vector& weights,
                    const Vector& combined) const {
    Vector sums(combined.size(), 0.0);
    for (std::size_t o = 0; o < jacobian.size(); ++o) {
      for (std::size_t i = 0; i < jacobian[o].size(); ++i) sums[i] += weights[o] * jacobian[o][i];
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (close(combined[i], sums[i], bound(sums[i]))) continue;
      gradcheck_fail(kNotLinear,
                     "backward must be linear in grad_output: for a random one the gradient of ",
                     input_name(i), " is ", combined[i], ", but ", sums[i],
                     " when added up from one backward per output element");
    }
  }

  template <class Pick>
  void check_edit(std::string_view what, std::size_t index, const Pick& pick) const {
    const RetainedGraph graph(f_, inputs_);
    const Tensor edited = pick(graph);
    if (!edited.defined() || edited.layout() != Layout::kND) return;
    if (edited.dtype() != Dtype::kFloat64 && edited.dtype() != Dtype::kFloat32) return;
    const TensorList cotangents = this->cotangents(weights());
    const Vector before = graph.backward(cotangents);
    Vector after;
    {
      const auto size = static_cast<std::size_t>(edited.numel());
      detail::MovedElements elements(edited, 0, size);
      Vector distance(size);
      for (std::size_t i = 0; i < size; ++i) distance[i] = 0.25 + 0.5 * elements.get(i);
      elements.move(1.0, distance);
      // A backward that throws could leave unfinished what a module's hooks (fully_shard's) began.
      if (graph.runs_hooks() && graph.has_modified()) return;
      try {
        after = graph.backward(cotangents);
      } catch (const std::exception&) {
        return;  // noticed
      }
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i] == after[i] || (std::isnan(before[i]) && std::isnan(after[i]))) continue;
      if (close(before[i], after[i], options_.nondet_tol)) continue;
      gradcheck_fail(kEditNotNoticed, what, ' ', index,
                     " was edited in place before backward, which must throw or give the same "
                     "gradients, but that of ",
                     input_name(i), " was ", before[i], " and is ", after[i],
                     "; keep what backward reads in a SavedTensor, not in a Tensor");
    }
  }

  void expect_constant(const Slot& output, const Vector& numeric, const std::string& input) const {
    for (std::size_t o = output.begin; o < output.end(); ++o) {
      if (std::abs(numeric[o]) <= options_.nondet_tol) continue;
      gradcheck_fail(kNonDifferentiableOutput, output_name(o),
                     " requires no gradient, but its derivative with respect to ", input, " is ",
                     numeric[o], " by central differences");
    }
  }

  void compare_projection(const Slot& output, const Slot& input, double got, double numeric,
                          double magnitudes) const {
    const double allowed = options_.atol * magnitudes + options_.rtol * std::abs(numeric);
    if (close(got, numeric, allowed)) return;
    Gradcheck(f_, inputs_, options_).check_jacobian();
    gradcheck_fail(kJacobianMismatch, "a random projection of the gradient of output ",
                   output.index, " with respect to input ", input.index,
                   against_numeric(got, numeric, allowed),
                   ", although each element of the Jacobian agrees in full mode");
  }

  const F& f_;
  const CheckedInputs& inputs_;
  const GradcheckOptions& options_;
  RetainedGraph graph_;
  CentralDifferences differences_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, GradcheckFailure kind) {
  constexpr std::string_view kNames[] = {"kNone",
                                         "kNoInputRequiresGrad",
                                         "kOverlappingInput",
                                         "kNotFinite",
                                         "kInputModified",
                                         "kGradOutputModified",
                                         "kGradientSize",
                                         "kGradientDtype",
                                         "kNotReentrant",
                                         "kNotMultipliedByGradOutput",
                                         "kUndefinedGradThrows",
                                         "kUndefinedGradNotZero",
                                         "kOutputShapeChanges",
                                         "kOutputDtypeChanges",
                                         "kNonDifferentiableOutput",
                                         "kJacobianMismatch",
                                         "kNotLinear",
                                         "kEditNotNoticed"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(kEditNotNoticed) + 1);
  return out << kNames[static_cast<std::size_t>(kind)];
}

void GradcheckResult::or_throw() const {
  if (kind != kNone) throw GradcheckError(kind, message);
  for (const auto& warning : warnings) log(LogLevel::kWarning, warning);
}

GradcheckResult gradcheck(const std::function<TensorList(const TensorList&)>& f,
                          const TensorList& inputs, const GradcheckOptions& options) {
  GradcheckResult result;
  try {
    const CheckedInputs checked(inputs);
    result.warnings = checked.warnings();
    const Gradcheck gradcheck(f, checked, options);
    gradcheck.check_backward();
    if (options.fast_mode) {
      gradcheck.check_projections();
    } else {
      gradcheck.check_jacobian();
    }
    gradcheck.check_edits();
  } catch (const GradcheckError& error) {
    result.kind = error.kind();
    result.message = error.what();
    for (const auto& warning : result.warnings) result.message += "; " + warning;
  }
  return result;
}

}  // namespace moegrad
