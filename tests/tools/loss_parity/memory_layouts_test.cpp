// SPDX-License-Identifier: Apache-2.0
#include "tools/loss_parity/memory_layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "framework/runtime/program.h"
#include "tests/testing.h"
#include "train/memory_plan.h"

namespace moegrad::tools::memory_layouts_test {
namespace {

using training::MemoryPlan;
using Names = std::set<std::string>;

Names items_of(const std::string& option, const std::string& list) {
  Names items;
  std::istringstream text(list);
  for (std::string item; std::getline(text, item, ',');) {
    if (item != "none") items.insert(option + item);
  }
  return items;
}

// The items of its plan, and how the rest is.
Names parts_of(const ParityLayout& layout) {
  auto parts = items_of("recompute ", layout.plan.recompute);
  parts.merge(items_of("offload ", layout.plan.offload));
  if (layout.chunked_loss) parts.insert("loss in chunks");
  parts.insert(layout.bf16_compute ? "bfloat16" : "float32");
  parts.insert(to_string(layout.ranks));
  return parts;
}

const Names kItems = {"recompute light",
                      "recompute medium",
                      "recompute full",
                      "recompute adaptive",
                      "recompute layernorm",
                      "recompute core_attn",
                      "recompute moe_act",
                      "recompute mlp",
                      "recompute moe",
                      "recompute shared_experts",
                      "recompute model.layers.1",
                      "recompute model.layers.2.self_attn",
                      "offload activations",
                      "offload attn_norm",
                      "offload qkv_linear",
                      "offload core_attn",
                      "offload attn_proj",
                      "offload mlp_norm",
                      "offload expert_fc1",
                      "offload moe_act",
                      "offload model.layers.0.self_attn",
                      "loss in chunks"};
const Names kDtypes = {"float32", "bfloat16"};
const Names kDivisions = {"one rank", "dp_shard 4", "dp_shard 2, ep 2",
                          "tp 2",     "tp 2, ep 2", "dp_shard 2, tp 2"};

void expect_contradiction(const std::string& first, const std::string& second) {
  MemoryPlan plan;
  for (const auto& item : {first, second}) {
    const auto name = item.substr(item.find(' ') + 1);
    (item.starts_with("recompute") ? plan.recompute : plan.offload) = name;
  }
  models::CausalLM model(parity_config(ParityModel::kAllLayers), 1);
  SCOPED_TRACE(first + ", " + second);
  EXPECT_NE(test::message_of<UsageError>([&] { training::set_memory_plan(model, plan); }), "");
}

TEST(MemoryLayouts, ContainEachItemAloneAndEachPairThatDoesNotContradictItself) {
  std::set<std::pair<std::string, std::string>> met;
  Names alone;
  const auto layouts = memory_layouts();
  for (const auto& layout : layouts) {
    const auto own = parts_of(layout);
    for (const auto& first : own) {
      for (const auto& second : own) met.emplace(first, second);
    }
    if (own.size() == 3) alone.insert(own.begin(), own.end());
  }
  EXPECT_TRUE(std::ranges::includes(alone, kItems));
  for (const auto& item : kItems) {
    for (const auto* const others : {&kItems, &kDtypes, &kDivisions}) {
      for (const auto& other : *others) {
        if (!met.contains({item, other})) expect_contradiction(item, other);
      }
    }
  }
  for (const auto& dtype : kDtypes) {
    for (const auto& division : kDivisions) EXPECT_TRUE(met.contains({dtype, division}));
  }
  EXPECT_LE(layouts.size(), 100U);
}

}  // namespace
}  // namespace moegrad::tools::memory_layouts_test
