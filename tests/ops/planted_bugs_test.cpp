// SPDX-License-Identifier: Apache-2.0
// Backward formulas of ops with one mistake each, of the kinds that are made: proves that gradcheck
// catches what it is there for.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/autograd/function.h"
#include "ops/attention.h"
#include "ops/copies.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/grouped_matmul.h"
#include "ops/linear.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/swiglu.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::planted_bugs_test {
namespace {

using moegrad::test::variable;

using Ids = std::vector<std::int64_t>;
using Forward = std::function<Tensor(const TensorList& x)>;
using Backward =
    std::function<TensorList(const TensorList& x, const Tensor& y, const Tensor& g, bool bug)>;

/// An op by two formulas; if `bug`, its backward makes the mistake of its name.
struct PlantedBug {
  std::string name;
  TensorList inputs;
  Forward forward;
  Backward backward;
  std::size_t wrong_input = 0;  // whose gradient is furthest off
  bool wrong_size = false;      // of the gradient, which the engine sees first
};

std::ostream& operator<<(std::ostream& out, const PlantedBug& bug) { return out << bug.name; }

class FormulaOp final : public Function {
 public:
  FormulaOp(const PlantedBug& formulas, bool bug) : formulas_(formulas), bug_(bug) {}
  std::string_view name() const override { return formulas_.name; }
  Tensor forward(const TensorList& x) {
    const Tensor y = formulas_.forward(x);
    for (const auto& tensor : x) x_.emplace_back(*this) = tensor;
    y_ = y;
    return y;
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    TensorList x;
    for (const auto& saved : x_) x.push_back(saved.unpack());
    return formulas_.backward(x, y_.unpack(), grads[0], bug_);
  }

 private:
  const PlantedBug& formulas_;
  bool bug_;
  std::deque<SavedTensor> x_;  // a SavedTensor stays where it was made
  SavedTensor y_{*this};
};

Tensor transposed(const Tensor& a) { return contiguous(transpose(a, 0, 1)); }
Tensor row_sum(const Tensor& a) { return sum(a, -1, /*keepdim=*/true); }
Tensor row_mean(const Tensor& a) { return mean(a, -1, /*keepdim=*/true); }
Tensor softmax_grad(const Tensor& y, const Tensor& g) { return y * (g - row_sum(g * y)); }

Tensor ids_tensor(const Ids& ids) {
  return Tensor::from(ids, {static_cast<std::int64_t>(ids.size())});
}

// [N, V], a one at each id; rows of negative ids are zero.
Tensor one_hot(const Tensor& ids, std::int64_t size) {
  Tensor rows = Tensor::zeros({ids.numel(), size}, Dtype::kFloat64);
  const auto values = rows.mutable_data<double>();
  std::int64_t row = 0;
  for (const auto id : ids.data<std::int64_t>()) {
    if (id >= 0) values[static_cast<std::size_t>(row * size + id)] = 1;
    ++row;
  }
  return rows;
}

std::vector<PlantedBug> elementwise_bugs() {
  const TensorList one = {variable({2, 3})};
  const TensorList two = {variable({2, 3}, 1), variable({2, 3}, 2)};
  const auto product = [](auto& x) { return x[0] * x[1]; };
  const auto broadcast_sum = [](auto& x) { return x[0] + x[1]; };
  const auto workspace = std::make_shared<Tensor>();  // shared by all calls of the op
  return {
      {"DroppedFactor", two, product,
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         return {bug ? g : g * x[1], g * x[0]};
       }},
      {"GradientForTheWrongInput", two, product,
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         return {g * x[bug ? 0 : 1], g * x[bug ? 1 : 0]};
       },
       /*wrong_input=*/1},
      {"FactorTwo", one, [](auto& x) { return square(x[0]); },
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         return {(bug ? 1.0 : 2.0) * x[0] * g};
       }},
      {"SignError", two, [](auto& x) { return x[0] - x[1]; },
       [](auto&, auto&, auto& g, bool bug) -> TensorList {
         return {g, bug ? g : -g};
       },
       1},
      {"MissingTermOfAProductRule", one, [](auto& x) { return silu(x[0]); },
       [](auto& x, auto& y, auto& g, bool bug) -> TensorList {
         const Tensor s = sigmoid(x[0]);
         return {bug ? g * s : g * (s + y * (1 - s))};
       }},
      {"StaleSavedTensor", one,
       [=](auto& x) {
         *workspace = x[0];
         return square(x[0]);
       },
       [=](auto& x, auto&, auto& g, bool bug) -> TensorList {
         return {2 * (bug ? *workspace : x[0]) * g};
       }},
      {"MissingBroadcastReduction",
       {variable({2, 3}, 1), variable({3}, 2)},
       broadcast_sum,
       [](auto&, auto&, auto& g, bool bug) -> TensorList {
         return {g, bug ? g : sum(g, 0)};
       },
       1,
       /*wrong_size=*/true},
      {"WrongReductionAxis",
       {variable({3, 3}, 1), variable({3}, 2)},
       broadcast_sum,
       [](auto&, auto&, auto& g, bool bug) -> TensorList {
         return {g, sum(g, bug ? 1 : 0)};
       },
       1},
      {"MeanWithoutItsDenominator", one, [](auto& x) { return mean(x[0]); },
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         return {contiguous(expand(bug ? g : g / 6, x[0].shape()))};
       }},
  };
}

// Expert e has the rows from offsets[e] of x and of y; `others` is off by one expert.
PlantedBug expert_offset_bug(const std::string& name, std::size_t wrong_input) {
  const Ids offsets{0, 2, 2, 5}, others{0, 2, 5, 5};
  return {name,
          {variable({5, 3}, 1), variable({3, 3, 4}, 2)},
          [=](auto& x) { return grouped_matmul(x[0], x[1], offsets); },
          [=](auto& x, auto&, auto& g, bool bug) -> TensorList {
            const auto& of_x = bug && wrong_input == 0 ? others : offsets;
            const auto& of_weight = bug && wrong_input == 1 ? others : offsets;
            TensorList grads;
            for (std::size_t e = 0; e < 3; ++e) {
              const auto begin = of_weight[e], rows = of_weight[e + 1] - begin;
              grads.push_back(matmul(transposed(narrow(x[0], 0, begin, rows)),
                                     contiguous(narrow(g, 0, begin, rows))));
            }
            return {grouped_matmul(g, x[1], of_x, /*transpose_weight=*/true), stack(grads, 0)};
          },
          wrong_input};
}

std::vector<PlantedBug> matmul_bugs() {
  const Tensor ids = ids_tensor({2, 0, 2, 2});
  return {
      {"TransposedOperand",
       {variable({2, 3}, 1), variable({3, 3}, 2)},
       [](auto& x) { return matmul(x[0], x[1]); },
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         return {matmul(g, bug ? x[1] : transposed(x[1])), matmul(transposed(x[0]), g)};
       }},
      {"GradientOfTheFirstRowAlone",
       {variable({4, 3}, 1), variable({2, 3}, 2)},
       [](auto& x) { return linear(x[0], x[1]); },
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         const std::int64_t rows = bug ? 1 : 4;
         return {matmul(g, x[1]),
                 matmul(transposed(narrow(g, 0, 0, rows)), contiguous(narrow(x[0], 0, 0, rows)))};
       },
       1},
      expert_offset_bug("WrongExpertOffsetInTheInputGradient", 0),
      expert_offset_bug("WrongExpertOffsetInTheWeightGradient", 1),
      {"ForgottenAccumulationOfRepeatedIds",
       {variable({3, 4})},
       [=](auto& x) { return embedding(ids, x[0]); },
       [=](auto&, auto&, auto& g, bool bug) -> TensorList {
         // What is left when each id's row is stored instead of added: its last.
         return {matmul(transposed(one_hot(bug ? ids_tensor({-1, 0, -1, 2}) : ids, 3)), g)};
       }},
  };
}

// The Jacobian's columns sum to zero.
PlantedBug softmax_bug(const std::string& name, double grad_factor, bool row_sum_term) {
  return {name,
          {variable({2, 4})},
          [](auto& x) { return softmax(x[0]); },
          [=](auto&, auto& y, auto& g, bool bug) -> TensorList {
            const Tensor wrong = grad_factor * (row_sum_term ? softmax_grad(y, g) : y * g);
            return {bug ? wrong : softmax_grad(y, g)};
          }};
}

PlantedBug softmax_of_zeros() { return softmax_bug("SoftmaxWhoseBackwardReturnsZeros", 0, true); }

std::vector<PlantedBug> softmax_bugs() {
  const Tensor targets = ids_tensor({4, -100, 0});
  const auto topk = [](const Tensor& logits) { return topk_softmax(logits, 2, true); };
  return {
      softmax_of_zeros(),
      softmax_bug("SoftmaxWithoutItsRowSum", 1, false),
      {"CrossEntropyOfIgnoredTargets",
       {variable({3, 5})},
       [=](auto& x) { return cross_entropy(x[0], targets); },
       [=](auto& x, auto&, auto& g, bool bug) -> TensorList {
         const Tensor valid = Tensor::from(std::vector<double>{1, bug ? 1.0 : 0.0, 1}, {3, 1});
         return {g / 2 * (valid * softmax(x[0]) - one_hot(targets, 5))};
       }},
      {"TopKWeightsWithoutTheDerivativeOfTheirSum",
       {variable({3, 5})},
       [=](auto& x) { return topk(x[0]).weights; },
       [=](auto& x, auto& y, auto& g, bool bug) -> TensorList {
         // y = p[indices] / s: first to the chosen p, then to all of p, then to the logits.
         const Tensor chosen = view(one_hot(reshape(topk(x[0]).indices, {6}), 5), {3, 2, 5});
         const Tensor p = softmax(x[0]);
         const Tensor s = row_sum(sum(chosen * unsqueeze(p, 1), -1));
         const Tensor grad_chosen = (bug ? g : g - row_sum(g * y)) / s;
         return {softmax_grad(p, sum(chosen * unsqueeze(grad_chosen, -1), 1))};
       }},
  };
}

PlantedBug rms_norm_bug(const std::string& name, std::size_t wrong_input) {
  return {name,
          {variable({3, 4}, 1), variable({4}, 2)},
          [](auto& x) { return rms_norm(x[0], x[1], 1e-3); },
          [=](auto& x, auto&, auto& g, bool bug) -> TensorList {
            const Tensor r = rsqrt(row_mean(square(x[0])) + 1e-3), gw = g * x[1];
            const Tensor along_x = x[0] * r * r * row_mean(gw * x[0]);
            return {r * (bug && wrong_input == 0 ? gw : gw - along_x),
                    sum(bug && wrong_input == 1 ? g * x[0] : g * x[0] * r, 0)};
          },
          wrong_input};
}

// One head over rows [T, D].
PlantedBug attention_bug(const std::string& name, bool mask_left_out, bool scale_left_out) {
  const double scale = 0.7;
  return {name,
          {variable({4, 3}, 1), variable({4, 3}, 2), variable({4, 3}, 3)},
          [=](auto& x) {
            const auto head = [](const Tensor& a) { return view(a, {4, 1, 3}); };
            return view(attention(head(x[0]), head(x[1]), head(x[2]), Documents::one(4), scale),
                        {4, 3});
          },
          [=](auto& x, auto&, auto& g, bool bug) -> TensorList {
            Tensor mask = Tensor::zeros({4, 4}, Dtype::kFloat64);
            const auto values = mask.mutable_data<double>();
            for (std::size_t i = 0; i < 16 && !(bug && mask_left_out); ++i) {
              if (i % 4 > i / 4) values[i] = -std::numeric_limits<double>::infinity();
            }
            const Tensor p = softmax(matmul(x[0], transposed(x[1])) * scale + mask);  // [T, T]
            const Tensor grad_scores =
                softmax_grad(p, matmul(g, transposed(x[2]))) * (bug && scale_left_out ? 1 : scale);
            return {matmul(grad_scores, x[1]), matmul(transposed(grad_scores), x[0]),
                    matmul(transposed(p), g)};
          },
          /*wrong_input=*/mask_left_out ? 2U : 0U};
}

std::vector<PlantedBug> layer_bugs() {
  const RopeTable table = rope_table(ids_tensor({1, 4, 5}), 6, 100, Dtype::kFloat64);
  return {
      rms_norm_bug("RMSNormWithoutTheTermAlongX", 0),
      rms_norm_bug("RMSNormWeightWithoutRstd", 1),
      attention_bug("AttentionWithoutTheCausalMaskInBackward", true, false),
      attention_bug("AttentionWithoutTheScaleInBackward", false, true),
      {"RopeWithTheUnrotatedSign",
       {variable({3, 2, 6})},
       [=](auto& x) { return rope(x[0], table); },
       [=](auto&, auto&, auto& g, bool bug) -> TensorList {
         return {rope(g, {table.cos, bug ? table.sin : -table.sin})};
       }},
      {"SwiGLUWithGateAndUpSwapped",
       {variable({2, 6})},
       [](auto& x) { return swiglu(x[0]); },
       [](auto& x, auto&, auto& g, bool bug) -> TensorList {
         const auto gate_up = chunk(x[0], 2, 1);
         const Tensor s = sigmoid(gate_up[0]), a = gate_up[0] * s;
         const Tensor grad_gate = g * gate_up[1] * (s + a * (1 - s)), grad_up = g * a;
         return {bug ? cat({grad_up, grad_gate}, 1) : cat({grad_gate, grad_up}, 1)};
       }},
  };
}

std::vector<PlantedBug> planted_bugs() {
  std::vector<PlantedBug> bugs;
  for (const auto& list : {elementwise_bugs(), matmul_bugs(), softmax_bugs(), layer_bugs()}) {
    bugs.insert(bugs.end(), list.begin(), list.end());
  }
  return bugs;
}

// Calls the op twice, so that what one call leaves behind can hurt the other.
GradcheckResult check_op(const PlantedBug& formulas, bool bug, GradcheckOptions options,
                         const std::function<Tensor(const Tensor&)>& reduce = contiguous) {
  const auto op = [&](const TensorList& x) {
    return reduce(apply<FormulaOp>(made_with(formulas, bug), x));
  };
  const auto f = [&](const TensorList& in) -> TensorList {
    TensorList halved;
    for (const auto& tensor : in) halved.push_back(tensor / 2);
    return {op(in), op(halved)};
  };
  return gradcheck(f, formulas.inputs, options);
}

class PlantedBugs : public ::testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedBugs, AreCaughtInFullAndInFastMode) {
  const auto& bug = GetParam();
  for (const bool fast : {false, true}) {
    const auto result = check_op(bug, true, {.fast_mode = fast});
    EXPECT_EQ(result.kind, bug.wrong_size ? GradcheckFailure::kGradientSize
                                          : GradcheckFailure::kJacobianMismatch);
    EXPECT_NE(result.message.find(" input " + std::to_string(bug.wrong_input)), std::string::npos)
        << result.message;
  }
}

TEST_P(PlantedBugs, AsideGradientsMatchFiniteDifferences) {
  GradcheckOptions options;
  for (const bool fast : {false, true}) {
    options.fast_mode = fast;
    const auto result = check_op(GetParam(), false, options);
    EXPECT_TRUE(result) << result.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, PlantedBugs, ::testing::ValuesIn(planted_bugs()),
                         [](const auto& test) { return test.param.name; });

// Why gradcheck looks at elements and at random combinations: the sum is constant.
TEST(Gradcheck, AConstantCotangentWouldMissASoftmaxThatReturnsZeros) {
  const auto summed = [](const Tensor& y) { return sum(y); };
  for (const bool fast : {false, true}) {
    EXPECT_TRUE(check_op(softmax_of_zeros(), true, {.fast_mode = fast}, summed));
    EXPECT_FALSE(check_op(softmax_of_zeros(), true, {.fast_mode = fast}));
  }
}

}  // namespace
}  // namespace moegrad::ops::planted_bugs_test
