// SPDX-License-Identifier: Apache-2.0
#include "examples/dry_run.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "examples/trainer.h"
#include "framework/distributed/launch.h"
#include "framework/tensor/arena.h"
#include "framework/tensor/meta.h"

namespace moegrad::examples {
namespace {

double megabytes_in(const std::string& report, const std::string& name) {
  const auto at = report.find("\n  " + name + " ");
  if (at == std::string::npos) {
    ADD_FAILURE() << name << report;
    return 0;
  }
  return std::stod(report.substr(at + name.size() + 3));
}

TEST(DryRun, SaysWhatARankThenHolds) {
  for (const int world_size : {1, 3, 8}) {
    TrainOptions options;
    options.preset = "tiny";
    options.world_size = world_size;
    const auto report = dry_run_report(options);
    launch(world_size, [&](RankContext& context) {
      std::optional<models::Qwen3Moe> model;
      {
        const MetaGuard no_bytes;
        model.emplace(options.model_config());
      }
      shard_model(*model, DeviceMesh::flat(context.group()), {});
      model->to_empty();
      const optim::AdamW optimizer(model->named_parameters(), {});
      if (context.rank() != 0) return;
      const auto live = context.arena()->live();
      EXPECT_NEAR(megabytes_in(report, "parameters"),
                  static_cast<double>(live[MemoryTag::kParameters]) / 1e6, 0.005);
      // Besides the moments, a count of steps for each parameter.
      const auto steps = 8 * std::ssize(model->named_parameters());
      EXPECT_NEAR(megabytes_in(report, "AdamW's moments"),
                  static_cast<double>(live[MemoryTag::kOptimizer] - steps) / 1e6, 0.005);
    });
  }
}

TEST(DryRun, NamesLayersThatAreAlikeOnce) {
  TrainOptions options;
  options.preset = "tiny";
  const auto report = dry_run_report(options);
  EXPECT_NE(report.find("  model.layers.{0-3}.self_attn.q_proj.weight "), std::string::npos)
      << report;
  EXPECT_EQ(report.find("model.layers.0."), std::string::npos) << report;
}

}  // namespace
}  // namespace moegrad::examples
