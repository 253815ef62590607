// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/micro_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/gradient_sum.h"
#include "framework/autograd/leaf_gradients.h"
#include "framework/tensor/tensor_impl.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::micro_batch_test {
namespace {

using namespace test;

enum class Recomputed { kNothing, kEachNode, kBothAtOnce };

/// Two weights, of which w is used by both nodes, first and last, as tied embeddings are.
struct Network {
  Tensor w = variable({64}, 2), v = variable({64}, 3);

  Tensor first(const Tensor& x) const { return mul(add(x, w), v); }
  Tensor second(const Tensor& h) const { return mul(mul(h, w), add(w, h)); }
  TensorList weights() const { return {w, v}; }
};

Tensor input(int micro_batch) { return randn({64}, 10 + static_cast<std::uint64_t>(micro_batch)); }
Tensor cotangent(int micro_batch) {
  return randn({64}, 20 + static_cast<std::uint64_t>(micro_batch));
}

Tensor node(const std::function<Tensor(const Tensor&)>& body, const Tensor& x, bool recomputed) {
  if (!recomputed) return body(x);
  return checkpoint([body](const TensorList& in) { return TensorList{body(in[0])}; }, {x})[0];
}

/// Both micro-batches node by node, member j under guard numbers[j].
TensorList run_in_turns(const Network& network, int pair, const std::vector<int>& numbers,
                        Recomputed recomputed) {
  const bool each = recomputed == Recomputed::kEachNode;
  const auto both = [&network, numbers, each](const TensorList& inputs) {
    TensorList hidden(2), out(2);
    for (std::size_t j = 0; j < 2; ++j) {
      const MicroBatchGuard guard(numbers[j]);
      hidden[j] = node([&](const Tensor& x) { return network.first(x); }, inputs[j], each);
    }
    for (std::size_t j = 0; j < 2; ++j) {
      const MicroBatchGuard guard(numbers[j]);
      out[j] = node([&](const Tensor& x) { return network.second(x); }, hidden[j], each);
    }
    return out;
  };
  const TensorList inputs = {input(2 * pair), input(2 * pair + 1)};
  return recomputed == Recomputed::kBothAtOnce ? checkpoint(both, inputs) : both(inputs);
}

/// The gradients of four micro-batches, one after the other.
TensorList one_by_one() {
  const Network network;
  GradientSum tree(network.weights());
  for (int m = 0; m < 4; ++m) {
    network.second(network.first(input(m))).backward(cotangent(m));
    tree.push();
  }
  return tree.take();
}

/// The same in two pairs.
TensorList in_pairs(const std::vector<int>& numbers, Recomputed recomputed) {
  const Network network;
  GradientSum tree(network.weights());
  for (int pair = 0; pair < 2; ++pair) {
    run_backward(run_in_turns(network, pair, numbers, recomputed),
                 {cotangent(2 * pair), cotangent(2 * pair + 1)}, /*retain_graph=*/false);
    tree.push();
  }
  return tree.take();
}

bool equal(const TensorList& a, const TensorList& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!bitwise_equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

TEST(MicroBatches, InOneBackwardGiveTheBitsOfOneAfterTheOther) {
  const auto expected = one_by_one();
  for (const auto recomputed :
       {Recomputed::kNothing, Recomputed::kEachNode, Recomputed::kBothAtOnce}) {
    EXPECT_TRUE(equal(in_pairs({0, 1}, recomputed), expected)) << static_cast<int>(recomputed);
    // Without guards the terms of both are added as they come.
    EXPECT_FALSE(equal(in_pairs({0, 0}, recomputed), expected)) << static_cast<int>(recomputed);
  }
}

TEST(MicroBatches, OfOneBackwardAreAddedBeforeAnOlderGradientIs) {
  const Network network;
  const auto run = [&](int pair) {
    run_backward(run_in_turns(network, pair, {0, 1}, Recomputed::kNothing),
                 {cotangent(2 * pair), cotangent(2 * pair + 1)}, /*retain_graph=*/false);
  };
  run(0);
  run(1);
  EXPECT_TRUE(equal({network.w.grad(), network.v.grad()}, one_by_one()));
}

TEST(MicroBatches, PassTheHooksOfALeafEach) {
  const auto halve = [](const Tensor& grad) {
    return test::edited(grad, [](std::span<double> values) {
      for (auto& value : values) value = value > 0 ? value / 2 : value;
    });
  };
  const auto gradient = [&](bool in_turns, std::vector<Tensor>& seen, int& accumulated) {
    const Network network;
    const auto hook = network.w.register_hook([&](const Tensor& grad) {
      seen.push_back(clone(grad));
      return halve(grad);
    });
    const auto post = network.w.register_post_accumulate_grad_hook(
        [&](const Tensor& /*leaf*/) { ++accumulated; });
    if (in_turns) {
      run_backward(run_in_turns(network, 0, {0, 1}, Recomputed::kEachNode),
                   {cotangent(0), cotangent(1)}, /*retain_graph=*/false);
    } else {
      for (int m : {0, 1}) network.second(network.first(input(m))).backward(cotangent(m));
    }
    return network.w.grad();
  };
  std::vector<Tensor> one_by_one, in_turns;
  int accumulated_one_by_one = 0, accumulated_in_turns = 0;
  const Tensor expected = gradient(false, one_by_one, accumulated_one_by_one);
  EXPECT_TRUE(bitwise_equal(gradient(true, in_turns, accumulated_in_turns), expected));
  EXPECT_EQ(one_by_one.size(), 2U);
  EXPECT_TRUE(equal(in_turns, one_by_one));
  EXPECT_EQ(accumulated_one_by_one, 2);
  EXPECT_EQ(accumulated_in_turns, 1);  // per backward
}

TEST(MicroBatches, GiveTheirBitsInTwoCallsToo) {
  const Network one, two;
  TensorList inputs;
  for (int m : {0, 1}) inputs.push_back(input(m).set_requires_grad(true));
  const auto forward = [&](const Network& network) {
    TensorList out(2);
    for (std::size_t j = 0; j < 2; ++j) {
      const MicroBatchGuard guard(static_cast<int>(j));
      out[j] = network.first(inputs[j]);
    }
    for (std::size_t j = 0; j < 2; ++j) {
      const MicroBatchGuard guard(static_cast<int>(j));
      out[j] = network.second(out[j]);
    }
    return out;
  };
  run_backward(forward(one), {cotangent(0), cotangent(1)}, /*retain_graph=*/false);
  backward_to_inputs(forward(two), {cotangent(0), cotangent(1)}, inputs).run();
  EXPECT_TRUE(equal({two.w.grad(), two.v.grad()}, {one.w.grad(), one.v.grad()}));
}

/// What comes to a leaf, and how often it was complete.
class Recorder final : public GradientAccumulator {
 public:
  explicit Recorder(const Tensor& leaf) : leaf_(leaf) {
    leaf_.impl()->leaf_state().accumulator = this;
  }
  ~Recorder() override { leaf_.impl()->leaf_state().accumulator = nullptr; }
  void add(Tensor grad, const GradientPlace& place) override {
    places.push_back(place);
    sum_.add(std::move(grad), place);
  }
  void complete() override {
    ++completed;
    taken = sum_.take().at(0);
  }

  std::vector<GradientPlace> places;
  int completed = 0;
  TensorList taken;

 private:
  Tensor leaf_;
  PlacedSum sum_;
};

TEST(MicroBatches, GoToTheAccumulatorOfALeafApart) {
  const Network network;
  const Recorder recorder(network.w);
  const auto& taken = recorder.taken;
  run_backward(run_in_turns(network, 0, {0, 2}, Recomputed::kNothing), {cotangent(0), cotangent(1)},
               /*retain_graph=*/false);
  ASSERT_EQ(taken.size(), 3U);
  EXPECT_FALSE(taken[1].defined());
  EXPECT_FALSE(network.w.grad().defined());
  for (int m : {0, 1}) {
    const Network alone;
    alone.second(alone.first(input(m))).backward(cotangent(m));
    EXPECT_TRUE(bitwise_equal(taken[m == 0 ? 0 : 2], alone.w.grad())) << m;
  }
  EXPECT_EQ(recorder.completed, 1);
  EXPECT_EQ(recorder.places.size(), 6U);  // uses of w
  EXPECT_TRUE(recorder.places.back().last_use);
  EXPECT_EQ(std::ranges::count(recorder.places, true, &GradientPlace::last_use), 1);
  const Tensor first = taken[0];
  network.second(network.first(input(0))).backward(cotangent(0));
  EXPECT_EQ(recorder.completed, 2);
  EXPECT_TRUE(bitwise_equal(taken[0], first));
}

// Parts of one micro-batch's tokens are a tree of their own, inside the micro-batch.
TEST(MicroBatches, HavePartsThatAreSummedFirst) {
  for (const auto& [micro_batches, recomputed] :
       {std::pair(1, false), {2, false}, {1, true}, {2, true}}) {
    const Network network;
    TensorList out, cotangents;
    TreeSum expected;
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      TreeSum parts;
      for (const int part : {0, 1, 2, 3}) {
        const int i = 4 * micro_batch + part;
        const Network alone;
        alone.second(alone.first(input(i))).backward(cotangent(i));
        parts.push(alone.w.grad());
        const MicroBatchGuard guard(micro_batch, part);
        const auto body = [&](const Tensor& x) { return network.second(network.first(x)); };
        out.push_back(node(body, input(i), recomputed));
        cotangents.push_back(cotangent(i));
      }
      expected.push(parts.take());
    }
    run_backward(out, cotangents, /*retain_graph=*/false);
    EXPECT_TRUE(bitwise_equal(network.w.grad(), expected.take())) << micro_batches << recomputed;
  }
}

TEST(MicroBatches, AreCountedWhileABackwardRuns) {
  EXPECT_EQ(backward_micro_batches(), 0);
  for (const int last : {0, 1, 3}) {
    const Network network;
    int found = -1;
    const auto hook = network.w.register_hook([&](const Tensor& /*grad*/) {
      found = backward_micro_batches();
      return Tensor();
    });
    const MicroBatchGuard guard(last);
    network.first(input(0)).backward(cotangent(0));
    EXPECT_EQ(found, last + 1);
  }
}

TEST(MicroBatches, GuardRefusesNumbersOutOfRange) {
  const auto message = [](int number) {
    return message_of<ValueError>([&] { const MicroBatchGuard guard(number); });
  };
  EXPECT_EQ(message(-1), "micro-batch guard: number must be in [0, 64), got -1");
  EXPECT_EQ(message(64), "micro-batch guard: number must be in [0, 64), got 64");
  EXPECT_EQ(message_of<ValueError>([] { const MicroBatchGuard guard(0, 64); }),
            "micro-batch guard: part must be in [0, 64), got 64");
  EXPECT_EQ(ThreadState::current().micro_batch.number, 0);
}

TEST(AwaitedGradient, IsOneThatTheBackwardHasYetToBring) {
  for (const bool recomputed : {false, true}) {
    const Tensor w = variable({3}, 1), x = variable({3}, 2);
    std::vector<bool> awaited;
    const auto probe = [&](const Tensor& at) {
      return test::probe(at, "probe", [&](const Tensor& grad) {
        awaited.push_back(is_gradient_awaited(w));
        return TensorList{grad};
      });
    };
    const auto block = [&](const TensorList& in) {
      return TensorList{probe(mul(probe(mul(probe(in[0]), w)), w))};
    };
    Tensor out = recomputed ? checkpoint(block, {x})[0] : block({x})[0];
    out = probe(mul(out, x));  // not w: the leaf waits for the block
    EXPECT_FALSE(is_gradient_awaited(w));
    out.backward(randn({3}, 5));
    // After the last use in the order of backward nothing more comes, recomputed or not.
    EXPECT_EQ(awaited, (std::vector<bool>{true, true, true, false})) << recomputed;
  }
}

}  // namespace
}  // namespace moegrad::micro_batch_test
