// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of checkpoints save and expect.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::test {

// What stands whole in every test: cut evenly and not, along both dimensions, into fewer rows than
// ranks, not at all; of every dtype.
struct Sample {
  std::string name;
  Tensor whole;
  std::int64_t dim;  // cut along; -1: not
};

inline std::vector<Sample> samples(std::uint64_t seed = 1) {
  Tensor steps = Tensor::from(std::vector<std::int64_t>{static_cast<std::int64_t>(seed), -1}, {2});
  return {{"rows", randn({16, 5}, seed, Dtype::kFloat32), 0},
          {"odd rows", randn({13, 3}, seed + 1, Dtype::kFloat64), 0},
          {"few rows", randn({2, 7}, seed + 2, Dtype::kBFloat16), 0},
          {"columns", randn({3, 10}, seed + 3, Dtype::kFloat32), 1},
          {"middle", randn({2, 9, 3}, seed + 4, Dtype::kFloat32), 1},
          {"vector", randn({11}, seed + 5, Dtype::kFloat32), 0},
          {"whole", randn({4, 4}, seed + 6, Dtype::kFloat32), -1},
          {"scalar", randn({}, seed + 7, Dtype::kFloat64), -1},
          {"nothing", Tensor::zeros({0, 3}, Dtype::kFloat32), -1},
          {"steps", steps, -1},
          {"codes", Tensor::from(std::vector<std::int8_t>{-128, 5, 0, 127, 1}, {5}), 0},
          {"sums", Tensor::from(std::vector<std::int32_t>{-70000, 3, 2, 1}, {2, 2}), 1}};
}

inline NamedTensors parts_of(const std::vector<Sample>& all, const DeviceMesh& mesh) {
  NamedTensors parts;
  for (const auto& [name, whole, dim] : all) {
    parts.push_back(
        {name, dim < 0 ? clone(whole) : shard_of(whole, spec_of(whole.shape(), dim, mesh))});
  }
  return parts;
}

inline NamedTensors zeros_like_parts(const NamedTensors& parts) {
  NamedTensors zeros;
  for (const auto& [name, tensor] : parts) {
    Tensor zero = zeros_like(tensor);
    zero.set_shard_spec(tensor.shard_spec());
    zeros.push_back({name, zero});
  }
  return zeros;
}

inline void save_now(const std::filesystem::path& root, std::int64_t step,
                     const CheckpointState& state, const std::shared_ptr<ProcessGroup>& group,
                     const CheckpointOptions& options = {}) {
  write_checkpoint(root, step, state, group, options);
}

inline void fail_if_skipped(const std::string& reason) { ADD_FAILURE() << reason; }

inline void save_at(const std::filesystem::path& root, int world_size, std::uint64_t seed = 1) {
  launch(world_size, [&](RankContext& context) {
    const auto parts = parts_of(samples(seed), DeviceMesh::flat(context.group()));
    save_now(root, 7, {.tensors = parts, .values = {{"text", "of step 7"}}}, context.group());
  });
}

inline void expect_at(const std::filesystem::path& root, int world_size, std::uint64_t seed = 1) {
  launch(world_size, [&](RankContext& context) {
    const auto expected = parts_of(samples(seed), DeviceMesh::flat(context.group()));
    const auto found = zeros_like_parts(expected);
    auto reader = open_newest_checkpoint(root, context.group(), fail_if_skipped);
    ASSERT_TRUE(reader.has_value());
    EXPECT_EQ(reader->manifest().step, 7);
    EXPECT_EQ(reader->manifest().values.at("text"), "of step 7");
    reader->read_all(found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(found[i].tensor, expected[i].tensor))
          << found[i].name << " on rank " << context.rank() << " of " << world_size;
    }
  });
}

inline CheckpointState one_tensor(std::uint64_t seed) {
  return {.tensors = {{"w", randn({8}, seed, Dtype::kFloat32)}}};
}

inline std::vector<std::int64_t> steps_in(const std::filesystem::path& root) {
  std::vector<std::int64_t> steps;
  for (const auto& found : list_checkpoints(root)) steps.push_back(found.step);
  return steps;
}

}  // namespace moegrad::test
