// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_saver.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/nested_values.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/framework/io/files.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::buffers_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

/// y = scale * (x - mean), where mean follows the means of what it is given; it counts its calls.
class Centered final : public Callable<Centered> {
 public:
  Centered() {
    register_parameter("scale", scale, InitialValues::ones());
    register_buffer("mean", mean);
    register_buffer("calls", calls);
    register_buffer("last", last, /*persistent=*/false);
  }
  Tensor forward(const Tensor& x) {
    const NoGradGuard no_grad;
    if (is_training()) {
      mean = mean * 0.5 + ops::mean(x, 0) * 0.5;
      ++calls.mutable_data<std::int64_t>()[0];
      last = x;
    }
    return scale * (x - mean);
  }
  Tensor scale = Tensor::ones({3}), mean = Tensor::zeros({3}),
         calls = Tensor::zeros({1}, Dtype::kInt64), last = Tensor::zeros({2, 3});
};

/// Two of them, a layer apart.
class Net final : public Callable<Net> {
 public:
  Net() {
    register_module("in", in);
    register_module("out", out);
  }
  Tensor forward(const Tensor& x) { return out(in(x)); }
  Centered in, out;
};

TEST(Buffers, AreNotTrainedAndStandInStateDictsIfPersistent) {
  const Net net;
  EXPECT_THAT(names_of(net.named_parameters()), ElementsAre("in.scale", "out.scale"));
  EXPECT_THAT(names_of(net.named_buffers()),
              ElementsAre("in.mean", "in.calls", "in.last", "out.mean", "out.calls", "out.last"));
  EXPECT_THAT(names_of(net.state_dict()),
              ElementsAre("in.scale", "out.scale", "in.mean", "in.calls", "out.mean", "out.calls"));
  EXPECT_FALSE(net.in.mean.requires_grad());
  EXPECT_EQ(net.in.mean.storage().name(), "in.mean");
}

TEST(Buffers, AreLoadedByNameInTheirOwnDtype) {
  Net net, other;
  net(randn({2, 3}, 1, Dtype::kFloat32));
  net(randn({2, 3}, 2, Dtype::kFloat32));
  other.load_state_dict(net.state_dict());
  EXPECT_TRUE(bitwise_equal(other.out.mean, net.out.mean));
  EXPECT_EQ(other.in.calls.item<std::int64_t>(), 2);
  EXPECT_TRUE(bitwise_equal(other.in.last, Tensor::zeros({2, 3})));  // not persistent

  auto state = net.state_dict();
  state.pop_back();
  EXPECT_EQ(message_of<Error>([&] { other.load_state_dict(state); }),
            "load_state_dict: missing key 'out.calls'");
  state.push_back({"out.calls", Tensor::zeros({2}, Dtype::kInt64)});
  EXPECT_EQ(message_of<ShapeError>([&] { other.load_state_dict(state); }),
            "load_state_dict: 'out.calls' must be [1], got [2]");
  state.back() = {"out.calls", Tensor::zeros({1}, Dtype::kInt64)};
  state.push_back({"in.last", Tensor::zeros({2, 3})});
  EXPECT_EQ(message_of<Error>([&] { other.load_state_dict(state); }),
            "load_state_dict: unexpected key 'in.last'");
}

// As torch's self.mean = other: the slot counts, not the tensor that was registered.
TEST(Buffers, MayBeReplacedByAssignment) {
  Centered layer;
  layer.eval();
  layer.mean = Tensor::of({1.0, 2.0, 3.0});
  EXPECT_TRUE(layer.named_buffers()[0].tensor.is(layer.mean));
  layer.last = Tensor();  // nothing to show, as None in torch
  EXPECT_THAT(names_of(layer.named_buffers()), ElementsAre("mean", "calls"));
}

TEST(Buffers, ASharedOneAppearsOnceUnderItsFirstName) {
  Holder first, second, root;
  Tensor mask = Tensor::ones({2}), same = mask;
  first.register_buffer("mask", mask);
  second.register_buffer("mask", same);
  root.register_module("first", first);
  root.register_module("second", second);
  EXPECT_THAT(names_of(root.named_buffers()), ElementsAre("first.mask"));
  EXPECT_EQ(mask.storage().name(), "first.mask");
}

TEST(Buffers, CountAsParametersInTheArena) {
  RankContext context;
  const RankContextGuard rank(context);
  Holder holder;
  Tensor mask = Tensor::ones({5});
  const auto before = context.arena()->live()[MemoryTag::kParameters];
  holder.register_buffer("mask", mask);
  EXPECT_EQ(context.arena()->live()[MemoryTag::kParameters] - before, 20);
}

TEST(Buffers, EachNeedsANameOfItsOwn) {
  Holder holder, child;
  Tensor weight = Tensor::zeros({2}), mask = Tensor::zeros({2}), other = Tensor::zeros({2});
  holder.register_parameter("weight", weight);
  holder.register_buffer("mask", mask);
  holder.register_module("child", child);
  const std::string ending =
      " of the module already; each child, parameter and buffer needs a name of its own";
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("weight", other); }),
            "register_buffer: 'weight' is the name of a parameter" + ending);
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("mask", other); }),
            "register_buffer: 'mask' is the name of a buffer" + ending);
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("child", other); }),
            "register_buffer: 'child' is the name of a child" + ending);
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_parameter("mask", other); }),
            "register_parameter: 'mask' is the name of a buffer" + ending);
  EXPECT_FALSE(other.requires_grad());
  Holder late;
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_module("mask", late); }),
            "register_module: 'mask' is the name of a buffer" + ending);
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("child.mask", other); }),
            "register_buffer: 'child.mask' and the child 'child' of the module must not lie within "
            "each other: full names could coincide");
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("", other); }),
            "register_buffer: a name in the module must have no empty part, got ''");
}

TEST(Buffers, MustBeDefinedAndWithoutGradient) {
  Holder holder;
  Tensor nothing, trained = Tensor::zeros({2}).set_requires_grad(true);
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { holder.register_buffer("mask", nothing); }),
            "register_buffer: 'mask' of the module must be a defined tensor; make it before "
            "registering it");
  const std::string expected =
      "register_buffer: 'mask' of the module must not require a gradient, because a buffer is not "
      "trained; detach() it, or register a parameter";
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("mask", trained); }), expected);
  Tensor result = trained * 2.0;
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_buffer("mask", result); }), expected);
  EXPECT_TRUE(holder.named_buffers().empty());
}

TEST(Buffers, MustStayWhereTheyWereRegistered) {
  Holder holder;
  std::vector<Tensor> masks = {Tensor::zeros({2})};
  holder.register_buffer("mask", masks[0]);
  masks.reserve(masks.capacity() + 1);  // moves them
  const std::string expected =
      "the module: buffer 'mask' is no longer where it was registered: its tensor must stay there "
      "as long as the module lives, and a vector that grows moves its elements";
  EXPECT_EQ(message_of<Error>([&] { holder.named_buffers(); }), expected);
  EXPECT_EQ(message_of<Error>([&] { holder.state_dict(); }), expected);
  EXPECT_EQ(message_of<Error>([&] { holder.to_empty(); }), expected);
  std::ostringstream out;
  EXPECT_EQ(message_of<Error>([&] { out << holder; }), expected);
  Tensor mask = Tensor::zeros({2});
  holder.register_buffer("mask", mask);  // the name is free
  EXPECT_EQ(holder.named_buffers().size(), 1U);
}

/// A buffer whose layer says what it begins with.
class Counted final : public Callable<Counted> {
 public:
  explicit Counted(const Tensor& begin, InitialValues initial = InitialValues::constant(2))
      : buffer(begin) {
    register_buffer("buffer", buffer, /*persistent=*/true, initial);
  }
  Tensor forward(const Tensor& x) { return x; }

  Tensor buffer;
};

TEST(Buffers, GetTheInitialValuesThatTheirLayerDeclares) {
  Counted layer(Tensor::zeros({2}));
  EXPECT_EQ(layer.buffer.data<float>()[1], 0.0F);
  init_weights(layer, 1, 0.02);
  EXPECT_EQ(layer.buffer.data<float>()[1], 2.0F);
  const auto on_meta = [] {
    const MetaGuard meta;
    return std::make_unique<Counted>(Tensor::zeros({2}));
  }();
  EXPECT_THROW(init_weights(*on_meta, 1, 0.02), Error);  // it has no bytes yet
  on_meta->to_empty();
  init_weights(*on_meta, 1, 0.02);
  EXPECT_EQ(on_meta->buffer.data<float>()[0], 2.0F);
  EXPECT_EQ(message_of<ValueError>([] { Counted(Tensor::zeros({2}, Dtype::kInt64)); }),
            "register_buffer: 'buffer' of the module must be float32 or float64 to have initial "
            "values, got int64");
}

TEST(Buffers, MadeOnTheMetaDeviceGetBytesAndMustBeFilled) {
  const auto layer = [] {
    const MetaGuard meta;
    return std::make_unique<Centered>();
  }();
  EXPECT_TRUE(layer->mean.is_meta());
  layer->to_empty();
  EXPECT_FALSE(layer->mean.is_meta());
  EXPECT_EQ(layer->mean.storage().tag(), MemoryTag::kParameters);
  EXPECT_EQ(message_of<Error>([&] { init_weights(*layer, 1, 0.02); }),
            "init_weights: buffer 'mean' was made on the meta device, where a constructor gives no "
            "values; fill it after to_empty(), declare values where it is registered, or make it "
            "under MetaGuard(false)");
  for (auto& [name, buffer] : layer->named_buffers()) fill_(buffer, 0.0);
  init_weights(*layer, 1, 0.02);
  EXPECT_TRUE(bitwise_equal(layer->scale.detach(), Tensor::ones({3})));
}

TEST(Buffers, AreChangedInTrainingAndReadInEvaluation) {
  Net net;
  const Tensor x = randn({2, 3}, 1, Dtype::kFloat32);
  net(x);
  net.eval();
  const Tensor mean = clone(net.in.mean);
  net(x);
  EXPECT_EQ(net.in.calls.item<std::int64_t>(), 1);
  EXPECT_TRUE(bitwise_equal(net.in.mean, mean));
  net.train();
  net(x);
  EXPECT_EQ(net.out.calls.item<std::int64_t>(), 2);
}

/// A running mean, written into or, as in PyTorch, assigned to.
class Running final : public Callable<Running> {
 public:
  explicit Running(bool assigns) : assigns_(assigns) {
    register_buffer("mean", mean);
    register_parameter("weight", weight_);
  }
  Tensor forward(const Tensor& x) {
    const NoGradGuard no_grad;
    const Tensor next = mean * 0.5 + ops::mean(x, 0) * 0.5;
    if (assigns_) {
      mean = next;
    } else {
      copy_(mean, next);
    }
    return x;
  }
  Tensor mean = Tensor::zeros({2});

 private:
  bool assigns_;
  Tensor weight_ = Tensor::zeros({2});
};

TEST(Buffers, ASaverWarnsOfOneThatHasBeenAssignedToSinceStateDict) {
  for (const bool assigns : {false, true}) {
    for (const bool taken_anew : {false, true}) {
      Running layer(assigns);
      const test::TemporaryFolder folder;
      std::vector<std::string> warnings;
      CheckpointOptions options;
      options.warn = [&](const std::string& warning) { warnings.push_back(warning); };
      CheckpointSaver saver(folder / "run", nullptr, options);
      const NamedTensors state = layer.state_dict();
      saver.save(1, {.tensors = state});
      layer(Tensor::ones({3, 2}));
      for (const std::int64_t step : {2, 3}) {
        saver.save(step, {.tensors = taken_anew ? layer.state_dict() : state});
      }
      saver.wait();
      const bool stale = assigns && !taken_anew;
      EXPECT_EQ(warnings.size(), stale ? 1U : 0U);
      if (stale && !warnings.empty()) {
        EXPECT_EQ(warnings[0],
                  "checkpoint: 'mean' is saved with old values, since no module holds this tensor "
                  "any more; call state_dict() for each save, or write into a buffer with copy_");
      }
      Tensor saved = Tensor::ones({2});
      open_newest_checkpoint(folder / "run", nullptr)
          ->read_all({{"mean", saved}, {"weight", Tensor::zeros({2})}});
      EXPECT_EQ(saved.data<float>()[0], stale ? 0.0F : 0.5F);
    }
  }
}

// A tensor outlives the module that has named it, and is not of its state_dict().
TEST(Buffers, ASaverDoesNotWarnOfATensorThatAModuleHasLeft) {
  Tensor mean;
  {
    Running layer(/*assigns=*/false);
    mean = layer.mean;
  }
  const test::TemporaryFolder folder;
  std::vector<std::string> warnings;
  CheckpointOptions options;
  options.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  CheckpointSaver saver(folder / "run", nullptr, options);
  saver.save(1, {.tensors = {{"mean", mean}}});
  saver.wait();
  EXPECT_THAT(warnings, ::testing::IsEmpty());
}

}  // namespace
}  // namespace moegrad::nn::buffers_test
