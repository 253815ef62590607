// SPDX-License-Identifier: Apache-2.0

// Every optimizer on shards. Class E0: everything here is equal to the last bit.

#include <cmath>
#include <utility>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/framework/io/files.h"
#include "tests/optim/every_optimizer.h"
#include "tests/testing.h"

namespace moegrad::optim::every_optimizer_ranks_test {
namespace {

using namespace test;

constexpr int kBefore = 3, kSteps = 6;

/// A parameter and the dimension over which it is sharded. On 4 ranks some have no rows.
struct Parameter {
  std::string name;
  Shape shape;
  std::int64_t dim;
};
const std::vector<Parameter> kParameters = {{"rows", Shape{7, 4}, 0},
                                            {"columns", Shape{3, 6}, 1},
                                            {"vector", Shape{5}, 0},
                                            {"row", Shape{1, 5}, 0}};

Tensor start_of(std::size_t i, Dtype dtype) { return randn(kParameters[i].shape, 1 + i, dtype); }
Tensor grad_of(std::size_t i, int step, Dtype dtype) {
  return randn(kParameters[i].shape, 10 * static_cast<std::uint64_t>(step + 1) + i, dtype);
}

/// A training on whole parameters or, over `group`, on shards.
struct Training {
  Training(const NamedOptimizer& named, Dtype of, const std::shared_ptr<ProcessGroup>& group)
      : dtype(of) {
    for (std::size_t i = 0; i < kParameters.size(); ++i) {
      const auto& [name, shape, dim] = kParameters[i];
      const auto spec = test::spec_of(shape, dim, group);
      parameters.push_back({name, shard_of(start_of(i, dtype), spec).set_requires_grad(true)});
    }
    optimizer = named.make(parameters);
  }

  void take_steps(int from, int to) {
    for (int step = from; step < to; ++step) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& parameter = parameters[i].tensor;
        parameter.set_grad(shard_of(grad_of(i, step, dtype), *parameter.shard_spec()));
      }
      optimizer->step();
    }
  }
  /// Parameters and state, which a checkpoint has.
  NamedTensors tensors() const {
    auto all = parameters;
    for (const auto& tensor : optimizer->state_dict()) all.push_back(tensor);
    return all;
  }

  Dtype dtype;
  NamedTensors parameters;
  std::unique_ptr<Optimizer> optimizer;
};

NamedTensors after_all_steps(const NamedOptimizer& named, Dtype dtype) {
  Training training(named, dtype, nullptr);
  training.take_steps(0, kSteps);
  return training.tensors();
}

void expect_parts_of(const NamedTensors& wholes, const NamedTensors& parts,
                     const std::string& where) {
  ASSERT_EQ(parts.size(), wholes.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [name, part] = parts[i];
    EXPECT_TRUE(bitwise_equal(part, shard_of(wholes[i].tensor, *part.shard_spec())))
        << name << where;
  }
}

TEST(EveryOptimizerOverRanks, HasTheBitsOfOneRank) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& named : every_optimizer()) {
      const auto expected = after_all_steps(named, dtype);
      for (const int world_size : {1, 2, 4}) {
        launch(world_size, [&](RankContext& context) {
          Training training(named, dtype, context.group());
          training.take_steps(0, kSteps);
          expect_parts_of(expected, training.tensors(),
                          " of " + named.name + " on " + std::to_string(world_size));
        });
      }
    }
  }
}

TEST(EveryOptimizerOverRanks, HasTheBitsOfOneRankOnReplicas) {
  for (const auto& named : every_optimizer()) {
    const auto expected = after_all_steps(named, Dtype::kFloat32);
    launch(4, [&](RankContext& context) {
      const DeviceMesh mesh(context.group(), {{"replicate", 2}, {"shard", 2}});
      NamedTensors parameters;
      for (std::size_t i = 0; i < kParameters.size(); ++i) {
        const auto spec = test::spec_of(kParameters[i].shape, kParameters[i].dim, mesh);
        parameters.push_back({kParameters[i].name, shard_of(start_of(i, Dtype::kFloat32), spec)});
      }
      const auto optimizer = named.make(parameters);
      for (int step = 0; step < kSteps; ++step) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const auto& parameter = parameters[i].tensor;
          parameter.set_grad(shard_of(grad_of(i, step, Dtype::kFloat32), *parameter.shard_spec()));
        }
        optimizer->step();
      }
      for (const auto& tensor : optimizer->state_dict()) parameters.push_back(tensor);
      expect_parts_of(expected, parameters, " of " + named.name);
    });
  }
}

TEST(EveryOptimizerOverRanks, GoesOnFromACheckpointOfAnotherNumberOfRanks) {
  for (const auto& named : every_optimizer()) {
    const auto expected = after_all_steps(named, Dtype::kFloat32);
    for (const auto& [saving, loading] : {std::pair{4, 1}, {2, 4}, {1, 2}}) {
      const test::TemporaryFolder root;
      launch(saving, [&](RankContext& context) {
        Training training(named, Dtype::kFloat32, context.group());
        training.take_steps(0, kBefore);
        write_checkpoint(root / "", kBefore, {.tensors = training.tensors()}, context.group());
      });
      launch(loading, [&, saving = saving, loading = loading](RankContext& context) {
        Training training(named, Dtype::kFloat32, context.group());
        auto reader = open_newest_checkpoint(root / "", context.group(),
                                             [](const auto& reason) { ADD_FAILURE() << reason; });
        ASSERT_TRUE(reader.has_value());
        reader->read_all(training.tensors());
        training.take_steps(kBefore, kSteps);
        expect_parts_of(expected, training.tensors(),
                        " of " + named.name + " from " + std::to_string(saving) + " to " +
                            std::to_string(loading));
      });
    }
  }
}

TEST(EveryOptimizerOverRanks, SkipsAStepOnAllRanksIfOneHasANanOrAnInfinity) {
  for (const auto& named : every_optimizer(/*skip=*/true)) {
    launch(3, [&](RankContext& context) {
      Training training(named, Dtype::kFloat32, context.group());
      const auto copies = [&] {
        TensorList all;
        for (const auto& [name, tensor] : training.tensors()) all.push_back(clone(tensor));
        return all;
      };
      const auto start = copies();
      training.take_steps(0, 1);
      EXPECT_EQ(training.optimizer->skipped_steps(), 0);
      const auto before = copies();
      EXPECT_FALSE(bitwise_equal(start[0], before[0])) << named.name;
      int skipped = 0;
      for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        const int of = skipped;  // another rank each time
        for (std::size_t i = 0; i < training.parameters.size(); ++i) {
          const auto& parameter = training.parameters[i].tensor;
          Tensor grad = shard_of(grad_of(i, 1, Dtype::kFloat32), *parameter.shard_spec());
          if (i == 0 && context.rank() == of) fill_(grad, bad);
          parameter.set_grad(grad);
        }
        training.optimizer->step();
        EXPECT_EQ(training.optimizer->skipped_steps(), ++skipped) << named.name;
        const auto after = copies();
        ASSERT_EQ(after.size(), before.size());
        for (std::size_t i = 0; i < after.size(); ++i) {
          EXPECT_TRUE(bitwise_equal(after[i], before[i])) << named.name << ' ' << bad << ' ' << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace moegrad::optim::every_optimizer_ranks_test
