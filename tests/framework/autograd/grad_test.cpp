// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/grad.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/distributed/shard_spec.h"
#include "framework/tensor/hook_list.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::grad_test {
namespace {

using autograd::grad;
using namespace test;

TEST(Grad, IsWhatBackwardAddsToGradAndLeavesGradAlone) {
  const Tensor x = variable({3}, 1), y = variable({3}, 2), c = test::randn({3}, 3);
  const auto f = [&] { return mul(mul(x, y), x); };
  f().backward(c);
  const Tensor of_x = clone(x.grad()), of_y = clone(y.grad());
  int runs = 0;
  const auto handle = x.register_post_accumulate_grad_hook([&](const Tensor&) { ++runs; });
  const auto grads = grad({f()}, {x, y}, {c});
  EXPECT_TRUE(bitwise_equal(grads[0], of_x));
  EXPECT_TRUE(bitwise_equal(grads[1], of_y));
  EXPECT_TRUE(bitwise_equal(x.grad(), of_x));
  EXPECT_TRUE(bitwise_equal(y.grad(), of_y));
  EXPECT_EQ(runs, 0);
  // Afterwards backward goes to grad() again.
  x.set_grad({});
  f().backward(c);
  EXPECT_TRUE(bitwise_equal(x.grad(), of_x));
  EXPECT_EQ(runs, 1);
}

TEST(Grad, TouchesNoOtherLeaf) {
  const Tensor x = variable({2}, 1), y = variable({2}, 2);
  grad({mul(x, y)}, {x}, {Tensor::ones({2}, Dtype::kFloat64)});
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(y.grad().defined());
}

TEST(Grad, TakesResultsAsInputs) {
  const Tensor x = variable({2}, 1), y = variable({2}, 2), c = test::randn({2}, 3);
  const Tensor h = mul(x, y), z = mul(h, mul(h, x));
  const auto grads = grad({z}, {h, x, h}, {c}, {.retain_graph = true});
  EXPECT_TRUE(test::all_close(grads[0], mul(c, mul(test::add(h, h), x)).detach(), 1e-14, 0));
  EXPECT_TRUE(bitwise_equal(grads[0], grads[2]));
  const auto alone = grad({z}, {h}, {c}, {.retain_graph = true});
  EXPECT_TRUE(bitwise_equal(alone[0], grads[0]));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(y.grad().defined());
  z.backward(c);
  EXPECT_TRUE(bitwise_equal(x.grad(), grads[1]));
  // An output may be an input.
  EXPECT_TRUE(bitwise_equal(grad({x}, {x}, {c})[0], c));
  const Tensor again = mul(x, y);
  EXPECT_TRUE(bitwise_equal(grad({again}, {again}, {c})[0], c));
}

TEST(Grad, SumsOverOutputsAndTakesOneForSingleElements) {
  const Tensor x = Tensor::full({}, 3, Dtype::kFloat64).set_requires_grad(true);
  const auto grads = grad({mul(x, x), x}, {x});
  EXPECT_EQ(grads[0].item(), 7);
}

TEST(Grad, GoesThroughCheckpoints) {
  const Tensor x = variable({2}, 1), w = variable({2}, 2), c = test::randn({2}, 3);
  const auto body = [&](const TensorList& in) { return TensorList{mul(mul(in[0], w), w)}; };
  const auto want = grad(body({x}), {x, w}, {c});
  const auto got = grad(checkpoint(body, {x}), {x, w}, {c});
  EXPECT_TRUE(bitwise_equal(got[0], want[0]));
  EXPECT_TRUE(bitwise_equal(got[1], want[1]));
  EXPECT_FALSE(w.grad().defined());
  const Tensor constant = test::randn({2}, 4);
  const auto output = checkpoint(body, {constant})[0];
  const Tensor twice = mul(output, output);
  EXPECT_TRUE(test::all_close(grad({twice}, {output}, {c})[0],
                              mul(c, test::add(output, output)).detach(), 1e-14, 0));
}

TEST(Grad, RunsHooksOnGradients) {
  const Tensor x = variable({2}, 1), y = variable({2}, 2), c = test::randn({2}, 3);
  const auto doubled = [](const Tensor& g) { return test::add(g, g); };
  const auto plain = grad({mul(x, y)}, {x}, {c});
  const auto handle = x.register_hook(doubled);
  EXPECT_TRUE(bitwise_equal(grad({mul(x, y)}, {x}, {c})[0], test::add(plain[0], plain[0])));
}

TEST(Grad, SaysWhatItCannotDifferentiate) {
  const Tensor x = variable({2}, 1), y = variable({2}, 2), constant = test::randn({2}, 3);
  const Tensor c = test::randn({2}, 4);
  EXPECT_EQ(message_of<Error>([&] { grad({}, {x}); }), "grad: needs at least one output");
  EXPECT_EQ(message_of<Error>([&] { grad({constant}, {x}, {c}); }),
            "grad: output 0 must require a gradient");
  EXPECT_EQ(message_of<Error>([&] {
              grad({x, Tensor()}, {x});
            }),
            "grad: output 1 must require a gradient");
  EXPECT_EQ(message_of<Error>([&] {
              grad({mul(x, x)}, {x, constant}, {c});
            }),
            "grad: input 1 must require a gradient");
  EXPECT_EQ(message_of<Error>([&] {
              grad({mul(x, x)}, {x}, {c, c});
            }),
            "grad: needs a gradient for each of the 1 outputs, got 2");
  EXPECT_EQ(message_of<ShapeError>([&] { grad({mul(x, x)}, {x}); }),
            "backward: a gradient is needed for a root of more than one element, got [2]");
  EXPECT_EQ(message_of<Error>([&] {
              grad({mul(x, x)}, {x, y}, {c});
            }),
            "grad: no output depends on input 1; set allow_unused to have an undefined gradient "
            "for it");
  const auto grads = grad({mul(x, x)}, {y, x}, {c}, {.allow_unused = true});
  EXPECT_FALSE(grads[0].defined());
  EXPECT_TRUE(grads[1].defined());
  // What has thrown has left nothing behind.
  EXPECT_FALSE(x.grad().defined());
  mul(x, y).backward(c);
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(y.grad().defined());
}

TEST(Grad, FreesTheGraphUnlessItIsToStay) {
  const Tensor x = variable({2}, 1), c = test::randn({2}, 4);
  const Tensor y = mul(x, x);
  const auto first = grad({y}, {x}, {c}, {.retain_graph = true});
  EXPECT_TRUE(bitwise_equal(grad({y}, {x}, {c})[0], first[0]));
  EXPECT_THROW(grad({y}, {x}, {c}), Error);
}

TEST(Grad, RefusesAShardWhichIsInNoGraph) {
  const Tensor x = variable({2}, 1), shard = variable({2}, 2);
  shard.set_shard_spec(std::make_shared<const ShardSpec>(test::range_spec({4}, 0, 2)));
  EXPECT_EQ(message_of<Error>(
                [&] { grad({mul(x, x)}, {shard}, {test::randn({2}, 3)}, {.allow_unused = true}); }),
            "grad: input 0 must not be a shard of a parameter, got [2]: fully_shard computes with "
            "the gathered whole; call backward() and read grad()");
}

TEST(Grad, ThatIsSetIsCutAsItsTensorIsAndTheCallersStaysAsItWas) {
  const Tensor shard = variable({2}, 1), grad = test::randn({2}, 2);
  shard.set_shard_spec(std::make_shared<const ShardSpec>(test::range_spec({4}, 0, 2)));
  shard.set_grad(grad);
  EXPECT_EQ(shard.grad().shard_spec(), shard.shard_spec());
  EXPECT_TRUE(bitwise_equal(shard.grad(), grad));
  EXPECT_EQ(grad.shard_spec(), nullptr);
  const Tensor whole = variable({2}, 3);
  whole.set_grad(shard.grad());
  EXPECT_EQ(whole.grad().shard_spec(), nullptr);
  EXPECT_EQ(shard.grad().shard_spec(), shard.shard_spec());
}

}  // namespace
}  // namespace moegrad::grad_test
