// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/checkpoint_policy.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::checkpoint_policy_test {
namespace {

using namespace test;

constexpr auto kSave = CheckpointPolicy::kMustSave, kRecompute = CheckpointPolicy::kMustRecompute,
               kPreferRecompute = CheckpointPolicy::kPreferRecompute;

CheckpointPolicyFunction recompute(std::string op) {
  return [op](const OpResult& result) { return result.op == op ? kRecompute : kSave; };
}

std::int64_t recomputed_ops() { return RankContext::current().counters().recomputed_ops; }
std::int64_t activation_bytes() {
  return RankContext::current().arena()->live()[MemoryTag::kActivations];
}

// As collectives do.
class RunsOnce final : public Function {
 public:
  std::string_view name() const override { return "runs_once"; }
  bool may_run_again() const override { return false; }
  Tensor forward(const Tensor& x) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return {grads[0]}; }
};

// It is constructed with what cannot be copied.
class HoldsAPointer final : public Function {
 public:
  explicit HoldsAPointer(std::unique_ptr<int> /*held*/) {}
  std::string_view name() const override { return "holds_a_pointer"; }
  Tensor forward(const Tensor& x) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return {grads[0]}; }
};

// It reads what belongs to others, which may be gone or changed by the time of backward.
template <class Held>
class Refers final : public Function {
 public:
  explicit Refers(Held /*held*/) {}
  std::string_view name() const override { return "refers"; }
  Tensor forward(const Tensor& x) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return {grads[0]}; }
};

// The identity, which counts how often it runs forward.
Tensor counted(const Tensor& x, std::shared_ptr<int> runs) {
  return unary(
      x, "counted",
      [runs](const Tensor& given) {
        ++*runs;
        return clone(given);
      },
      [](const Tensor& grad) { return grad; });
}

TEST(CheckpointPolicy, GivesTheBitsOfNoPolicyWhateverIsMadeAgain) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    const TensorList expected = products_of_each_other(dtype);
    for (const auto* op : {"mul", "add", "neither"}) {
      const CheckpointPolicyGuard guard(recompute(op));
      const auto before = recomputed_ops();
      const TensorList got = products_of_each_other(dtype);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << op << ' ' << i;
      }
      EXPECT_EQ(recomputed_ops() > before, std::string_view(op) != "neither");
    }
    const CheckpointPolicyGuard all([](const OpResult&) { return kRecompute; });
    const auto before = recomputed_ops();
    const TensorList got = products_of_each_other(dtype);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(bitwise_equal(got[i], expected[i]));
    // In each loop h, mul(h, v) and add(h, x), and for each h but the first its two summands.
    EXPECT_EQ(recomputed_ops() - before, 13);
  }
}

TEST(CheckpointPolicy, FreesAResultUntilBackwardReadsIt) {
  constexpr std::int64_t kBytes = 1000 * 8;
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  const auto before = activation_bytes();
  const auto bytes_after_forward = [&](Tensor& y) {
    y = mul(mul(mul(x, w), w), w);
    return activation_bytes() - before;
  };
  Tensor y;
  EXPECT_EQ(bytes_after_forward(y), 3 * kBytes);
  EXPECT_EQ(y.grad_fn()->packed_bytes(), 0);
  y = Tensor();
  const CheckpointPolicyGuard guard(recompute("mul"));
  EXPECT_EQ(bytes_after_forward(y), 1 * kBytes);  // y itself
  EXPECT_EQ(y.grad_fn()->packed_bytes(), kBytes);
  y.backward(w);
  EXPECT_TRUE(bitwise_equal(x.grad(), mul(mul(mul(w, w), w), w)));
  y = Tensor();
  x.set_grad({});
  EXPECT_EQ(activation_bytes(), before);
}

TEST(CheckpointPolicy, FreesAResultThatItsOwnOpHasSaved) {
  constexpr std::int64_t kBytes = 1000 * 8;
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  const auto before = activation_bytes();
  const auto run = [&](std::int64_t results) {
    const Tensor z = mul(softsign(x), w);
    EXPECT_EQ(activation_bytes() - before, results * kBytes);
    z.backward(w);
    const Tensor grad = x.grad();
    x.set_grad({});
    return grad;
  };
  const Tensor expected = run(2);
  const CheckpointPolicyGuard guard(recompute("softsign"));
  const auto again = recomputed_ops();
  EXPECT_TRUE(bitwise_equal(run(1), expected));
  EXPECT_EQ(recomputed_ops(), again + 1);
}

TEST(CheckpointPolicy, MakesAResultOnceForAllWhoHaveSavedItAndFreesItWithTheLast) {
  const auto runs = std::make_shared<int>(0);
  const Tensor x = randn({100}, 1).set_requires_grad(true);
  const Tensor w = randn({100}, 2).set_requires_grad(true);
  w.set_grad(Tensor::zeros({100}, Dtype::kFloat64));
  // What is alive when the gradient has come through one product, and through all three. Nobody
  // but the counted op reads the sum before it.
  const auto bytes_behind = [&] {
    const auto before = activation_bytes();
    std::vector<std::int64_t> bytes;
    const auto note = [&](const Tensor& grad) -> TensorList {
      bytes.push_back(activation_bytes() - before);
      return {grad};
    };
    Tensor sum;
    {
      const Tensor shared = counted(add(probe(x, "behind", note), w), runs);
      sum = add(mul(shared, w), add(mul(shared, w), probe(mul(shared, w), "between", note)));
    }
    sum.backward(w.detach());
    x.set_grad({});
    return bytes;
  };
  const auto expected = bytes_behind();
  EXPECT_EQ(*runs, 1);
  const CheckpointPolicyGuard guard(recompute("counted"));
  EXPECT_EQ(bytes_behind(), expected);
  EXPECT_EQ(*runs, 3);
}

TEST(CheckpointPolicy, MakesInputsAgainFirst) {
  const auto inner = std::make_shared<int>(0), outer = std::make_shared<int>(0);
  const Tensor x = randn({10}, 1).set_requires_grad(true);
  const auto run = [&] {
    const Tensor y = counted(counted(x, inner), outer);
    const Tensor z = mul(y, y);
    z.backward(x.detach());
    const Tensor grad = x.grad();
    x.set_grad({});
    return grad;
  };
  const Tensor expected = run();
  const CheckpointPolicyGuard guard(recompute("counted"));
  *inner = *outer = 0;
  EXPECT_TRUE(bitwise_equal(run(), expected));
  EXPECT_EQ(*outer, 2);
  EXPECT_EQ(*inner, 2);
}

TEST(CheckpointPolicy, GivesEachResultOfAnOpAndViewsOfIt) {
  const Tensor x = randn({12}, 1).set_requires_grad(true);
  const Tensor w = randn({6}, 2).set_requires_grad(true);
  const auto run = [&] {
    const auto parts = halves(x);
    const Tensor product = mul(mul(parts[1], w), mul(parts[0], w));
    const Tensor y = mul(second_half(product), mul(second_half(parts[1]), second_half(parts[0])));
    y.backward(randn({3}, 3));
    const TensorList grads{x.grad(), w.grad()};
    x.set_grad({});
    w.set_grad({});
    return grads;
  };
  const auto expected = run();
  const CheckpointPolicyGuard guard(recompute("halves"));
  const auto before = recomputed_ops();
  const auto got = run();
  EXPECT_EQ(recomputed_ops(), before + 1);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << i;
}

TEST(CheckpointPolicy, KeepsWhatIsEditedBeforeItIsSaved) {
  const auto runs = std::make_shared<int>(0);
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  const CheckpointPolicyGuard guard(recompute("counted"));
  Tensor y = counted(x, runs);
  {
    const NoGradGuard no_grad;
    fill_(y, 3);
  }
  mul(y, y).backward(Tensor::ones({4}, Dtype::kFloat64));
  EXPECT_EQ(*runs, 1);
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({4}, 6, Dtype::kFloat64)));
}

TEST(CheckpointPolicy, KeepsWhatIsSavedAfterItsGuard) {
  const auto runs = std::make_shared<int>(0);
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  const auto square = [&](bool within) {
    Tensor y, z;
    {
      const CheckpointPolicyGuard guard(recompute("counted"));
      y = counted(x, runs);
      if (within) z = mul(y, y);
    }
    if (!within) z = mul(y, y);
    z.backward(x.detach());
    return std::exchange(*runs, 0);
  };
  EXPECT_EQ(square(true), 2);
  EXPECT_EQ(square(false), 1);
  const CheckpointPolicyGuard other(recompute("counted"));
  EXPECT_EQ(square(false), 1);
}

TEST(CheckpointPolicy, RefusesAnInputThatHasBeenEditedSince) {
  const Tensor leaf = randn({4}, 1).set_requires_grad(true);
  const CheckpointPolicyGuard guard(recompute("counted"));
  Tensor x = mul(leaf, leaf);
  const Tensor y = counted(x, std::make_shared<int>(0)), z = mul(y, y);
  {
    const NoGradGuard no_grad;
    fill_(x, 3);
  }
  EXPECT_EQ(message_of<Error>([&] { z.backward(leaf.detach()); }),
            "counted: a tensor of shape [4] saved for backward has been modified in place since");
}

TEST(CheckpointPolicy, RefusesWhatCannotBeMadeAgain) {
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  const auto view = [&] {
    return unary(
        x, "same", [](const Tensor& given) { return given; },
        [](const Tensor& grad) { return grad; });
  };
  {
    const CheckpointPolicyGuard guard(recompute("same"));
    EXPECT_EQ(message_of<Error>(view),
              "same: result 0 must be recomputed by its policy, but cannot: it is a view of an "
              "input; return kPreferRecompute or kMustSave for it");
  }
  const auto once = [&] { return apply<RunsOnce>(x); };
  const auto held = [&] { return apply<HoldsAPointer>(made_with(std::make_unique<int>(1)), x); };
  for (const auto& [op, call] : {std::pair<const char*, std::function<Tensor()>>{"runs_once", once},
                                 {"holds_a_pointer", held}}) {
    const CheckpointPolicyGuard guard(recompute(op));
    EXPECT_TRUE(message_of<Error>(call).starts_with(std::string(op) + ": result 0 must be"));
  }
  {
    const CheckpointPolicyGuard guard(recompute("refers"));
    const double number = 1;
    const std::string text = "a";
    const auto refused = [&](const auto& other) {
      using Held = std::decay_t<decltype(other)>;
      return message_of<Error>([&] { apply<Refers<Held>>(made_with(other), x); });
    };
    for (const auto& message :
         {refused(&number), refused(std::string_view(text)), refused(std::cref(number)),
          refused(x.detach()), refused(TensorList{x.detach()})}) {
      EXPECT_TRUE(
          message.starts_with("refers: result 0 must be recomputed by its policy, but cannot: "
                              "an argument cannot be copied, or refers to"))
          << message;
    }
    EXPECT_NO_THROW(apply<Refers<std::string>>(made_with(text), x));
  }
  const CheckpointPolicyGuard guard([](const OpResult&) { return kPreferRecompute; });
  const auto before = recomputed_ops();
  mul(view(), view()).backward(x.detach());
  mul(once(), held()).backward(x.detach());
  const Tensor again =
      checkpoint([](const TensorList& in) { return TensorList{mul(in[0], in[0])}; }, {x})[0];
  mul(again, again).backward(x.detach());
  EXPECT_EQ(recomputed_ops(), before);
}

TEST(CheckpointPolicy, WorksInACheckpointAndTwiceWithTheGraphKept) {
  const Tensor x = randn({8}, 1).set_requires_grad(true);
  const auto body = [](const TensorList& in) { return TensorList{mul(mul(in[0], in[0]), in[0])}; };
  const auto run = [&] {
    const Tensor y = checkpoint(body, {x})[0], z = mul(mul(y, y), y);
    run_backward({z}, {x.detach()}, /*retain_graph=*/true);
    run_backward({z}, {x.detach()}, /*retain_graph=*/false);
    const Tensor grad = x.grad();
    x.set_grad({});
    return grad;
  };
  const Tensor expected = run();
  const CheckpointPolicyGuard guard(recompute("mul"));
  EXPECT_TRUE(bitwise_equal(run(), expected));
}

// What the policy runs, and what hooks of saved tensors run, it is not asked about.
TEST(CheckpointPolicy, MayRunOpsAndGoesWithHooksThatDo) {
  const Tensor x = randn({8}, 1).set_requires_grad(true);
  const CheckpointPolicyGuard guard([](const OpResult& result) {
    mul(result.tensor, result.tensor);
    return kPreferRecompute;
  });
  const SavedTensorHooksGuard hooks(
      {.pack = [](const TensorToSave& saved) -> std::any {
         return mul(saved.tensor, saved.tensor);
       },
       .unpack = [](const std::any& packed) { return std::any_cast<Tensor>(packed); }});
  EXPECT_NO_THROW(mul(mul(x, x), x).backward(x.detach()));
  EXPECT_EQ(message_of<ValueError>([] { CheckpointPolicyGuard{{}}; }),
            "checkpoint policy: must be a function, got an empty one");
}

TEST(CheckpointPolicy, IsAskedWithTheTapeOnByTheInnermostGuard) {
  const Tensor x = randn({8}, 1).set_requires_grad(true);
  std::vector<std::string> outer, inner;
  const auto notes = [](std::vector<std::string>& names) {
    return [&names](const OpResult& result) {
      names.push_back(std::string(result.op) + std::to_string(result.output));
      return kSave;
    };
  };
  const CheckpointPolicyGuard guard(notes(outer));
  halves(x);
  {
    const CheckpointPolicyGuard within(notes(inner));
    mul(x, x);
  }
  const NoGradGuard no_grad;
  mul(x, x);
  EXPECT_EQ(outer, (std::vector<std::string>{"halves0", "halves1"}));
  EXPECT_EQ(inner, (std::vector<std::string>{"mul0"}));
}

}  // namespace
}  // namespace moegrad::checkpoint_policy_test
