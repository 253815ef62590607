// SPDX-License-Identifier: Apache-2.0

// Note [Placements]: parameters that another kind of parallelism has divided before fully_shard.

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "framework/distributed/gather_shards.h"
#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict.h"
#include "nn/init.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::fsdp::placements_test {
namespace {

using namespace test;
using Indices = std::vector<std::int64_t>;

/// How a matrix is divided: outside along one dimension, inside by fully_shard along another.
struct Division {
  Shape shape;
  int outer = 1;
  std::int64_t outer_dim = 0;
  int inner = 1;
  std::int64_t inner_dim = 0;
  int replicas = 1;

  int ranks() const { return outer * replicas * inner; }
  friend std::ostream& operator<<(std::ostream& out, const Division& division) {
    return out << division.shape << " over " << division.outer << " along " << division.outer_dim
               << ", then over " << division.inner << " along " << division.inner_dim << ", "
               << division.replicas << " replicas";
  }
};

/// Even; uneven; with a rank without rows; both cut along one dimension; with replicas.
const std::vector<Division> kDivisions = {
    {.shape = {12, 10}, .outer = 2, .outer_dim = 1, .inner = 3},
    {.shape = {11, 9}, .outer = 2, .outer_dim = 1, .inner = 3},
    {.shape = {2, 10}, .outer = 2, .outer_dim = 1, .inner = 3},
    {.shape = {11, 4}, .outer = 2, .outer_dim = 0, .inner = 3},
    {.shape = {6, 8}, .outer = 3, .outer_dim = 0, .inner = 2, .inner_dim = 1},
    {.shape = {7, 6}, .outer = 2, .outer_dim = 1, .inner = 2, .replicas = 2}};

DeviceMesh whole_mesh(RankContext& rank, const Division& division) {
  return {rank.group(),
          {{"outer", division.outer}, {"replicate", division.replicas}, {"shard", division.inner}}};
}

std::vector<int> ranks_inside(RankContext& rank, const Division& division) {
  const int count = division.replicas * division.inner;
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), rank.rank() / count * count);
  return ranks;
}

/// A matrix and a vector.
class Net final : public nn::Callable<Net> {
 public:
  explicit Net(const Shape& shape) : matrix_(randn(shape, 1)), vector_(randn({5}, 2)) {
    register_parameter("matrix", matrix_);
    register_parameter("vector", vector_);
  }
  /// The matrix is cut over the mesh's axis "outer"; each of these ranks has the vector.
  Net(const Division& division, const DeviceMesh& mesh) : Net(division.shape) {
    const auto& outer = mesh.group("outer");
    matrix_ = shard_of(matrix_, divided(whole_spec(division.shape), outer, division.outer_dim));
    vector_ = shard_of(vector_, replicated(whole_spec(vector_.shape()), outer));
    for (auto* parameter : {&matrix_, &vector_}) parameter->set_requires_grad(true);
  }

  /// Each element has a gradient of its own. `share`: this rank's share in the sum over the ranks
  /// that have the same part.
  Tensor forward(const Tensor& share) {
    const Tensor cubes = ops::square(matrix_) * matrix_;
    return (ops::sum(cubes) + ops::sum(ops::square(vector_))) * share;
  }

 private:
  Tensor matrix_, vector_;
};

/// Divided, and then sharded over the other axes.
class DividedNet {
 public:
  DividedNet(RankContext& rank, const Division& division)
      : mesh_(whole_mesh(rank, division)),
        inner_(rank.group()->subgroup(ranks_inside(rank, division), "inner"),
               {{"replicate", division.replicas}, {"shard", division.inner}}),
        net_(division, mesh_) {
    const auto dim = division.inner_dim;
    fully_shard(net_, inner_, {.shard_placement = [dim](const nn::ParameterSlot& slot) {
                  return ShardPlacement{.dim = slot.tensor->ndim() == 2 ? dim : 0};
                }});
  }

  Net& operator*() { return net_; }
  Net* operator->() { return &net_; }
  Tensor share() const {
    const bool first = inner_.coordinate("shard") == 0 && inner_.coordinate("replicate") == 0;
    return Tensor::full({}, first ? 1.0 : 0.0, Dtype::kFloat64);
  }

 private:
  DeviceMesh mesh_, inner_;
  Net net_;
};

/// The indices that position `rank` of `ranks` has in a range of `count`, as torch.chunk cuts.
Indices chunk(std::int64_t begin, std::int64_t count, int ranks, int rank) {
  const auto size = (count + ranks - 1) / ranks;
  Indices indices;
  for (auto i = size * rank; i < std::min(count, size * (rank + 1)); ++i)
    indices.push_back(begin + i);
  return indices;
}

/// The indices along one dimension that a rank of the division has.
Indices indices_along(std::int64_t dim, const Division& division, int rank) {
  const int inner = rank % division.inner, outer = rank / (division.inner * division.replicas);
  Indices indices = chunk(0, division.shape[dim], 1, 0);
  if (dim == division.outer_dim) indices = chunk(0, division.shape[dim], division.outer, outer);
  if (dim == division.inner_dim) {
    const auto begin = indices.empty() ? division.shape[dim] : indices.front();
    indices = chunk(begin, std::ssize(indices), division.inner, inner);
  }
  return indices;
}

class Placements : public ::testing::TestWithParam<Division> {
 protected:
  template <class Body>
  static void on_ranks(const Division& division, const Body& body) {
    launch(division.ranks(), [&](RankContext& rank) {
      DividedNet net(rank, division);
      body(rank, net);
    });
  }
};

TEST_P(Placements, SayWhichElementsARankHas) {
  const auto& division = GetParam();
  const Tensor whole = randn(division.shape, 1);
  const auto values = whole.data<double>();
  const auto columns = division.shape[1];
  on_ranks(division, [&](RankContext& rank, DividedNet& net) {
    const auto rows_here = indices_along(0, division, rank.rank());
    const auto columns_here = indices_along(1, division, rank.rank());
    const Tensor shard = net->named_parameters()[0].tensor;
    EXPECT_EQ(shard.shape(), (Shape{std::ssize(rows_here), std::ssize(columns_here)}));
    const auto own = shard.detach();
    auto next = own.data<double>().begin();
    for (const auto row : rows_here) {
      for (const auto column : columns_here) {
        EXPECT_EQ(*next++, values[static_cast<std::size_t>(row * columns + column)]);
      }
    }
  });
}

TEST(PlacementsByHand, AreTheseOnSixRanks) {
  // [12, 10]: columns over 2, then rows over 3. [2, 10]: the last of three ranks has no row.
  const std::vector<Indices> boxes = {{0, 0, 4, 5}, {4, 0, 4, 5}, {8, 0, 4, 5},
                                      {0, 5, 4, 5}, {4, 5, 4, 5}, {8, 5, 4, 5}};
  const std::vector<Indices> few = {{0, 0, 1, 5}, {1, 0, 1, 5}, {2, 0, 0, 5},
                                    {0, 5, 1, 5}, {1, 5, 1, 5}, {2, 5, 0, 5}};
  launch(6, [&](RankContext& rank) {
    for (const auto& [division, expected] :
         {std::pair(kDivisions[0], boxes), std::pair(kDivisions[2], few)}) {
      DividedNet net(rank, division);
      const auto& box = net->named_parameters()[0].tensor.shard_spec()->box;
      const auto& own = expected[static_cast<std::size_t>(rank.rank())];
      EXPECT_EQ(box.begin, (Shape{own[0], own[1]}));
      EXPECT_EQ(box.shape, (Shape{own[2], own[3]}));
    }
  });
}

TEST(PlacementsByHand, RefuseAGroupThatHasSomeOfTheRanksOfAnother) {
  launch(4, [&](RankContext& rank) {
    const DeviceMesh mesh(rank.group(), {{"rows", 2}, {"columns", 2}});
    const auto spec = divided(whole_spec({12, 10}), mesh.group("columns"), 1);
    const std::string part = rank.rank() % 2 == 0 ? "[0, 5)" : "[5, 10)";
    EXPECT_EQ(message_of<ValueError>([&] { divided(spec, rank.group(), 0); }),
              "shard: " + part +
                  " of dimension 1 of [12, 10] must be divided over other ranks "
                  "than before, got group 'world', which has 2 ranks of group 'columns', "
                  "which divides dimension 1");
    EXPECT_EQ(num_parts(divided(spec, mesh.group("rows"), 0)), 4);
    const int neighbours[] = {rank.rank() / 2 * 2, rank.rank() / 2 * 2 + 1};
    const auto again = rank.group()->subgroup(neighbours, "again");  // the ranks of "columns"
    EXPECT_THROW(divided(spec, again, 0), ValueError);
  });
}

TEST(PlacementsByHand, RefuseRanksThatHaveDifferentPartsAndDimensionsThatAreNotThere) {
  launch(2, [&](RankContext& rank) {
    const auto spec = divided(whole_spec({12, 10}), rank.group(), 1);
    const std::string part = rank.rank() == 0 ? "[0, 5)" : "[5, 10)";
    const auto message = "shard: " + part +
                         " of dimension 1 of [12, 10] must be divided over other ranks than "
                         "before, got group 'world', which has 2 ranks of group 'world', "
                         "which divides dimension 1";
    EXPECT_EQ(message_of<ValueError>([&] { divided(spec, rank.group(), 0); }), message);
    EXPECT_EQ(message_of<ValueError>([&] { replicated(spec, rank.group()); }), message);
    EXPECT_EQ(message_of<ValueError>([&] {
                divided(replicated(whole_spec({12, 10}), rank.group()), rank.group(), 0);
              }),
              "shard: all of [12, 10] must be divided over other ranks than before, got group "
              "'world', which has 2 ranks of group 'world', which has copies");
    EXPECT_EQ(message_of<ShapeError>([&] { divided(spec, nullptr, 2); }),
              "shard: [12, 10] must have the dimension to cut, got 2");
    const Division division = {.shape = {12, 10}, .outer = 2, .outer_dim = 1};
    Net net(division, whole_mesh(rank, division));
    EXPECT_EQ(message_of<ValueError>([&] { fully_shard(net, DeviceMesh::flat(rank.group())); }),
              message);
    EXPECT_EQ(net.named_parameters()[0].tensor.shape(), (Shape{12, 5}));
  });
}

/// A few clipped steps of AdamW; the norms.
template <class N>
std::vector<double> train(N& net, const Tensor& share) {
  optim::AdamW optimizer(net.named_parameters(), {.lr = 0.1, .weight_decay = 0.1});
  std::vector<double> norms;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    net(share).backward();
    norms.push_back(optim::clip_grad_norm(net.named_parameters(), 1.0));
    optimizer.step();
  }
  return norms;
}

void expect_own_parts(nn::Module& net, nn::Module& whole) {
  const auto own = net.named_parameters(), all = whole.named_parameters();
  ASSERT_EQ(own.size(), all.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Tensor part = clone(shard_view(all[i].tensor.detach(), *own[i].tensor.shard_spec()));
    EXPECT_TRUE(bitwise_equal(own[i].tensor.detach(), part)) << own[i].name;
  }
}

TEST_P(Placements, TrainToTheSameBits) {
  Net whole(GetParam().shape);
  const auto norms = train(whole, Tensor::full({}, 1.0, Dtype::kFloat64));
  EXPECT_GT(norms[0], 1.0);
  on_ranks(GetParam(), [&](RankContext&, DividedNet& net) {
    EXPECT_EQ(train(*net, net.share()), norms);
    expect_own_parts(*net, whole);
  });
}

TEST_P(Placements, HaveTheInitialValuesOfTheWhole) {
  Net whole(GetParam().shape);
  nn::init_weights(whole, 7, 0.5);
  on_ranks(GetParam(), [&](RankContext&, DividedNet& net) {
    nn::init_weights(*net, 7, 0.5);
    expect_own_parts(*net, whole);
  });
}

TEST_P(Placements, AreGatheredAndFilled) {
  Net whole(GetParam().shape);
  nn::init_weights(whole, 7, 0.5);
  on_ranks(GetParam(), [&](RankContext& rank, DividedNet& net) {
    load_full_state_dict(*net, rank.rank() == 0 ? whole.state_dict() : NamedTensors());
    expect_own_parts(*net, whole);
    const auto state = full_state_dict(*net);
    EXPECT_EQ(state.size(), rank.rank() == 0 ? 2U : 0U);
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(state[i].tensor, whole.state_dict()[i].tensor)) << state[i].name;
    }
  });
}

/// Saved under one division, loaded under each other one of the same shape, and as a whole.
TEST_P(Placements, AreSavedAndLoadedUnderOtherOnes) {
  const test::TemporaryFolder root;
  auto saved = GetParam();
  Net whole(saved.shape);
  on_ranks(saved, [&](RankContext& rank, DividedNet& net) {
    write_checkpoint(root / "", 1, {.tensors = net->named_parameters()}, rank.group());
  });
  const auto read = [&](nn::Module& net) {
    for (const auto& [name, tensor] : net.named_parameters()) {
      Tensor values = tensor.detach();
      fill_(values, 9.0);
    }
    CheckpointReader(root / "step-00000001").read_all(net.named_parameters());
  };
  Net alone(saved.shape);
  read(alone);
  EXPECT_TRUE(bitwise_equal(alone.state_dict()[0].tensor, whole.state_dict()[0].tensor));
  EXPECT_TRUE(bitwise_equal(alone.state_dict()[1].tensor, whole.state_dict()[1].tensor));
  for (auto other : kDivisions) {
    other.shape = saved.shape;
    if (other.inner_dim == 1 && other.shape[1] % other.inner != 0) continue;
    on_ranks(other, [&](RankContext&, DividedNet& net) {
      read(*net);
      expect_own_parts(*net, whole);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Divisions, Placements, ::testing::ValuesIn(kDivisions));

}  // namespace
}  // namespace moegrad::fsdp::placements_test
