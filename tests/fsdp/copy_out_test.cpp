// SPDX-License-Identifier: Apache-2.0
#include "fsdp/copy_out.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "framework/distributed/launch.h"
#include "framework/distributed/shard_spec.h"
#include "fsdp/fully_shard.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "ops/nz.h"
#include "tests/testing.h"

namespace moegrad::fsdp::copy_out_test {
namespace {

/// The slices that `world_size` ranks would hold of `parameters` (2-D, row-major).
template <class Wire>
std::vector<std::vector<Wire>> shard(const TensorList& parameters, const FlatLayout& layout) {
  std::vector<std::vector<Wire>> slices;
  for (int rank = 0; rank < layout.world_size; ++rank) {
    auto& slice = slices.emplace_back(static_cast<std::size_t>(layout.slice_numel));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& entry = layout.entries[i];
      const auto rows = shard_range(entry.extent, layout.world_size, rank);
      const auto values = parameters[i].data<float>();
      for (std::int64_t j = 0; j < rows.size() * entry.inner; ++j) {
        slice[static_cast<std::size_t>(entry.offset + j)] =
            Wire(values[static_cast<std::size_t>(rows.begin * entry.inner + j)]);
      }
    }
  }
  return slices;
}

template <class Wire>
void run(const CopyOut& copy_out, const TensorList& parameters, TensorList& targets,
         int world_size) {
  std::vector<FlatParam> params;
  for (const auto& parameter : parameters) params.push_back({parameter.shape()});
  const auto layout = make_flat_layout(params, world_size, 1);
  const auto slices = shard<Wire>(parameters, layout);
  std::vector<std::span<const std::byte>> spans;
  for (const auto& slice : slices) spans.push_back(std::as_bytes(std::span(slice)));
  std::vector<CopyOutTarget> places;
  for (auto& target : targets) {
    places.push_back({target.storage().data(), target.layout(), target.nz_blocks()});
  }
  copy_out.run(layout, spans, dtype_of<Wire>, Dtype::kFloat32, places);
}

TEST(CopyOut, PutsTheRanksRowsTogether) {
  const TensorList parameters = {test::randn({7, 5}, 1, Dtype::kFloat32),
                                 test::randn({3, 1}, 2, Dtype::kFloat32)};
  for (const int world_size : {1, 2, 3, 4, 8}) {
    TensorList targets = {empty_like(parameters[0]), empty_like(parameters[1])};
    run<float>(*make_split_with_slice_to_nz(), parameters, targets, world_size);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      EXPECT_TRUE(test::bitwise_equal(targets[i], parameters[i])) << world_size;
    }
  }
}

TEST(CopyOut, SliceToNzEqualsSplitAndConversionAtAnyCut) {
  // Three experts of [10, 21]: at 4 ranks and more, shards begin inside an expert.
  const NzBlocks blocks{3, 10, 21};
  const TensorList parameters = {test::randn({30, 21}, 1, Dtype::kFloat32),
                                 test::randn({4, 2}, 2, Dtype::kFloat32)};
  const Tensor stacked = Tensor::as_strided(parameters[0], {3, 10, 21}, {210, 21, 1}, 0);
  const Tensor expected = ops::nd_to_nz(stacked);
  for (const int world_size : {1, 2, 3, 4, 7, 8, 64}) {
    TensorList targets = {Tensor::empty_nz({30, 21}, blocks, Dtype::kFloat32),
                          empty_like(parameters[1])};
    for (auto& value : targets[0].mutable_nz_data<float>()) value = 99.0F;  // recycled memory
    run<float>(*make_split_with_slice_to_nz(), parameters, targets, world_size);
    EXPECT_TRUE(std::ranges::equal(targets[0].nz_data<float>(), expected.nz_data<float>()));
    EXPECT_TRUE(test::bitwise_equal(targets[1], parameters[1]));
  }
}

/// The slice of each rank of one parameter cut along `dim`.
std::vector<Tensor> cut(const Tensor& parameter, std::int64_t dim, int world_size) {
  std::vector<Tensor> slices;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto range = shard_range(parameter.dim(dim), world_size, rank);
    slices.push_back(clone(Tensor::narrow(parameter, dim, range.begin, range.size())));
  }
  return slices;
}

void run_cut(const CopyOut& copy_out, const Tensor& parameter, std::int64_t dim, int world_size,
             Tensor& target) {
  const auto layout = make_flat_layout({{parameter.shape(), dim}}, world_size, 1);
  const auto slices = cut(parameter, dim, world_size);
  std::vector<std::span<const std::byte>> spans;
  for (const auto& slice : slices) spans.push_back(slice.bytes());
  copy_out.run(layout, spans, parameter.dtype(), parameter.dtype(),
               {{target.storage().data(), target.layout(), target.nz_blocks()}});
}

TEST(CopyOut, PutsTogetherWhatWasCutAlongAnyDimension) {
  const Tensor parameter = test::randn({4, 6, 8}, 1, Dtype::kFloat32);
  for (const std::int64_t dim : {0, 1, 2}) {
    for (const int world_size : {1, 2}) {
      Tensor target = empty_like(parameter);
      run_cut(*make_split_with_slice_to_nz(), parameter, dim, world_size, target);
      EXPECT_TRUE(test::bitwise_equal(target, parameter)) << dim << ' ' << world_size;
    }
  }
}

TEST(CopyOut, SlicesColumnsToNz) {
  // n = 1 and a single row are where rows and columns look alike.
  for (const auto& [blocks, dim] :
       std::vector<std::pair<NzBlocks, std::int64_t>>{{{3, 10, 24}, 1},
                                                      {{1, 1, 24}, 1},
                                                      {{2, 12, 1}, 0},
                                                      {{1, 24, 24}, 1},
                                                      {{1, 24, 24}, 0}}) {
    const Tensor parameter = test::randn({blocks.batch * blocks.k, blocks.n}, 1, Dtype::kFloat64);
    const Tensor expected = ops::nd_to_nz(Tensor::as_strided(
        parameter, {blocks.batch, blocks.k, blocks.n}, {blocks.k * blocks.n, blocks.n, 1}, 0));
    for (const int world_size : {1, 2, 3, 4, 8}) {
      Tensor target = Tensor::empty_nz(parameter.shape(), blocks, Dtype::kFloat64);
      for (auto& value : target.mutable_nz_data<double>()) value = 99.0;
      run_cut(*make_split_with_slice_to_nz(), parameter, dim, world_size, target);
      EXPECT_TRUE(std::ranges::equal(target.nz_data<double>(), expected.nz_data<double>()))
          << parameter.shape() << " on " << world_size << " ranks";
    }
  }
}

TEST(CopyOut, WidensWhatTravelledAsBfloat16) {
  const TensorList parameters = {test::randn({6, 4}, 1, Dtype::kFloat32)};
  const Tensor rounded = to_dtype(to_dtype(parameters[0], Dtype::kBFloat16), Dtype::kFloat32);
  TensorList plain = {empty_like(parameters[0])};
  run<BFloat16>(*make_split_with_slice_to_nz(), parameters, plain, 3);
  EXPECT_TRUE(test::bitwise_equal(plain[0], rounded));
  TensorList nz = {Tensor::empty_nz({6, 4}, {2, 3, 4}, Dtype::kFloat32)};
  run<BFloat16>(*make_split_with_slice_to_nz(), parameters, nz, 4);
  const Tensor whole = Tensor::nz_view(nz[0], {2, 3, 4});
  EXPECT_TRUE(
      test::bitwise_equal(Tensor::as_strided(ops::nz_to_nd(whole), {6, 4}, {4, 1}, 0), rounded));
}

/// Counts, and copies the rows of each rank by itself.
class OwnCopy final : public CopyOut {
 public:
  void run(const FlatLayout& layout, PeerSpans slices, Dtype wire, Dtype dtype,
           const std::vector<CopyOutTarget>& targets) const override {
    EXPECT_EQ(wire, dtype);
    ++runs;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const auto& entry = layout.entries[i];
      auto* to = targets[i].data;
      for (int rank = 0; rank < layout.world_size; ++rank) {
        const auto& slice = slices[static_cast<std::size_t>(rank)];
        const auto rows = shard_range(entry.extent, layout.world_size, rank).size();
        to = std::copy_n(slice.data() + entry.offset * size_of(dtype),
                         rows * entry.inner * size_of(dtype), to);
      }
    }
  }

  mutable std::atomic<int> runs = 0;
};

TEST(CopyOut, APolicyMayBringItsOwn) {
  const auto own = std::make_shared<const OwnCopy>();
  launch(3, [&](RankContext& rank) {
    const auto gradient = [&](const Policy& policy) {
      nn::Linear linear({.in_features = 4, .out_features = 7});
      nn::init_weights(linear, 1, 1.0);
      fully_shard(linear, DeviceMesh::flat(rank.group()), policy);
      const Tensor x = test::randn({2, 4}, 1, Dtype::kFloat32, /*requires_grad=*/true);
      linear(x).backward(test::randn({2, 7}, 2, Dtype::kFloat32));
      return x.grad();
    };
    EXPECT_TRUE(test::bitwise_equal(gradient({.reshard_after_forward = true, .copy_out = own}),
                                    gradient({})));
  });
  EXPECT_EQ(own->runs, 3 * 2);  // forward and backward of each rank
}

TEST(CopyOut, APolicyNeedsOne) {
  launch(1, [](RankContext& rank) {
    nn::Linear linear({.in_features = 4, .out_features = 7});
    EXPECT_EQ(test::message_of<ValueError>([&] {
                fully_shard(linear, DeviceMesh::flat(rank.group()), {.copy_out = nullptr});
              }),
              "fully_shard: copy_out must not be null");
  });
}

}  // namespace
}  // namespace moegrad::fsdp::copy_out_test
