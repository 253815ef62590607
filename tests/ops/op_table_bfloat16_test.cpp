// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>

#include "framework/autograd/engine.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "tests/ops/op_table_test.h"

namespace moegrad::test::op_table_bfloat16_test {
namespace {

class OpTableBFloat16 : public ::testing::TestWithParam<OpEntry> {};
class OpTableWithoutBFloat16 : public ::testing::TestWithParam<OpEntry> {};

bool computes(const OpEntry& entry) { return ops_in_bfloat16().contains(entry.key()); }

bool moves(const OpEntry& entry) { return std::ranges::count(entry.dtypes, Dtype::kBFloat16) > 0; }

bool reads_reals(const OpEntry& entry) {
  return std::ranges::any_of(entry.samples, [](const OpSample& sample) {
    return std::ranges::any_of(sample.inputs, [](const Input& in) { return !in.has_own_dtype(); });
  });
}

std::vector<OpEntry> entries_that(bool (*fit)(const OpEntry&)) {
  std::vector<OpEntry> entries;
  std::ranges::copy_if(op_table(), std::back_inserter(entries), fit);
  return entries;
}

// Blocks are in the table in float32 and float64; nz_test.cpp has those of bfloat16.
bool refuses(const OpEntry& entry) {
  const bool of_blocks = entry.op == "nd_to_nz" || entry.op == "nz_to_nd";
  return reads_reals(entry) && !computes(entry) && !moves(entry) && !of_blocks;
}

INSTANTIATE_TEST_SUITE_P(, OpTableBFloat16, ::testing::ValuesIn(entries_that(computes)), test_name);
INSTANTIATE_TEST_SUITE_P(, OpTableWithoutBFloat16, ::testing::ValuesIn(entries_that(refuses)),
                         test_name);

// All bfloat16 but those that are float32 or have dtypes of their own.
TensorList draw(const OpEntry& entry, const OpSample& sample) {
  auto inputs = draw_inputs(sample, Dtype::kBFloat16, 1);
  const auto wide = draw_inputs(sample, Dtype::kFloat32, 1);
  for (const auto i : ops_in_bfloat16().at(entry.key())) {
    if (i < inputs.size()) inputs[i] = wide[i];
  }
  return inputs;
}

TensorList in_dtype(const TensorList& tensors, Dtype dtype) {
  TensorList converted;
  for (const auto& tensor : tensors) {
    converted.push_back(holds_reals(tensor.dtype()) ? to_dtype(tensor, dtype) : tensor);
  }
  return converted;
}

// Outputs, and gradients of the inputs; cotangents are those of bfloat16 outputs, rounded.
Outcome run(const OpEntry& entry, const OpSample& sample, const TensorList& inputs,
            const TensorList& cotangents) {
  const auto needs = inputs_with_gradient(sample, Dtype::kFloat32);
  TensorList leaves, roots, grads;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    leaves.back().set_requires_grad(needs[i]);
  }
  Outcome outcome;
  const auto outputs = entry.run(leaves, sample.args);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outcome.outputs.push_back(outputs[i].detach());
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    grads.push_back(cotangents[i]);
  }
  if (!roots.empty()) run_backward(roots, grads, /*retain_graph=*/false);
  for (const auto& leaf : leaves) outcome.grads.push_back(leaf.grad());
  return outcome;
}

// A number that is rounded once has |error| <= 2^-8 |number|, beside that of float32 arithmetic.
::testing::AssertionResult rounded_once(const Tensor& got, const Tensor& want, bool rounds) {
  const Array g = to_array(got), w = to_array(want);
  if (!(g.shape == w.shape)) {
    return ::testing::AssertionFailure() << g.shape << " against " << w.shape;
  }
  double mean = 0;
  for (const auto value : w.values) mean += std::abs(value) / static_cast<double>(w.values.size());
  for (std::size_t i = 0; i < g.values.size(); ++i) {
    const double a = g.values[i], b = w.values[i];
    const double bound = (rounds ? 0x1p-8 : 1e-5) * std::abs(b) + 1e-5 * mean;
    if (!(std::abs(a - b) <= bound)) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << a << ", expected " << b << ", off by " << a - b;
    }
  }
  return ::testing::AssertionSuccess();
}

TEST_P(OpTableBFloat16, IsFloat64OnTheSameNumbersRoundedOnce) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw(entry, sample);
    const auto cotangents = draw_cotangents(entry.run(inputs, sample.args), 2);
    const auto got = run(entry, sample, inputs, cotangents);
    const auto want = run(entry, sample, in_dtype(inputs, Dtype::kFloat64),
                          in_dtype(cotangents, Dtype::kFloat64));
    for (std::size_t i = 0; i < got.outputs.size(); ++i) {
      const bool rounds = got.outputs[i].dtype() == Dtype::kBFloat16;
      EXPECT_TRUE(rounded_once(got.outputs[i], want.outputs[i], rounds)) << "output " << i;
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(got.grads[i].defined(), want.grads[i].defined()) << "input " << i;
      if (!got.grads[i].defined()) continue;
      EXPECT_EQ(got.grads[i].dtype(), Dtype::kFloat32);
      const bool rounds = inputs[i].dtype() == Dtype::kBFloat16;
      EXPECT_TRUE(rounded_once(got.grads[i], want.grads[i], rounds)) << "gradient " << i;
    }
  }
}

TEST_P(OpTableBFloat16, HasTheBitsOfFloat32RoundedOnce) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw(entry, sample);
    const auto cotangents = draw_cotangents(entry.run(inputs, sample.args), 2);
    auto got = run(entry, sample, inputs, cotangents);
    auto want = run(entry, sample, in_dtype(inputs, Dtype::kFloat32),
                    in_dtype(cotangents, Dtype::kFloat32));
    for (std::size_t i = 0; i < got.outputs.size(); ++i) {
      want.outputs[i] = to_dtype(want.outputs[i], got.outputs[i].dtype());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype() != Dtype::kBFloat16 || !got.grads[i].defined()) continue;
      // A gradient that the engine is to round is not rounded for a leaf.
      got.grads[i] = to_dtype(got.grads[i], Dtype::kBFloat16);
      want.grads[i] = to_dtype(want.grads[i], Dtype::kBFloat16);
    }
    EXPECT_TRUE(same_bits(got, want));
  }
}

TEST_P(OpTableBFloat16, BitsDependNeitherOnThreadsNorOnStrides) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw(entry, sample);
    const auto cotangents = draw_cotangents(entry.run(inputs, sample.args), 2);
    const auto want = run(entry, sample, inputs, cotangents);
    for (const int threads : {2, 3}) {
      RankContext context(RankContext::Options{.threads = threads});
      const RankContextGuard guard(context);
      EXPECT_TRUE(same_bits(run(entry, sample, inputs, cotangents), want)) << threads;
    }
    for (const auto within : {Within::kShifted, Within::kReversed, Within::kGaps}) {
      TensorList views, gradient_views;
      for (const auto& input : inputs) views.push_back(view_within_poison(input, within));
      for (const auto& cotangent : cotangents) {
        gradient_views.push_back(view_within_poison(cotangent, within));
      }
      EXPECT_TRUE(same_bits(run(entry, sample, views, gradient_views), want))
          << static_cast<int>(within);
    }
  }
}

TEST_P(OpTableWithoutBFloat16, RefusesItByNameAndSaysWhatToCall) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    const auto& inputs = sample.inputs;
    if (std::ranges::all_of(inputs, [](const Input& in) { return in.has_own_dtype(); })) continue;
    const auto raised =
        raised_by([&] { entry.run(draw_inputs(sample, Dtype::kBFloat16, 1), sample.args); });
    const bool named = raised.starts_with("DtypeError: " + entry.op + ": ") ||
                       raised.starts_with("DtypeError: " + entry.saved_by + ": ");
    EXPECT_TRUE(named && raised.ends_with("; convert it with ops::cast")) << raised;
  }
}

}  // namespace
}  // namespace moegrad::test::op_table_bfloat16_test
