// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "tests/ops/op_table_test.h"

namespace moegrad::test::op_table_gradients_test {
namespace {

class OpTableGradients : public ::testing::TestWithParam<OpEntry> {};
class OpTableWithoutGradients : public ::testing::TestWithParam<OpEntry> {};

std::vector<OpEntry> entries_that_are(bool differentiable) {
  std::vector<OpEntry> entries;
  std::ranges::copy_if(op_table(), std::back_inserter(entries), [&](const OpEntry& entry) {
    return entry.differentiable == differentiable;
  });
  return entries;
}

INSTANTIATE_TEST_SUITE_P(, OpTableGradients, ::testing::ValuesIn(entries_that_are(true)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(, OpTableWithoutGradients, ::testing::ValuesIn(entries_that_are(false)),
                         test_name);

TensorList leaves_of(const TensorList& inputs, const std::vector<bool>& needs) {
  TensorList leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(clone(inputs[i]));
    leaves.back().set_requires_grad(needs[i]);
  }
  return leaves;
}

void backward_from(const TensorList& outputs) {
  const auto cotangents = draw_cotangents(outputs, 0);
  TensorList roots, grads;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    grads.push_back(cotangents[i]);
  }
  run_backward(roots, grads, /*retain_graph=*/false);
}

// <c, f(x)>, summed in more digits than f has.
long double weighed_sum(const TensorList& outputs, const TensorList& cotangents) {
  long double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!cotangents[i].defined()) continue;
    const Array y = to_array(outputs[i]), c = to_array(cotangents[i]);
    for (std::size_t j = 0; j < y.values.size(); ++j) {
      sum += static_cast<long double>(y.values[j]) * static_cast<long double>(c.values[j]);
    }
  }
  return sum;
}

// Along one random direction u of all inputs: <dL/dx, u> = dL(x + h u)/dh.
void expect_slope(const OpEntry& entry, const OpSample& sample, const TensorList& inputs,
                  const std::vector<bool>& needs) {
  constexpr double kStep = 1e-6;
  const auto outcome = run_entry(entry, sample, inputs, needs);
  const auto cotangents = draw_cotangents(outcome.outputs, 0);
  double expected = 0, size = 1;
  TensorList above, below;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    above.push_back(clone(inputs[i]));
    below.push_back(clone(inputs[i]));
    if (!needs[i]) continue;
    const Tensor direction = randn(inputs[i].shape(), 100 + i);
    const auto u = direction.data<double>();
    const auto grad = to_array(outcome.grads[i]).values;
    const auto up = above[i].mutable_data<double>(), down = below[i].mutable_data<double>();
    for (std::size_t j = 0; j < u.size(); ++j) {
      expected += grad[j] * u[j];
      size += std::abs(grad[j] * u[j]);
      up[j] += kStep * u[j];
      down[j] -= kStep * u[j];
    }
  }
  const auto rise = weighed_sum(entry.run(above, sample.args), cotangents) -
                    weighed_sum(entry.run(below, sample.args), cotangents);
  EXPECT_NEAR(static_cast<double>(rise) / (2 * kStep), expected, 1e-7 * size);
}

TEST_P(OpTableGradients, GradientsMatchFiniteDifferences) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw_inputs(sample, Dtype::kFloat64, 2);
    const auto needs = inputs_with_gradient(sample, Dtype::kFloat64);
    if (sample.differences == Differences::kOneDirection) {
      expect_slope(entry, sample, inputs, needs);
    } else if (sample.differences == Differences::kEveryElement) {
      GradcheckOptions options;
      options.eps = sample.gradcheck_eps;
      options.atol = 1e-7;
      options.rtol = 1e-5;
      EXPECT_TRUE(gradients_agree([&](const TensorList& in) { return entry.run(in, sample.args); },
                                  leaves_of(inputs, needs), options));
    }
  }
}

TEST_P(OpTableGradients, NarrowGradientsAreCloseToFloat64) {
  const auto& entry = GetParam();
  for (const auto dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    if (std::ranges::find(entry.dtypes, dtype) == entry.dtypes.end()) continue;
    for (const auto& sample : entry.samples) {
      SCOPED_TRACE(sample.what + " in " + std::string(to_string(dtype)));
      const auto narrow = draw_inputs(sample, dtype, 3);
      TensorList wide;  // the same numbers
      for (const auto& input : narrow) {
        wide.push_back(input.dtype() == dtype ? to_dtype(input, Dtype::kFloat64) : input);
      }
      const auto needs = inputs_with_gradient(sample, dtype);
      const auto got = run_entry(entry, sample, narrow, needs, 0, dtype);
      const auto want = run_entry(entry, sample, wide, needs, 0, dtype);
      for (std::size_t i = 0; i < needs.size(); ++i) {
        ASSERT_EQ(got.grads[i].defined(), needs[i]);
        if (!needs[i]) continue;
        EXPECT_EQ(got.grads[i].dtype(), Dtype::kFloat32);
        // What only moves has gradients that are sums, and these are not rounded to bfloat16.
        const bool rounds = tolerance_of(entry, dtype) > 0 && dtype == Dtype::kBFloat16;
        const double tolerance = rounds ? entry.bf16_gradient_tolerance : 1e-5;
        EXPECT_TRUE(close_to(to_array(got.grads[i]), to_array(want.grads[i]), tolerance))
            << "input " << i;
      }
    }
  }
}

TEST_P(OpTableGradients, StridedGradientsGiveTheBitsOfContiguousOnes) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw_inputs(sample, Dtype::kFloat64, 6);
    const auto needs = inputs_with_gradient(sample, Dtype::kFloat64);
    const auto gradients = [&](const std::function<Tensor(const Tensor&)>& stored) {
      const auto leaves = leaves_of(inputs, needs);
      const auto outputs = entry.run(leaves, sample.args);
      const auto cotangents = draw_cotangents(outputs, 0);
      TensorList roots, grads, result;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].requires_grad()) continue;
        roots.push_back(outputs[i]);
        grads.push_back(stored(cotangents[i]));
      }
      run_backward(roots, grads, /*retain_graph=*/false);
      for (const auto& leaf : leaves) result.push_back(leaf.grad());
      return result;
    };
    const auto want = gradients([](const Tensor& gradient) { return gradient; });
    for (const auto within : {Within::kShifted, Within::kReversed, Within::kGaps}) {
      EXPECT_TRUE(same_bits(gradients([within](const Tensor& gradient) {
                              return view_within_poison(gradient, within);
                            }),
                            want))
          << static_cast<int>(within);
    }
  }
}

// Every choice of at least one of the inputs that have a gradient.
std::vector<std::vector<bool>> subsets_of(const std::vector<bool>& needs) {
  std::vector<std::vector<bool>> subsets;
  for (unsigned bits = 1; bits < 1U << needs.size(); ++bits) {
    std::vector<bool> subset;
    bool fits = true;
    for (std::size_t i = 0; i < needs.size(); ++i) {
      subset.push_back((bits >> i & 1U) != 0);
      fits &= needs[i] || !subset[i];
    }
    if (fits) subsets.push_back(subset);
  }
  return subsets;
}

TEST_P(OpTableGradients, EachGradientIsTheSameWhicheverOthersAreNeeded) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw_inputs(sample, Dtype::kFloat64, 4);
    const auto all = inputs_with_gradient(sample, Dtype::kFloat64);
    auto want = run_entry(entry, sample, inputs, all);
    for (const auto& needs : subsets_of(all)) {
      auto expected = want;
      for (std::size_t i = 0; i < needs.size(); ++i) {
        if (!needs[i]) expected.grads[i] = Tensor();
      }
      EXPECT_TRUE(same_bits(run_entry(entry, sample, inputs, needs), expected))
          << ::testing::PrintToString(needs);
    }
  }
}

// The last Function of the op, asked for one gradient after the other.
TEST_P(OpTableGradients, BackwardGivesTheSameInSeveralCalls) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto outputs = entry.run(leaves_of(draw_inputs(sample, Dtype::kFloat64, 5),
                                             inputs_with_gradient(sample, Dtype::kFloat64)),
                                   sample.args);
    const auto function = outputs[0].grad_fn();
    if (!function) continue;  // the result is the input itself
    TensorList grads;
    for (const auto& info : function->outputs()) {
      grads.push_back(Tensor::zeros(info.shape, info.dtype));
    }
    const auto cotangents = draw_cotangents(outputs, 0);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].grad_fn() == function) grads[outputs[i].output_index()] = cotangents[i];
    }
    const auto all = function->backward(grads, function->needs());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!function->needs()[i]) continue;
      InputMask one;
      one.set(i);
      EXPECT_TRUE(bitwise_equal(function->backward(grads, one)[i], all[i])) << "input " << i;
    }
  }
}

void overwrite(const Tensor& tensor) {
  const auto elements = tensor.storage().bytes() / size_of(tensor.dtype());
  Tensor flat = Tensor::as_strided(tensor.detach(), {elements}, {1}, 0);
  fill_(flat, 0);
}

// Overwrites input or output `i` between forward and backward, and says what becomes of it.
std::string outcome_of_overwriting(const OpEntry& entry, const OpSample& sample, bool input,
                                   std::size_t i) {
  const auto leaves = leaves_of(draw_inputs(sample, Dtype::kFloat64, 6),
                                inputs_with_gradient(sample, Dtype::kFloat64));
  const auto run = [&](bool overwrites) {
    for (const auto& leaf : leaves) leaf.set_grad(Tensor());
    const auto outputs = entry.run(leaves, sample.args);
    if (overwrites) overwrite(input ? leaves[i] : outputs[i]);
    backward_from(outputs);
    TensorList grads;
    for (const auto& leaf : leaves) {
      grads.push_back(leaf.grad().defined() ? clone(leaf.grad()) : Tensor());
    }
    return grads;
  };
  const auto want = run(false);
  bool same = false;
  const auto raised = raised_by([&] { same = same_bits(run(true), want); });
  if (raised != "nothing") return raised;
  return same ? "the same gradients" : "other gradients";
}

TEST_P(OpTableGradients, ModificationInPlaceIsNoticedWhereItMatters) {
  const auto& entry = GetParam();
  const auto& name = entry.saved_by.empty() ? entry.op : entry.saved_by;
  for (const auto& sample : entry.samples) {
    const auto expect = [&](const std::string& what, const std::string& outcome, bool saved,
                            const Shape& shape) {
      SCOPED_TRACE(sample.what + ", " + what);
      if (!saved) {
        EXPECT_EQ(outcome, "the same gradients");
        return;
      }
      std::ostringstream text;
      text << shape << " saved for backward has been modified in place since";
      const auto end = text.str();
      EXPECT_TRUE(outcome.starts_with("Error: " + name + ": a tensor of shape [")) << outcome;
      EXPECT_TRUE(outcome.ends_with(entry.saved_by.empty() ? end : end.substr(end.find("] "))))
          << outcome;
    };
    for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
      expect("input " + std::to_string(i), outcome_of_overwriting(entry, sample, true, i),
             sample.inputs[i].saved, sample.inputs[i].shape);
    }
    const auto outputs = entry.run(draw_inputs(sample, Dtype::kFloat64, 6), sample.args);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const bool saved = sample.saves_outputs && std::ranges::count(entry.saved_outputs, i) > 0;
      expect("output " + std::to_string(i), outcome_of_overwriting(entry, sample, false, i), saved,
             outputs[i].shape());
    }
  }
}

TEST_P(OpTableGradients, InputsThatAreDataGetNone) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    std::vector<bool> data;
    for (const auto& input : sample.inputs) data.push_back(!input.has_gradient);
    const auto inputs = draw_inputs(sample, Dtype::kFloat64, 7);
    for (const auto& output : entry.run(leaves_of(inputs, data), sample.args)) {
      EXPECT_FALSE(output.requires_grad());
    }
    const auto needs = inputs_with_gradient(sample, Dtype::kFloat64);
    for (const auto& output : entry.run(leaves_of(inputs, needs), sample.args)) {
      EXPECT_EQ(output.requires_grad(), is_floating(output.dtype()));
    }
  }
}

TEST_P(OpTableWithoutGradients, ResultsCarryNoGraph) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    const auto leaves = leaves_of(draw_inputs(sample, Dtype::kFloat64, 8),
                                  inputs_with_gradient(sample, Dtype::kFloat64));
    for (const auto& output : entry.run(leaves, sample.args)) {
      EXPECT_FALSE(output.requires_grad()) << sample.what;
    }
  }
}

}  // namespace
}  // namespace moegrad::test::op_table_gradients_test
