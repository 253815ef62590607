// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "optim/clip_grad_norm.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::optim::clip_grad_norm_ranks_test {
namespace {

using namespace test;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kNormTypes[] = {1.0, 2.0, kInf};

struct Grid {
  int replicas, shards;
  std::int64_t dim = 0;
};

/// Who holds what: dense parameters over one grid of the ranks, experts over another or the same.
struct Layout {
  Grid dense, experts;
  int groups;  // distinct ones of more than one rank
  int world_size() const { return dense.replicas * dense.shards; }
};

const std::vector<Layout> kLayouts = {
    {{1, 1}, {1, 1}, 0},       {{1, 2}, {1, 2}, 1},    {{1, 3}, {1, 3, 1}, 1},
    {{1, 4, 1}, {1, 4}, 1},    {{1, 8}, {1, 8, 1}, 1}, {{2, 2}, {2, 2, 1}, 1},  // HSDP
    {{2, 4, 1}, {2, 4}, 1},                                                     //
    {{4, 1}, {4, 1}, 0},                                                        // replicas alone
    {{1, 4}, {2, 2}, 2},        // experts on a grid of their own
    {{1, 4, 1}, {2, 2, 1}, 2},  //
    {{2, 2}, {1, 4}, 2},        //
    {{1, 4}, {4, 1}, 1},        //
    {{2, 4}, {4, 2, 1}, 2},     //
};

struct Gradient {
  std::string name;
  Tensor whole;
  bool is_expert = false, is_sharded = true;
};

/// They have several magnitudes; the largest element is the experts' last. On eight ranks some
/// shards of every one are empty or short, but for those along dimension 1.
std::vector<Gradient> gradients(Dtype dtype) {
  const auto scaled = [&](const Shape& shape, std::uint64_t seed, double scale) {
    Tensor values = randn(shape, seed);
    for (auto& value : values.mutable_data<double>()) value *= scale;
    return to_dtype(values, dtype);
  };
  Tensor experts = scaled({6, 48}, 2, 3.0);
  dispatch_floating(dtype, [&]<class T>() { experts.mutable_data<T>().back() = T{-100}; });
  return {{"bias", scaled({3}, 4, 1.0), false, false},
          {"dense", scaled({37, 24}, 1, 1e-3)},
          {"experts", experts, true},
          {"norm", scaled({5}, 3, 0.1)},
          {"more experts", scaled({10, 24}, 5, 1e-6), true}};
}

Tensor with_grad(const Tensor& grad) {
  const Tensor parameter = zeros_like(grad);
  parameter.set_grad(clone(grad));
  return parameter;
}

NamedTensors whole_parameters(const std::vector<Gradient>& gradients) {
  NamedTensors parameters;
  for (const auto& each : gradients) parameters.push_back({each.name, with_grad(each.whole)});
  return parameters;
}

/// What one rank holds of them.
class Shards {
 public:
  Shards(const std::vector<Gradient>& gradients, const Layout& layout,
         const std::shared_ptr<ProcessGroup>& world)
      : same_grid_(layout.dense.shards == layout.experts.shards),
        dense_(axes_of(layout.dense, world)),
        experts_(same_grid_ ? dense_ : axes_of(layout.experts, world)),
        dense_group_(std::make_shared<CountingProcessGroup>(dense_.group("shard"), counts_)),
        expert_group_(
            same_grid_ ? dense_group_
                       : std::make_shared<CountingProcessGroup>(experts_.group("shard"), counts_)) {
    for (const auto& each : gradients) {
      if (!each.is_sharded) {
        parameters.push_back({each.name, with_grad(each.whole)});
        continue;
      }
      const auto& mesh = each.is_expert ? experts_ : dense_;
      const auto& grid = each.is_expert ? layout.experts : layout.dense;
      const auto spec =
          spec_of(each.whole.shape(), each.whole.ndim() == 1 ? 0 : grid.dim,
                  each.is_expert ? expert_group_ : dense_group_, mesh.group("replicate"));
      const Tensor parameter = with_grad(shard_of(each.whole, spec));
      parameter.set_shard_spec(std::make_shared<ShardSpec>(spec));
      parameters.push_back({each.name, parameter});
    }
  }

  std::int64_t all_reduces() const { return counts_->calls({.op = "all_reduce"}); }

  NamedTensors parameters;

 private:
  static DeviceMesh axes_of(const Grid& grid, const std::shared_ptr<ProcessGroup>& world) {
    return DeviceMesh(world, {{"replicate", grid.replicas}, {"shard", grid.shards}});
  }

  bool same_grid_;
  DeviceMesh dense_, experts_;
  std::shared_ptr<test::CallCounts> counts_ = std::make_shared<test::CallCounts>();
  std::shared_ptr<ProcessGroup> dense_group_, expert_group_;
};

double reference_norm(const std::vector<Gradient>& gradients, double norm_type) {
  long double sum = 0, largest = 0;
  for (const auto& each : gradients) {
    const Tensor values = to_dtype(each.whole, Dtype::kFloat64);
    for (const long double value : values.data<double>()) {
      sum += norm_type == 1.0 ? std::abs(value) : value * value;
      largest = std::max(largest, std::abs(value));
    }
  }
  return static_cast<double>(std::isinf(norm_type) ? largest
                             : norm_type == 1.0    ? sum
                                                   : std::sqrt(sum));
}

TEST(ClipGradNormOverRanks, HasTheSameBitsOnEveryMesh) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const auto grads = gradients(dtype);
    for (const double norm_type : kNormTypes) {
      const auto whole = whole_parameters(grads);
      const double expected = clip_grad_norm(whole, 1.0, norm_type);
      EXPECT_NEAR(expected / reference_norm(grads, norm_type), 1.0, 1e-14);
      for (const auto& layout : kLayouts) {
        launch(layout.world_size(), [&](RankContext& context) {
          const Shards shards(grads, layout, context.group());
          const double norm = clip_grad_norm(shards.parameters, 1.0, norm_type);
          EXPECT_EQ(std::bit_cast<std::uint64_t>(norm), std::bit_cast<std::uint64_t>(expected));
          for (std::size_t i = 0; i < whole.size(); ++i) {
            const auto& spec = shards.parameters[i].tensor.shard_spec();
            const Tensor clipped = whole[i].tensor.grad();
            EXPECT_TRUE(bitwise_equal(shards.parameters[i].tensor.grad(),
                                      spec != nullptr ? shard_of(clipped, *spec) : clipped))
                << whole[i].name;
          }
        });
      }
    }
  }
}

TEST(ClipGradNormOverRanks, TakesTwoAllReducesPerGroupOneForTheMaximum) {
  const auto grads = gradients(Dtype::kFloat32);
  for (const auto& layout : kLayouts) {
    for (const double norm_type : kNormTypes) {
      launch(layout.world_size(), [&](RankContext& context) {
        const Shards shards(grads, layout, context.group());
        clip_grad_norm(shards.parameters, 1.0, norm_type);
        EXPECT_EQ(shards.all_reduces(), (std::isinf(norm_type) ? 1 : 2) * layout.groups);
      });
    }
  }
}

TEST(ClipGradNormOverRanks, LeavesNoNormAboveTheLimit) {
  constexpr double kLimit = 0.3;
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const auto grads = gradients(dtype);
    // Float32 rounds the factor and every product.
    const double highest = dtype == Dtype::kFloat32 ? kLimit * (1.0 + 0x1p-23) : kLimit;
    for (const auto& layout : kLayouts) {
      for (const double norm_type : kNormTypes) {
        launch(layout.world_size(), [&](RankContext& context) {
          const Shards shards(grads, layout, context.group());
          EXPECT_GT(clip_grad_norm(shards.parameters, kLimit, norm_type), 2 * kLimit);
          const double after = clip_grad_norm(shards.parameters, kInf, norm_type);
          EXPECT_LE(after, highest);
          EXPECT_GT(after, 0.99 * kLimit);  // no more than needed
          for (const auto& parameter : shards.parameters) {
            EXPECT_LE(clip_grad_norm({parameter}, kInf, norm_type), highest) << parameter.name;
          }
        });
      }
    }
  }
}

TEST(ClipGradNormOverRanks, KnowsOfNansAndInfinitiesOnOtherRanks) {
  for (const auto& layout : kLayouts) {
    for (const std::size_t which : {1U, 2U}) {  // dense, experts
      for (const double planted : {kNan, kInf}) {
        auto grads = gradients(Dtype::kFloat32);
        grads[which].whole.mutable_data<float>().back() = static_cast<float>(planted);
        for (const double norm_type : kNormTypes) {
          launch(layout.world_size(), [&](RankContext& context) {
            const Shards shards(grads, layout, context.group());
            const double norm = clip_grad_norm(shards.parameters, 1.0, norm_type);
            EXPECT_EQ(std::isnan(norm), std::isnan(planted));
            EXPECT_EQ(std::isinf(norm), std::isinf(planted));
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::optim::clip_grad_norm_ranks_test
