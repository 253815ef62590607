// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/distributed/process_group.h"
#include "framework/distributed/to_local.h"
#include "framework/runtime/grad_mode.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "optim/sgd.h"
#include "tests/fsdp/random_programs.h"

// Random sequences of what a training program does, in any order, with real numbers. The unsharded
// program runs the same sequence and forms the same tree over the micro-batches of each backward,
// so that 1, 2 and 4 ranks give its bits. Where it throws, the sharded one must throw the same.
//
// Note [Sequences that are compared]
// Every forward calls every block once: a group that is left twice by one backward reduces twice,
// and its sum has other leaves than micro-batches. Every forward uses every parameter, so a step
// changes all of them: the version that a group keeps of its shards then says as much as the
// versions of its parameters.

namespace moegrad::test {

enum class SequenceOp : std::uint8_t {
  kForward,    // on the tape; the graph of an earlier one that backward has not used is dropped
  kBackward,   // of that graph
  kClip,       // gradients
  kStep,       // of the optimizer
  kZeroGrad,   // of the module or the optimizer
  kLoad,       // other values
  kSave,       // a state dict
  kEval,       // without tape
  kTapedEval,  // with it, and nobody runs a backward of it
  kAverage,    // evaluates with other weights in place, and puts the own ones back
  kByHand,     // sharded only: unshard, reshard, waits and switches
};

struct Step {
  SequenceOp op = SequenceOp::kForward;
  std::uint64_t draw = 0;  // what is random about it
};

struct Sequence {
  std::uint64_t seed = 0;
  std::int64_t width = 4, blocks = 1;
  std::vector<bool> recomputed = {};
  std::vector<int> group = {};  // of each block, as Plan::group
  std::vector<std::size_t> calls = {};
  bool adamw = false;
  std::vector<Step> steps = {};
};

inline Sequence make_sequence(std::uint64_t seed) {
  Draws draw(seed + 7'000'000);
  Sequence sequence;
  sequence.seed = seed;
  sequence.width = 3 + draw.below(4);
  sequence.blocks = 1 + draw.below(3);
  for (std::int64_t i = 0; i < sequence.blocks; ++i) {
    sequence.recomputed.push_back(draw.one_in(4));
    sequence.group.push_back(static_cast<int>(draw.below(4)));
    sequence.calls.push_back(static_cast<std::size_t>(i));
  }
  sequence.adamw = draw.one_in(2);
  using enum SequenceOp;
  const std::vector<SequenceOp> often = {
      kForward, kForward,   kForward,   kForward, kBackward, kBackward, kBackward, kBackward, kClip,
      kClip,    kStep,      kStep,      kStep,    kZeroGrad, kZeroGrad, kLoad,     kSave,     kEval,
      kEval,    kTapedEval, kTapedEval, kAverage, kByHand,   kByHand,   kByHand};
  const auto length = 8 + draw.below(16);
  for (std::int64_t i = 0; i < length; ++i) {
    const auto op = often[static_cast<std::size_t>(draw.below(std::ssize(often)))];
    sequence.steps.push_back({op, static_cast<std::uint64_t>(draw.below(1 << 20))});
  }
  return sequence;
}

/// y = x + silu(x W^T)
class RealBlock final : public nn::Callable<RealBlock> {
 public:
  explicit RealBlock(Tensor weight) : linear_(std::move(weight)) {
    register_module("linear", linear_);
  }
  Tensor forward(const Tensor& x) { return x + ops::silu(linear_(x)); }

 private:
  nn::Linear linear_;
};

class RealNet final : public nn::Callable<RealNet> {
 public:
  explicit RealNet(const Sequence& sequence) : sequence_(sequence) {
    for (std::int64_t i = 0; i < sequence.blocks; ++i) {
      const Shape shape = {sequence.width, sequence.width};
      const Tensor weight =
          ops::mul(randn(shape, sequence.seed * 8 + static_cast<std::uint64_t>(i)), 0.3);
      blocks.push_back(std::make_unique<RealBlock>(weight));
      register_module("block" + std::to_string(i), *blocks.back());
    }
    scale_ = randn({sequence.width}, sequence.seed * 8 + 7);
    register_parameter("scale", scale_, nn::InitialValues::ones());
  }

  Tensor forward(const Tensor& x) {
    Tensor y = ops::mul(x, scale_);
    for (const auto index : sequence_.calls) {
      auto& block = *blocks[index];
      if (sequence_.recomputed[index]) {
        y = checkpoint([&block](const TensorList& in) -> TensorList { return {block(in[0])}; },
                       {y})[0];
      } else {
        y = block(y);
      }
    }
    return ops::mul(ops::sum(ops::tanh(y)), 0.25);
  }

  std::vector<std::unique_ptr<RealBlock>> blocks;

 private:
  Sequence sequence_;
  Tensor scale_;
};

/// What one step of a sequence gave.
struct Outcome {
  std::string error;           // what it threw
  std::vector<double> losses;  // of leaves
  double norm = 0.0;
  NamedTensors values;  // parameters, gradients, and what the optimizer keeps
};

/// Runs a sequence; the leaves of each forward are [begin, end).
class SequenceRun {
 public:
  SequenceRun(const Sequence& sequence, std::int64_t begin, std::int64_t end)
      : sequence_(sequence), net_(sequence), begin_(begin), end_(end) {}
  virtual ~SequenceRun() = default;

  Outcome run(const Step& step) {
    Outcome outcome;
    try {
      run(step, outcome);
    } catch (const CollectiveError&) {
      throw;  // the ranks do not do the same
    } catch (const Error& error) {
      outcome.error = error.what();
      if (step.op != SequenceOp::kBackward) return outcome;
      recover();
      pending_.clear();
      net_.zero_grad();
    }
    return outcome;
  }

 protected:
  /// After sharding.
  void make_optimizer() {
    if (sequence_.adamw) {
      optimizer_ =
          std::make_unique<optim::AdamW>(net_.named_parameters(), optim::AdamW::Config{.lr = 0.02});
    } else {
      optimizer_ = std::make_unique<optim::SGD>(net_.named_parameters(),
                                                optim::SGD::Config{.lr = 0.05, .momentum = 0.5});
    }
  }

  /// Adds the gradients of `losses` to those of the parameters.
  virtual void backward(const TensorList& losses) = 0;
  virtual void recover() {}
  virtual void before_write(Draws& /*draw*/) {}
  virtual void by_hand(Draws& /*draw*/) {}
  /// `values` are whole.
  virtual void load(const NamedTensors& values, Draws& draw) = 0;

  const Sequence sequence_;
  RealNet net_;
  std::unique_ptr<optim::Optimizer> optimizer_;

 private:
  void run(const Step& step, Outcome& outcome) {
    Draws draw(step.draw + 9'000'000);
    switch (step.op) {
      case SequenceOp::kForward:
        pending_ = forward(step.draw, outcome);
        return;
      case SequenceOp::kBackward:
        if (!pending_.empty()) backward(std::exchange(pending_, {}));
        return note_values(outcome);
      case SequenceOp::kClip:
        outcome.norm = optim::clip_grad_norm(net_.named_parameters(), draw.one_in(2) ? 0.1 : 1e3);
        return note_values(outcome);
      case SequenceOp::kStep:
        before_write(draw);
        optimizer_->step();
        return note_values(outcome);
      case SequenceOp::kZeroGrad:
        return draw.one_in(2) ? net_.zero_grad() : optimizer_->zero_grad();
      case SequenceOp::kLoad:
        before_write(draw);
        load(other_values(step.draw), draw);
        return note_values(outcome);
      case SequenceOp::kSave:
        outcome.values = net_.state_dict();
        for (auto& [name, value] : outcome.values) copy_out(value);
        return;
      case SequenceOp::kEval: {
        const NoGradGuard no_grad;
        forward(step.draw, outcome);
        return;
      }
      case SequenceOp::kTapedEval:
        forward(step.draw, outcome);
        return;
      case SequenceOp::kAverage:
        before_write(draw);
        return evaluate_average(step.draw, outcome);
      case SequenceOp::kByHand:
        return by_hand(draw);
    }
  }

  TensorList forward(std::uint64_t draw, Outcome& outcome) {
    TensorList losses;
    for (auto leaf = begin_; leaf < end_; ++leaf) {
      const Tensor x = randn({2, sequence_.width}, draw * 8 + static_cast<std::uint64_t>(leaf));
      losses.push_back(net_(x));
      outcome.losses.push_back(losses.back().item());
    }
    return losses;
  }

  void evaluate_average(std::uint64_t draw, Outcome& outcome) {
    NamedTensors own;
    for (const auto& [name, parameter] : net_.named_parameters()) {
      own.push_back({name, clone(parameter.detach())});
      Tensor live = parameter.detach();
      copy_(live, ops::mul(to_local(own.back().tensor), 0.5));
    }
    {
      const NoGradGuard no_grad;
      forward(draw, outcome);
    }
    const auto parameters = net_.named_parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      Tensor live = parameters[i].tensor.detach();
      copy_(live, own[i].tensor);
    }
  }

  NamedTensors other_values(std::uint64_t draw) const {
    NamedTensors values;
    const RealNet whole(sequence_);
    for (const auto& [name, parameter] : whole.named_parameters()) {
      values.push_back({name, ops::mul(randn(parameter.shape(), draw + values.size()), 0.4)});
    }
    return values;
  }

  // Keeps the spec, which says what part of the reference's it is.
  static void copy_out(Tensor& value) {
    const auto spec = value.shard_spec();
    value = clone(value);
    value.set_shard_spec(spec);
  }

  void note_values(Outcome& outcome) const {
    const auto note = [&](const std::string& name, Tensor value, const Tensor& like) {
      value = clone(value);
      value.set_shard_spec(like.shard_spec());
      outcome.values.push_back({name, value});
    };
    for (const auto& [name, parameter] : net_.named_parameters()) {
      note(name, parameter.detach(), parameter);
      if (parameter.grad().defined()) note("gradient of " + name, parameter.grad(), parameter);
    }
    for (const auto& [name, state] : optimizer_->state_dict()) note(name, state, state);
  }

  std::int64_t begin_, end_;
  TensorList pending_;  // losses that wait for a backward
};

}  // namespace moegrad::test
