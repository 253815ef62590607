// SPDX-License-Identifier: Apache-2.0

// The init cases about shards: which elements a rank holds, what cannot be cut, and parameters that
// had no bytes when they were sharded.

#include <gmock/gmock.h>

#include <algorithm>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/meta.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::shards_test {
namespace {

using namespace test;

/// Parameters "0", "1", ... and no forward.
class Parameters final : public nn::Callable<Parameters> {
 public:
  explicit Parameters(TensorList list) : tensors(std::move(list)) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      register_parameter(std::to_string(i), tensors[i]);
    }
  }
  TensorList tensors;
};

TensorList of_shapes(const std::vector<Shape>& shapes) {
  TensorList tensors;
  for (const auto& shape : shapes) {
    tensors.push_back(test::randn(shape, tensors.size() + 1, Dtype::kFloat32));
  }
  return tensors;
}

/// torch.chunk(tensor, ranks, dim)[rank], or nothing of it if there are fewer chunks.
Tensor torch_chunk(const Tensor& tensor, std::int64_t dim, int ranks, int rank) {
  const auto size = tensor.dim(dim);
  const auto chunk = (size + ranks - 1) / ranks;
  const auto begin = std::min(size, chunk * rank);
  return clone(ops::narrow(tensor.detach(), dim, begin, std::min(chunk, size - begin)));
}

void expect_chunks(const Parameters& model, const TensorList& wholes, const Policy& policy,
                   int ranks, int rank) {
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    const auto& whole = wholes[i];
    const auto& shard = model.tensors[i];
    std::int64_t dim =
        policy.shard_placement ? policy.shard_placement({std::to_string(i), nullptr, {}}).dim : 0;
    if (dim < 0) dim += whole.ndim();
    const Tensor expected = torch_chunk(whole, dim, ranks, rank);
    EXPECT_TRUE(test::bitwise_equal(shard.detach(), expected)) << whole.shape() << " by " << dim;
    EXPECT_EQ(shard.is_contiguous(), true);
    EXPECT_EQ(shard.shard_spec()->global_shape, whole.shape());
    EXPECT_EQ(shard.shard_spec()->placements.front().dim, dim);
    EXPECT_EQ(shard.shard_spec()->box.shape, expected.shape());
  }
}

TEST(ConformanceInit, ShardsAreTorchChunksOfDimensionZero) {
  const auto wholes = of_shapes({{5, 3}, {8}, {3, 2, 2}, {1, 4}, {4}, {9, 1}, {7}});
  for (const int ranks : {1, 2, 3, 4, 6}) {
    launch(ranks, [&](RankContext& rank) {
      TensorList own;
      for (const auto& whole : wholes) own.push_back(clone(whole));
      Parameters model(own);
      auto& state = fully_shard(model, DeviceMesh::flat(rank.group()));
      expect_chunks(model, wholes, {}, ranks, rank.rank());
      state.unshard();
      for (std::size_t i = 0; i < wholes.size(); ++i) {
        EXPECT_TRUE(test::bitwise_equal(model.tensors[i].detach(), wholes[i]));
      }
    });
  }
}

// Replicated over two, sharded over three: each replica holds the same chunks.
TEST(ConformanceInit, ShardsAreTorchChunksOnATwoDimensionalMesh) {
  const auto wholes = of_shapes({{5, 3}, {8}, {2, 3}, {1, 4}});
  launch(6, [&](RankContext& rank) {
    TensorList own;
    for (const auto& whole : wholes) own.push_back(clone(whole));
    Parameters model(own);
    const DeviceMesh mesh(rank.group(), {{"replicate", 2}, {"shard", 3}});
    auto& state = fully_shard(model, mesh);
    expect_chunks(model, wholes, {}, 3, rank.rank() % 3);
    const auto& placements = model.tensors[0].shard_spec()->placements;
    ASSERT_EQ(placements.size(), 2U);
    EXPECT_EQ(placements[0].group, mesh.group("shard"));
    EXPECT_EQ(placements[1].group, mesh.group("replicate"));
    EXPECT_FALSE(placements[1].dim.has_value());
    state.unshard();
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      EXPECT_TRUE(test::bitwise_equal(model.tensors[i].detach(), wholes[i]));
    }
  });
}

TEST(ConformanceInit, ShardsAreTorchChunksOfAnyDimension) {
  const auto wholes = of_shapes({{3, 4}, {2, 3, 8}, {5, 4, 2}, {4, 3}});
  const std::vector<std::int64_t> dims = {1, -1, 1, 0};
  const Policy policy = {.shard_placement = [&](const nn::ParameterSlot& slot) {
    return ShardPlacement{.dim = dims[static_cast<std::size_t>(slot.name[0] - '0')]};
  }};
  launch(4, [&](RankContext& rank) {
    TensorList own;
    for (const auto& whole : wholes) own.push_back(clone(whole));
    Parameters model(own);
    auto& state = fully_shard(model, DeviceMesh::flat(rank.group()), policy);
    expect_chunks(model, wholes, policy, 4, rank.rank());
    state.unshard();
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      EXPECT_TRUE(test::bitwise_equal(model.tensors[i].detach(), wholes[i]));
    }
  });
}

// --- errors

std::string shard_error(Parameters& model, RankContext& rank, const Policy& policy = {}) {
  const auto message =
      message_of<Error>([&] { fully_shard(model, DeviceMesh::flat(rank.group()), policy); });
  EXPECT_EQ(model.extension<State>(), nullptr);
  return message;
}

std::string shard_error(TensorList tensors, RankContext& rank, const Policy& policy = {}) {
  Parameters model(std::move(tensors));
  return shard_error(model, rank, policy);
}

Policy cut(std::int64_t dim) {
  return {.shard_placement = [=](const nn::ParameterSlot&) { return ShardPlacement{.dim = dim}; }};
}

TEST(ConformanceInit, WhatCannotBeCutIsAnError) {
  launch(2, [](RankContext& rank) {
    EXPECT_EQ(shard_error(of_shapes({{2}, {}}), rank),
              "fully_shard: parameter '1' is a scalar; give it a dimension to shard");
    Parameters strided(of_shapes({{2, 4}, {4, 2}}));
    strided.tensors[1] = ops::transpose(of_shapes({{2, 4}})[0].detach(), 0, 1);
    strided.tensors[1].set_requires_grad(true);
    EXPECT_EQ(shard_error(strided, rank), "fully_shard: parameter '1' must be contiguous");
    EXPECT_EQ(shard_error(of_shapes({{2, 4}}), rank, cut(2)),
              "fully_shard: parameter '0' [2, 4] has no dimension 2 to shard");
    EXPECT_EQ(shard_error(of_shapes({{2, 4}}), rank, cut(-3)),
              "fully_shard: parameter '0' [2, 4] has no dimension -3 to shard");
    EXPECT_EQ(shard_error(of_shapes({{2, 5}}), rank, cut(1)),
              "fully_shard: dimension 1 of parameter '0' [2, 5] must divide by the 2 ranks; only "
              "dimension 0 may be uneven");
    EXPECT_EQ(shard_error({Tensor::ones({2}), Tensor::ones({3}, Dtype::kFloat64)}, rank),
              "fully_shard: one group needs one dtype, got float32 and float64 of '1'");
  });
}

// A frozen parameter of another dtype is refused too: one gather has one dtype.
TEST(ConformanceInit, MixedDtypesAmongFrozenParametersAreAnErrorToo) {
  launch(2, [](RankContext& rank) {
    Parameters model({Tensor::ones({2}), Tensor::ones({3}, Dtype::kFloat64)});
    model.tensors[1].set_requires_grad(false);
    EXPECT_EQ(message_of<DtypeError>([&] { fully_shard(model, DeviceMesh::flat(rank.group())); }),
              "fully_shard: one group needs one dtype, got float32 and float64 of '1'");
  });
}

TEST(ConformanceInit, MeshesWithOtherAxesAreErrors) {
  launch(4, [](RankContext& rank) {
    Parameters model(of_shapes({{4}}));
    const DeviceMesh pipeline(rank.group(), {{"stage", 2}, {"shard", 2}});
    EXPECT_EQ(message_of<ValueError>([&] { fully_shard(model, pipeline); }),
              "fully_shard: mesh axis 'stage' of size 2 is neither sharded nor replicated over; "
              "pass a slice of the mesh without it");
    const DeviceMesh named(rank.group(), {{"rows", 4}});
    EXPECT_EQ(message_of<ValueError>([&] { fully_shard(model, named); }),
              "fully_shard: mesh axis 'rows' of size 4 is neither sharded nor replicated over; "
              "pass a slice of the mesh without it");
    const DeviceMesh flat = DeviceMesh::flat(rank.group());
    EXPECT_EQ(message_of<ValueError>([&] {
                fully_shard(model, flat,
                            {.mesh_dims = {.shard = std::nullopt, .replicate = std::nullopt}});
              }),
              "fully_shard: mesh_dims must name an axis to shard or to replicate over");
    EXPECT_EQ(model.extension<State>(), nullptr);
    fully_shard(model, named, {.mesh_dims = {.shard = "rows"}});
    EXPECT_EQ(model.tensors[0].shape(), (Shape{1}));
  });
}

// --- made without bytes

/// [8, 4] is even on two ranks, [3, 5] is not, [1, 4] leaves one rank nothing.
TEST(ConformanceInit, MetaParametersAreShardedEvenUnevenAndEmpty) {
  const auto wholes = of_shapes({{8, 4}, {3, 5}, {1, 4}});
  launch(2, [&](RankContext& rank) {
    TensorList meta;
    {
      const MetaGuard guard;
      for (const auto& whole : wholes) meta.push_back(Tensor::empty(whole.shape()));
    }
    Parameters model(meta);
    auto& state = fully_shard(model, DeviceMesh::flat(rank.group()));
    EXPECT_TRUE(state.group()->is_meta());
    for (const auto& tensor : model.tensors) EXPECT_TRUE(tensor.is_meta());
    model.to_empty();
    EXPECT_FALSE(state.group()->is_meta());
    test::init_random(model);
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      const auto& [begin, end] = shard_range(wholes[i].dim(0), 2, rank.rank());
      Shape shape = wholes[i].shape();
      EXPECT_EQ(model.tensors[i].dim(0), end - begin);
      EXPECT_EQ(model.tensors[i].dim(1), shape[1]);
    }
    Parameters filled(of_shapes({{8, 4}, {3, 5}, {1, 4}}));
    test::init_random(filled);
    state.unshard();
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      EXPECT_TRUE(test::bitwise_equal(model.tensors[i].detach(), filled.tensors[i].detach()));
    }
  });
}

TEST(ConformanceInit, MetaModelTrainsLikeOneThatHadBytes) {
  const test::Training<MlpStack> training = {
      .make =
          [] {
            return std::make_unique<MlpStack>(std::vector<std::int64_t>{8, 3, 1});
          },
      .loss =
          [](MlpStack& model, int iteration, int leaf) {
            return test::square_loss(model(test::leaf_input({3, 8}, iteration, leaf)));
          }};
  const auto reference = test::train_reference(training, 2);
  launch(2, [&](RankContext& rank) {
    std::unique_ptr<MlpStack> model;
    {
      const MetaGuard guard;
      model = training.make();
    }
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model->layers) fully_shard(*layer, mesh);
    fully_shard(*model, mesh);
    model->to_empty();
    test::init_random(*model);
    test::compare_training(*model, training, reference, rank.rank());
  });
}

TEST(ConformanceInit, AStillMetaParameterIsAnErrorThatNamesIt) {
  launch(2, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    std::unique_ptr<MlpStack> model;
    {
      const MetaGuard guard;
      model = std::make_unique<MlpStack>(std::vector<std::int64_t>{4, 3, 2});
    }
    fully_shard((*model)[1], mesh);
    fully_shard(*model, mesh);
    const Tensor x = test::leaf_input({3, 4}, 0, 0);
    EXPECT_EQ(message_of<Error>([&] { (*model)(x); }),
              "fully_shard: parameter '0.in_proj.weight' and others of its group are still on the "
              "meta device; call to_empty() and initialize them before the first forward");
    model->to_empty();
    test::init_random(*model);
    (*model)(x);
    // Half of a group without bytes.
    TensorList mixed = of_shapes({{4}});
    {
      const MetaGuard guard;
      mixed.push_back(Tensor::empty({4}));
    }
    EXPECT_EQ(shard_error(mixed, rank),
              "fully_shard: parameter '1' is on the meta device, and others of its group have "
              "bytes");
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::shards_test
