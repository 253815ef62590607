// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::optim::optimizer_test {
namespace {

TEST(Optimizer, AStepIsAPhaseOnTheOptimizerLane) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor parameter = test::variable({4});
  parameter.set_grad(test::randn({4}, 2));
  AdamW adamw({{"p", parameter}}, AdamW::Config());
  SGD sgd({{"p", parameter}}, SGD::Config());
  context.spans().start(0);
  adamw.step();
  sgd.step();
  const auto spans = context.spans().spans();
  ASSERT_EQ(spans.size(), 2U);
  for (const auto& span : spans) {
    EXPECT_EQ(span.name, "optimizer");
    EXPECT_EQ(span.kind, SpanKind::kPhase);
    EXPECT_EQ(span.lane, Lane::kOptimizer);
  }
}

// --- steps that would train nothing

TEST(Optimizer, NeedsAParameter) {
  EXPECT_EQ(test::message_of<ValueError>([] { SGD(NamedTensors(), SGD::Config()); }),
            "optimizer: at least one parameter is needed, got none");
  EXPECT_EQ(
      test::message_of<ValueError>([] { AdamW(std::vector<ParamGroup>(2), AdamW::Config()); }),
      "optimizer: at least one parameter is needed, got none");
}

TEST(Optimizer, AStepNeedsAGradient) {
  const Tensor p = test::variable({4}), q = test::variable({4}, 2), empty = test::variable({0});
  SGD optimizer({{"p", p}, {"q", q}}, {.lr = 0.1});
  const std::string refusal =
      "step: at least one parameter must have a gradient, got none; if optimizers take turns, step "
      "the one whose parameters backward has reached";
  EXPECT_EQ(test::message_of<Error>([&] { optimizer.step(); }), refusal);
  q.set_grad(test::randn({4}, 2));
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_EQ(test::message_of<Error>([&] { optimizer.step(); }), refusal);
  // What a rank has of parameters with fewer rows than ranks.
  AdamW without_rows({{"empty", empty}}, AdamW::Config());
  empty.set_grad(Tensor::zeros({0}, Dtype::kFloat64));
  without_rows.step();
}

using namespace test;

std::vector<double> rates(const Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.groups()) rates.push_back(group.lr.value_or(-1));
  return rates;
}

// As PyTorch does it: torch.optim.SGD([{"params": [a], "lr": 0.5}, {"params": [b]}], lr=0.25).
TEST(Optimizer, AGroupTakesWhatItLeavesOutFromTheConfiguration) {
  const Tensor a = test::variable({2}), b = test::variable({2}, 2);
  const std::vector<ParamGroup> groups = {{.parameters = {{"a", a}}, .lr = 0.5},
                                          {.parameters = {{"b", b}}, .weight_decay = 0.0}};
  const auto decays = [](const Optimizer& optimizer) {
    std::vector<double> values;
    for (const auto& group : optimizer.groups()) values.push_back(group.weight_decay.value_or(-1));
    return values;
  };
  const SGD sgd(groups, SGD::Config{.lr = 0.25, .weight_decay = 0.125});
  EXPECT_EQ(rates(sgd), (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(decays(sgd), (std::vector<double>{0.125, 0.0}));
  AdamW adamw(groups, AdamW::Config());
  EXPECT_EQ(rates(adamw), (std::vector<double>{0.5, 1e-3}));
  EXPECT_EQ(decays(adamw), (std::vector<double>{0.01, 0.0}));
  adamw.scale_lr(0.5);
  EXPECT_EQ(rates(adamw), (std::vector<double>{0.25, 5e-4}));
}

TEST(Optimizer, WarnsOnceOfLayersThatNobodyHasInitialised) {
  const auto warning_of = [](const NamedTensors& parameters) {
    for (const auto& [name, parameter] : parameters) {
      parameter.set_grad(Tensor::zeros(parameter.shape(), parameter.dtype()));
    }
    SGD optimizer(parameters, {.lr = 0.1});
    ::testing::internal::CaptureStderr();
    optimizer.step();
    optimizer.step();
    return ::testing::internal::GetCapturedStderr();
  };
  const auto zeros = [](const Shape& shape) {
    Tensor parameter = Tensor::zeros(shape, Dtype::kFloat64);
    parameter.set_requires_grad(true);
    return parameter;
  };
  const Tensor norm = test::variable({3});
  const auto text = warning_of(
      {{"a", zeros({2, 3})}, {"norm", norm}, {"b", zeros({3, 2})}, {"c", zeros({0, 2})}});
  EXPECT_NE(text.find("warning [rank 0] step: all 2 matrices hold zeros alone, so that next to "
                      "nothing is trained; fill them before, as nn::init_weights(model, seed, "
                      "0.02) does\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("step:", text.find("step:") + 1), std::string::npos) << text;
  EXPECT_EQ(warning_of({{"a", zeros({2, 3})}}), "");  // a regression may well begin at zero
  EXPECT_EQ(warning_of({{"a", zeros({2, 3})}, {"b", test::variable({2, 3})}}), "");
}

TEST(Optimizer, GroupsHaveRatesOfTheirOwn) {
  const Tensor a = test::variable({2}), b = test::variable({2}, 2);
  SGD optimizer({ParamGroup{.parameters = {{"a", a}}, .lr = 0.5},
                 ParamGroup{.parameters = {{"b", b}}, .lr = 0.125}},
                SGD::Config{});
  optimizer.set_lr(1, 0.25);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.5, 0.25}));
  // The step uses them: p - lr g.
  Tensor expected_a = clone(a), expected_b = clone(b);
  for (auto& value : expected_a.mutable_data<double>()) value -= 0.5;
  for (auto& value : expected_b.mutable_data<double>()) value -= 0.25;
  a.set_grad(Tensor::ones({2}, Dtype::kFloat64));
  b.set_grad(Tensor::ones({2}, Dtype::kFloat64));
  optimizer.step();
  EXPECT_TRUE(bitwise_equal(a.detach(), expected_a));
  EXPECT_TRUE(bitwise_equal(b.detach(), expected_b));
  // scale_lr starts from the rates of the constructor, however often it is called.
  for (const double factor : {0.0, 0.5, 2.0, 1.0}) {
    optimizer.scale_lr(factor);
    EXPECT_EQ(rates(optimizer), (std::vector<double>{0.5 * factor, 0.125 * factor}));
  }
  optimizer.set_lr(0.75);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.75, 0.75}));
  optimizer.scale_lr(0.5);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.25, 0.0625}));
}

TEST(Optimizer, RefusesRatesThatAreNone) {
  const Tensor a = test::variable({2});
  SGD optimizer({{"a", a}}, SGD::Config{.lr = 0.5});
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message_of<ValueError>([&] { optimizer.set_lr(1, 0.25); }),
            "set_lr: group must be in [0, 1), got 1");
  EXPECT_EQ(message_of<ValueError>([&] { optimizer.set_lr(0, -1.0); }),
            "set_lr: lr must be finite and >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([&] { optimizer.set_lr(kInfinity); }),
            "set_lr: lr must be finite and >= 0, got inf");
  EXPECT_EQ(message_of<ValueError>([&] { optimizer.scale_lr(-0.5); }),
            "scale_lr: factor must be finite and >= 0, got -0.5");
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.5}));
}

void take_steps(AdamW& optimizer, const Tensor& parameter, int from, int to) {
  for (int step = from; step < to; ++step) {
    parameter.set_grad(test::randn(parameter.shape(), static_cast<std::uint64_t>(step)));
    optimizer.step();
  }
}

NamedTensors copied(const Optimizer& optimizer) {
  NamedTensors state;
  for (const auto& [name, tensor] : optimizer.state_dict()) state.push_back({name, clone(tensor)});
  return state;
}

TEST(Optimizer, ALoadedStateGoesOnAsTheOldOne) {
  const Tensor straight = test::variable({4}), resumed = test::variable({4});
  AdamW first({{"p", straight}}, AdamW::Config{}), before({{"p", resumed}}, AdamW::Config{});
  take_steps(first, straight, 1, 7);
  take_steps(before, resumed, 1, 4);
  AdamW after({{"p", resumed}}, AdamW::Config{});
  auto state = copied(before);
  std::ranges::reverse(state);  // by name, not by position
  after.load_state_dict(state);
  take_steps(after, resumed, 4, 7);
  EXPECT_TRUE(bitwise_equal(straight.detach(), resumed.detach()));
  EXPECT_EQ(test::integers(after.states()[0].steps), (std::vector<std::int64_t>{6}));
}

TEST(Optimizer, LoadsResultsOnTheTape) {
  const Tensor p = test::variable({4});
  SGD optimizer({{"p", p}}, {.momentum = 0.5});
  const Tensor leaf = test::variable({4}, 2);
  optimizer.load_state_dict({{"p.momentum_buffer", leaf.slice(0, 0, 4)}});
  EXPECT_TRUE(bitwise_equal(optimizer.state_dict()[0].tensor, leaf.detach()));
}

TEST(Optimizer, LoadsAllOfAStateOrNothing) {
  const Tensor p = test::variable({4});
  AdamW optimizer({{"p", p}}, AdamW::Config{});
  take_steps(optimizer, p, 1, 3);
  const auto before = copied(optimizer);
  const auto refused = [&]<class E>(std::type_identity<E>, const auto& change) {
    NamedTensors state;
    for (const auto& [name, tensor] : before) {
      state.push_back({name, tensor.dtype() == Dtype::kInt64
                                 ? clone(tensor)
                                 : Tensor::ones(tensor.shape(), tensor.dtype())});
    }
    change(state);
    const auto message = message_of<E>([&] { optimizer.load_state_dict(state); });
    const auto now = optimizer.state_dict();
    for (std::size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(now[i].tensor, before[i].tensor)) << now[i].name;
    }
    return message;
  };
  constexpr std::type_identity<Error> kError;
  EXPECT_EQ(refused(kError, [](auto& state) { state.pop_back(); }),
            "optimizer load_state_dict: missing key 'p.exp_avg_sq'");
  EXPECT_EQ(refused(kError,
                    [](auto& state) {
                      state.push_back({"q.step", state[0].tensor});
                    }),
            "optimizer load_state_dict: unexpected key 'q.step'");
  EXPECT_EQ(refused(kError, [](auto& state) { state.push_back(state[0]); }),
            "optimizer load_state_dict: key 'p.step' is given twice");
  EXPECT_EQ(refused(std::type_identity<ShapeError>(),
                    [](auto& state) { state[2].tensor = Tensor::ones({5}, Dtype::kFloat64); }),
            "optimizer load_state_dict: 'p.exp_avg_sq' must be [4], got [5]");
  EXPECT_EQ(refused(std::type_identity<DtypeError>(),
                    [](auto& state) { state[2].tensor = Tensor::ones({4}); }),
            "optimizer load_state_dict: 'p.exp_avg_sq' must be float64, got float32");
  EXPECT_EQ(refused(std::type_identity<UndefinedTensorError>(),
                    [](auto& state) { state[2].tensor = Tensor(); }),
            "optimizer load_state_dict: 'p.exp_avg_sq' must be a defined tensor");
}

TEST(Optimizer, LoadsNoShardOfAnotherPart) {
  const auto part = [](std::int64_t begin) {
    return std::make_shared<const ShardSpec>(test::range_spec({8}, begin, begin + 4));
  };
  const Tensor p = test::variable({4});
  p.set_shard_spec(part(0));
  SGD optimizer({{"p", p}}, SGD::Config{.momentum = 0.5});
  Tensor buffer = Tensor::ones({4}, Dtype::kFloat64);
  buffer.set_shard_spec(part(4));
  EXPECT_EQ(message_of<ValueError>([&] {
              optimizer.load_state_dict({{"p.momentum_buffer", buffer}});
            }),
            "optimizer load_state_dict: 'p.momentum_buffer' must be [0, 4) of dimension 0 of [8], "
            "got [4, 8) of dimension 0 of [8]");
  buffer.set_shard_spec(nullptr);
  EXPECT_EQ(message_of<ValueError>([&] {
              optimizer.load_state_dict({{"p.momentum_buffer", buffer}});
            }),
            "optimizer load_state_dict: 'p.momentum_buffer' must be [0, 4) of dimension 0 of [8], "
            "got all of [4]");
  buffer.set_shard_spec(part(0));
  optimizer.load_state_dict({{"p.momentum_buffer", buffer}});
  EXPECT_TRUE(bitwise_equal(optimizer.buffers()[0].tensor, buffer));
  EXPECT_EQ(optimizer.buffers()[0].tensor.shard_spec(), p.shard_spec());
}

TEST(Optimizer, RefusesParametersThatItCouldNotUpdateOrSave) {
  const auto refusal = [](auto type, const NamedTensors& parameters) {
    using E = typename decltype(type)::type;
    return message_of<E>([&] { SGD(parameters, SGD::Config{}); });
  };
  const Tensor w = test::variable({2}), other = test::variable({2}, 2);
  EXPECT_EQ(refusal(std::type_identity<ValueError>(), {{"weight", w}, {"weight", other}}),
            "optimizer: two parameters are named 'weight', but their states are saved by name; put "
            "the name of its module in front of each");
  EXPECT_EQ(refusal(std::type_identity<Error>(), {{"w", test::mul(w, w)}}),
            "optimizer: parameter 'w' must be a leaf of the tape, got a result of ops, which gets "
            "no gradient of its own; detach() it");
  EXPECT_EQ(refusal(std::type_identity<UndefinedTensorError>(), {{"w", Tensor()}}),
            "optimizer: parameter 'w' must be a defined tensor");
  EXPECT_EQ(refusal(std::type_identity<DtypeError>(), {{"w", Tensor::arange(2)}}),
            "optimizer: parameter 'w' must be float32 or float64, got int64");
  EXPECT_EQ(refusal(std::type_identity<LayoutError>(),
                    {{"w", Tensor::as_strided(Tensor::zeros({4}), {2}, {2}, 0)}}),
            "optimizer: parameter 'w' must be contiguous, got shape [2] with strides [2]; clone() "
            "makes a copy that is");
  for (const double rate :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(SGD({{"w", w}}, SGD::Config{.weight_decay = rate}), ValueError) << rate;
  }
}

TEST(Optimizer, AStridedGradientThatIsSetCountsLikeAnyOther) {
  const Tensor w = test::variable({2, 2}), start = clone(w.detach()), g = test::randn({2, 2}, 2);
  w.set_grad(Tensor::as_strided(g, {2, 2}, {1, 2}, 0));
  EXPECT_TRUE(w.grad().is_contiguous());
  SGD optimizer({{"w", w}}, SGD::Config{.lr = 1});
  optimizer.step();
  for (std::size_t i = 0; i < 4; ++i) {
    const auto transposed = i % 2 * 2 + i / 2;
    EXPECT_EQ(w.data<double>()[i], start.data<double>()[i] - g.data<double>()[transposed]);
  }
}

TEST(Optimizer, LoadsNoCountOfStepsThatIsNone) {
  AdamW optimizer({{"w", test::variable({2})}}, AdamW::Config{});
  for (const std::int64_t count :
       {std::int64_t{-1}, (std::int64_t{1} << 53) + 1, std::numeric_limits<std::int64_t>::min()}) {
    auto state = optimizer.state_dict();
    for (auto& [name, tensor] : state) {
      if (name == "w.step") tensor = Tensor::from(std::vector{count}, {1});
    }
    EXPECT_EQ(message_of<ValueError>([&] { optimizer.load_state_dict(state); }),
              "optimizer load_state_dict: 'w.step' must count steps, from 0 to 2^53, got " +
                  std::to_string(count));
  }
}

}  // namespace
}  // namespace moegrad::optim::optimizer_test
