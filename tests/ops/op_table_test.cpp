// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/op_table_test.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"

namespace moegrad::test {

::testing::AssertionResult close_to(const Array& got, const Array& want, double tolerance) {
  if (!(got.shape == want.shape)) {
    return ::testing::AssertionFailure() << got.shape << " against " << want.shape;
  }
  double mean = 0;
  for (const auto value : want.values) {
    if (!std::isnan(value)) mean += std::abs(value) / static_cast<double>(want.values.size());
  }
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double a = got.values[i], b = want.values[i];
    const bool both_nan = std::isnan(a) && std::isnan(b);
    if (!both_nan && !(std::abs(a - b) <= tolerance * (std::abs(b) + mean))) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << a << ", expected " << b << ", off by " << a - b;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_bits(const TensorList& got, const TensorList& want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " tensors against " << want.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].defined() != want[i].defined()) {
      return ::testing::AssertionFailure() << "tensor " << i << " is defined in one only";
    }
    if (!got[i].defined()) continue;
    const auto equal = bitwise_equal(got[i], want[i]);
    if (!equal) return ::testing::AssertionFailure() << "tensor " << i << ": " << equal.message();
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_bits(const Outcome& got, const Outcome& want) {
  const auto outputs = same_bits(got.outputs, want.outputs);
  if (!outputs) return ::testing::AssertionFailure() << "outputs: " << outputs.message();
  const auto grads = same_bits(got.grads, want.grads);
  if (!grads) return ::testing::AssertionFailure() << "gradients: " << grads.message();
  return ::testing::AssertionSuccess();
}

std::string raised_by(const std::function<void()>& call) {
  const auto named = [](const std::string& type, const std::exception& error) {
    return type + ": " + error.what();
  };
  try {
    call();
  } catch (const ShapeError& error) {
    return named("ShapeError", error);
  } catch (const DtypeError& error) {
    return named("DtypeError", error);
  } catch (const LayoutError& error) {
    return named("LayoutError", error);
  } catch (const ValueError& error) {
    return named("ValueError", error);
  } catch (const Error& error) {
    return named("Error", error);
  } catch (const std::exception& error) {
    return named("another exception", error);
  }
  return "nothing";
}

Tensor view_within_poison(const Tensor& x, Within within) {
  constexpr std::int64_t kOffset = 3;
  const auto& shape = x.shape();
  Shape strides = shape;
  std::int64_t step = 1;
  for (std::int64_t i = 0; i < shape.ndim(); ++i) {
    const auto dim = within == Within::kReversed ? i : shape.ndim() - 1 - i;
    if (within == Within::kGaps && i == 0) step = 2;
    strides[dim] = step;
    step *= shape[dim];
  }
  const double poison =
      x.dtype() == Dtype::kInt64 ? 1e15 : std::numeric_limits<double>::quiet_NaN();
  std::vector<double> stored(static_cast<std::size_t>(kOffset + 2 * x.numel()), poison);
  const Array values = to_array(x);
  for_each_index(shape, [&](const Shape& index) {
    auto at = kOffset;
    for (std::int64_t i = 0; i < shape.ndim(); ++i) at += index[i] * strides[i];
    stored[static_cast<std::size_t>(at)] = values[index];
  });
  const Tensor base = to_dtype(Tensor::from(stored, {std::ssize(stored)}), x.dtype());
  return Tensor::as_strided(base, shape, strides, kOffset);
}

namespace {

class OpTable : public ::testing::TestWithParam<OpEntry> {};
class OpTableBlocks : public ::testing::TestWithParam<OpEntry> {};

// FRACTAL_NZ tensors are floating, and matrices.
bool may_be_nz(const Input& input) {
  return !input.has_own_dtype() && (input.shape.ndim() == 2 || input.shape.ndim() == 3);
}

std::vector<OpEntry> entries_with_matrices() {
  std::vector<OpEntry> entries;
  std::ranges::copy_if(op_table(), std::back_inserter(entries), [](const OpEntry& entry) {
    return std::ranges::any_of(entry.samples, [](const OpSample& sample) {
      return std::ranges::any_of(sample.inputs, may_be_nz);
    });
  });
  return entries;
}

INSTANTIATE_TEST_SUITE_P(, OpTable, ::testing::ValuesIn(op_table()), test_name);
INSTANTIATE_TEST_SUITE_P(, OpTableBlocks, ::testing::ValuesIn(entries_with_matrices()), test_name);

Outcome run_all(const OpEntry& entry, const OpSample& sample, const TensorList& inputs,
                Dtype dtype) {
  return run_entry(entry, sample, inputs, inputs_with_gradient(sample, dtype));
}

std::string type_of(const std::string& raised) { return raised.substr(0, raised.find(':')); }

TEST_P(OpTable, EqualsItsReferenceInEveryDtype) {
  const auto& entry = GetParam();
  for (const auto dtype : entry.dtypes) {
    for (const auto& sample : entry.samples) {
      SCOPED_TRACE(sample.what + " in " + std::string(to_string(dtype)));
      const auto inputs = draw_inputs(sample, dtype, 1);
      Arrays exact;
      for (const auto& input : inputs) exact.push_back(to_array(input));
      const auto got = entry.run(inputs, sample.args);
      const auto want = entry.reference(exact, sample.args);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(close_to(to_array(got[i]), want[i], tolerance_of(entry, got[i].dtype())))
            << "output " << i;
      }
    }
  }
}

TEST_P(OpTable, RefusesOtherAndMixedDtypes) {
  const auto& entry = GetParam();
  const bool takes_several = std::ranges::any_of(entry.samples, [](const OpSample& sample) {
    return sample.inputs.size() > 1 ||
           std::ranges::any_of(sample.inputs, [](const Input& in) { return in.has_own_dtype(); });
  });
  int refused = 0;
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw_inputs(sample, entry.dtypes.back(), 1);
    const auto expect_refused = [&](const TensorList& changed) {
      ++refused;
      EXPECT_EQ(type_of(raised_by([&] { entry.run(changed, sample.args); })), "DtypeError");
    };
    std::size_t others = 0;
    for (const auto& input : sample.inputs) others += input.has_own_dtype() ? 0 : 1;
    for (const auto dtype : kAllDtypes) {
      SCOPED_TRACE(to_string(dtype));
      const bool listed = std::ranges::find(entry.dtypes, dtype) != entry.dtypes.end();
      const bool computes = dtype == Dtype::kBFloat16 && ops_in_bfloat16().contains(entry.key());
      if (others > 0 && !listed && !computes) expect_refused(draw_inputs(sample, dtype, 1));
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        SCOPED_TRACE("input " + std::to_string(i));
        const bool mixes = others > 1 || sample.inputs[i].has_own_dtype();
        if (dtype == inputs[i].dtype() || !mixes) continue;
        auto changed = inputs;
        changed[i] = to_dtype(inputs[i], dtype);
        expect_refused(changed);
      }
    }
  }
  EXPECT_EQ(refused == 0, entry.dtypes.size() == kAllDtypes.size() && !takes_several)
      << "an op of one input that takes any dtype has none to refuse";
}

TEST_P(OpTable, ContiguousInputsWithinALargerTensorGiveTheSameBits) {
  const auto& entry = GetParam();
  for (const auto dtype : entry.dtypes) {
    for (const auto& sample : entry.samples) {
      SCOPED_TRACE(sample.what + " in " + std::string(to_string(dtype)));
      const auto inputs = draw_inputs(sample, dtype, 1);
      auto within = inputs;
      for (auto& input : within) {
        if (input.layout() == Layout::kND) input = view_within_poison(input, Within::kShifted);
      }
      EXPECT_TRUE(
          same_bits(run_all(entry, sample, within, dtype), run_all(entry, sample, inputs, dtype)));
    }
  }
}

TEST_P(OpTable, StridedInputsGiveTheBitsOfContiguousOnes) {
  const auto& entry = GetParam();
  int strided_inputs = 0;
  for (const auto dtype : entry.dtypes) {
    for (const auto& sample : entry.samples) {
      SCOPED_TRACE(sample.what + " in " + std::string(to_string(dtype)));
      const auto inputs = draw_inputs(sample, dtype, 1);
      const auto want = run_all(entry, sample, inputs, dtype);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        for (const auto within : {Within::kReversed, Within::kGaps}) {
          SCOPED_TRACE("input " + std::to_string(i) +
                       (within == Within::kGaps ? " with gaps" : " reversed"));
          auto changed = inputs;
          changed[i] = view_within_poison(inputs[i], within);
          if (changed[i].is_contiguous()) continue;
          ++strided_inputs;
          if (sample.inputs[i].strides == Strides::kAny) {
            EXPECT_TRUE(same_bits(run_all(entry, sample, changed, dtype), want));
          } else {
            EXPECT_EQ(type_of(raised_by([&] { entry.run(changed, sample.args); })), "LayoutError");
          }
        }
      }
    }
  }
  EXPECT_GT(strided_inputs, 0);
}

TEST_P(OpTableBlocks, FractalNzInputsGiveTheSameNumbersOrAreRefused) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    const auto inputs = draw_inputs(sample, Dtype::kFloat64, 1);
    const auto want = run_all(entry, sample, inputs, Dtype::kFloat64);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& input = sample.inputs[i];
      if (!may_be_nz(input)) continue;
      SCOPED_TRACE(sample.what + ", input " + std::to_string(i));
      auto changed = inputs;
      changed[i] = as_nz(inputs[i]);
      if (input.nz != Nz::kRead) {
        EXPECT_EQ(type_of(raised_by([&] { entry.run(changed, sample.args); })),
                  input.nz == Nz::kRefused ? "LayoutError" : "ShapeError");
        continue;
      }
      const auto got = run_all(entry, sample, changed, Dtype::kFloat64);
      EXPECT_TRUE(same_bits(got.grads, want.grads));
      for (std::size_t o = 0; o < want.outputs.size(); ++o) {
        EXPECT_EQ(to_array(got.outputs[o]).values, to_array(want.outputs[o]).values);
      }
    }
  }
}

// Leaves the arena's recycled blocks of the usual sizes full of NaN.
void poison_memory(const Outcome& outcome) {
  TensorList blocks;
  const auto fill = [&](std::int64_t bytes) {
    const auto elements = (bytes + 7) / 8;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(
          Tensor::full({elements}, std::numeric_limits<double>::quiet_NaN(), Dtype::kFloat64));
    }
  };
  for (const auto* tensors : {&outcome.outputs, &outcome.grads}) {
    for (const auto& tensor : *tensors) {
      if (tensor.defined()) fill(tensor.numel() * size_of(tensor.dtype()));
    }
  }
  for (std::int64_t bytes = 64; bytes <= 1 << 16; bytes *= 2) fill(bytes);
}

TEST_P(OpTable, ResultsDependNeitherOnThreadsNorOnWhatMemoryHeld) {
  const auto& entry = GetParam();
  for (const auto dtype : entry.dtypes) {
    for (const auto& sample : entry.samples) {
      SCOPED_TRACE(sample.what + " in " + std::string(to_string(dtype)));
      const auto inputs = draw_inputs(sample, dtype, 1);
      const auto want = run_all(entry, sample, inputs, dtype);
      EXPECT_TRUE(same_bits(run_all(entry, sample, inputs, dtype), want)) << "a second time";
      for (const int threads : {1, 2, 3}) {
        RankContext context(RankContext::Options{.threads = threads});
        const RankContextGuard guard(context);
        poison_memory(want);
        EXPECT_TRUE(same_bits(run_all(entry, sample, inputs, dtype), want))
            << threads << " threads, poisoned memory";
      }
    }
  }
}

TEST_P(OpTable, LeavesItsInputsAlone) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    SCOPED_TRACE(sample.what);
    const auto inputs = draw_inputs(sample, entry.dtypes.back(), 1);
    run_all(entry, sample, inputs, entry.dtypes.back());
    EXPECT_TRUE(same_bits(inputs, draw_inputs(sample, entry.dtypes.back(), 1)));
  }
}

TEST_P(OpTable, RejectsWithTheExactMessage) {
  for (const auto& error : GetParam().errors) {
    EXPECT_EQ(raised_by(error.call), error.type + ": " + error.message) << error.what;
  }
}

TEST_P(OpTable, RefusesUndefinedInputs) {
  const auto& entry = GetParam();
  const auto& sample = entry.samples[0];
  const auto inputs = draw_inputs(sample, Dtype::kFloat64, 1);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    auto changed = inputs;
    changed[i] = Tensor();
    const auto message = raised_by([&] { entry.run(changed, sample.args); });
    // What makes a routing plan of an input is an op of its own.
    const auto input = message.find("plan_routing") == std::string::npos ? i : 0;
    EXPECT_TRUE(message.ends_with(": input " + std::to_string(input) +
                                  " must be a defined tensor, got an undefined one"))
        << message;
  }
}

}  // namespace
}  // namespace moegrad::test
