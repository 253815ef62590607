// SPDX-License-Identifier: Apache-2.0
#include "train/dry_run.h"

#include <gtest/gtest.h>

#include <string>

#include "framework/runtime/program.h"
#include "tests/testing.h"

namespace moegrad::training::dry_run_test {
namespace {

TEST(DryRun, SaysTheBytesOfRankMemory) {
  TrainConfig options;
  options.model.preset = "tiny";
  options.data.micro_batches = 8;
  options.parallel.wire_dtype = Dtype::kBFloat16;
  options.checkpoint.dir = "checkpoints";
  const auto report = dry_run_report(options);
  EXPECT_EQ(report.substr(report.find("memory of rank")),
            R"(memory of rank 0 of 2, the largest, without activations
  parameters                               562,560 bytes
  AdamW's state                          1,125,496 bytes
  checkpoint's buffer                    1,688,056 bytes
  gathered parameters                      628,224 bytes
  gradients in backward, at most         2,754,240 bytes
    held until the step                    562,560 bytes
  communication, at most                    62,112 bytes
  together, at most                      6,820,688 bytes
)");
}

TEST(DryRun, RefusesAPlanThatTheModelDoesNotFit) {
  TrainConfig options;
  options.model.preset = "tiny";
  options.memory.plan = {.recompute = "model.layers.1.mlp", .offload = "activations"};
  dry_run_report(options);
  options.memory.budget = 1;
  EXPECT_EQ(test::message_of<UsageError>([&] { dry_run_report(options); }).substr(0, 34),
            "--memory-budget: must be at least ");
  options.memory.budget = 0;
  options.memory.plan.recompute = "model.layers.99";
  EXPECT_EQ(test::message_of<UsageError>([&] { dry_run_report(options); }).substr(0, 45),
            "--recompute: 'model.layers.99' must be one of");
}

TEST(DryRun, NamesTheOptimizer) {
  TrainConfig options;
  options.model.preset = "tiny";
  options.optim.optimizer = "lion";
  const auto report = dry_run_report(options);
  EXPECT_NE(report.find("\n  Lion's state                             562,560 bytes\n"),
            std::string::npos)
      << report;
}

TEST(DryRun, TabulatesTheMemoryOfLargeMixturesByRanks) {
  TrainConfig options;
  options.model.preset = "qwen3-30b-a3b";
  const auto table = [&] {
    const auto report = dry_run_report(options);
    const auto begin = report.find("the same in GiB");
    return begin == std::string::npos ? "" : report.substr(begin);
  };
  EXPECT_EQ(table(), R"(the same in GiB, at most, by the number of ranks
    ranks    experts gathered     --expert-parallel 8
       16               42.07                   35.69
       64               20.96                   14.58
      256               15.68                    9.31
     1024               14.37                    7.99
)");
  options.model.preset = "tiny";
  EXPECT_EQ(table(), "");
  options.model.preset = "qwen3-0.6b";  // large, but dense
  EXPECT_EQ(table(), "");
}

TEST(DryRun, NamesLayersThatAreAlikeOnce) {
  TrainConfig options;
  options.model.preset = "tiny";
  const auto report = dry_run_report(options);
  EXPECT_NE(report.find("  model.layers.{0-3}.self_attn.q_proj.weight "), std::string::npos)
      << report;
  EXPECT_EQ(report.find("model.layers.0."), std::string::npos) << report;
}

}  // namespace
}  // namespace moegrad::training::dry_run_test
