// SPDX-License-Identifier: Apache-2.0
#include "tools/loss_parity/memory_layouts.h"

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <iterator>
#include <string>

#include "framework/runtime/program.h"
#include "fsdp/step_plan.h"
#include "train/memory_plan.h"

namespace moegrad::tools {
namespace {

using training::MemoryPlan;

constexpr const char* kAgain[] = {
    "light",   "medium", "full", "adaptive",       "layernorm",      "core_attn",
    "moe_act", "mlp",    "moe",  "shared_experts", "model.layers.1", "model.layers.2.self_attn"};
constexpr const char* kOffloaded[] = {"activations", "attn_norm", "qkv_linear",
                                      "core_attn",   "attn_proj", "mlp_norm",
                                      "expert_fc1",  "moe_act",   "model.layers.0.self_attn"};
constexpr ParallelDims kDivisions[] = {{},        {.dp_shard = 4},    {.dp_shard = 2, .ep = 2},
                                       {.tp = 2}, {.tp = 2, .ep = 2}, {.dp_shard = 2, .tp = 2}};

// What a layout consists of, as numbers: items of the lists, then the rest.
constexpr std::size_t kFirstOffloaded = std::size(kAgain);
constexpr std::size_t kChunkedLoss = kFirstOffloaded + std::size(kOffloaded);
constexpr std::size_t kItems = kChunkedLoss + 1;
constexpr std::size_t kFloat32 = kItems, kBFloat16 = kItems + 1;
constexpr std::size_t kFirstDivision = kItems + 2;
constexpr std::size_t kAll = kFirstDivision + std::size(kDivisions);
using Parts = std::vector<std::size_t>;

ParityLayout layout_of(const Parts& parts) {
  ParityLayout layout{.model = ParityModel::kAllLayers};
  const auto add = [](std::string& list, const char* item) {
    list = list == "none" ? item : list + ',' + item;
  };
  for (const auto part : parts) {
    if (part < kFirstOffloaded) {
      add(layout.plan.recompute, kAgain[part]);
    } else if (part < kChunkedLoss) {
      add(layout.plan.offload, kOffloaded[part - kFirstOffloaded]);
    } else if (part >= kFirstDivision) {
      layout.ranks = kDivisions[part - kFirstDivision];
    }
    layout.chunked_loss = layout.chunked_loss || part == kChunkedLoss;
    layout.bf16_compute = layout.bf16_compute || part == kBFloat16;
  }
  // One tensor at a time, or a few of them.
  layout.plan.offload_window = parts.size() % 2 == 0 ? 1 : 40000;
  layout.sequence_parallel = layout.ranks.tp > 1;
  layout.token_parts = layout.ranks.tp;
  layout.accumulation = fsdp::accumulation_on(layout.ranks);
  return layout;
}

bool contradict(std::size_t again, std::size_t offloaded) {
  models::CausalLM model(parity_config(ParityModel::kAllLayers), 1);
  try {
    training::set_memory_plan(model, layout_of({again, offloaded}).plan);
  } catch (const UsageError&) {
    return true;
  }
  return false;
}

// No item, one or two.
std::vector<Parts> lists(std::size_t begin, std::size_t end) {
  std::vector<Parts> lists = {{}};
  for (auto i = begin; i < end; ++i) {
    lists.push_back({i});
    for (auto j = i + 1; j < end; ++j) lists.push_back({i, j});
  }
  return lists;
}

std::vector<Parts> all_possible() {
  std::bitset<kAll * kAll> contradicts;
  for (std::size_t i = 0; i < kFirstOffloaded; ++i) {
    for (auto j = kFirstOffloaded; j < kChunkedLoss; ++j) {
      contradicts[i * kAll + j] = contradict(i, j);
    }
  }
  std::vector<Parts> all;
  for (const auto& again : lists(0, kFirstOffloaded)) {
    for (const auto& offloaded : lists(kFirstOffloaded, kChunkedLoss)) {
      const bool goes_together = std::ranges::none_of(again, [&](std::size_t i) {
        return std::ranges::any_of(offloaded, [&](auto j) { return contradicts[i * kAll + j]; });
      });
      if (!goes_together) continue;
      for (const bool chunked_loss : {false, true}) {
        for (const auto dtype : {kFloat32, kBFloat16}) {
          for (auto division = kFirstDivision; division < kAll; ++division) {
            auto& parts = all.emplace_back(again);
            parts.insert(parts.end(), offloaded.begin(), offloaded.end());
            if (chunked_loss) parts.push_back(kChunkedLoss);
            parts.insert(parts.end(), {dtype, division});
          }
        }
      }
    }
  }
  return all;
}

// Pairs of parts that have not met yet.
class Pairs {
 public:
  std::size_t count(const Parts& parts) const {
    std::size_t count = 0;
    for_each(parts, [&](std::size_t pair) { count += missing_[pair] ? 1U : 0U; });
    return count;
  }
  void set(const Parts& parts, bool missing) {
    for_each(parts, [&](std::size_t pair) { missing_[pair] = missing; });
  }

 private:
  static void for_each(const Parts& parts, const auto& visit) {
    for (auto i = parts.begin(); i != parts.end(); ++i) {
      for (auto j = i + 1; j != parts.end(); ++j) visit(*i * kAll + *j);
    }
  }
  std::bitset<kAll * kAll> missing_;
};

}  // namespace

std::vector<ParityLayout> memory_layouts() {
  auto all = all_possible();
  Pairs missing;
  for (const auto& parts : all) missing.set(parts, true);
  std::vector<ParityLayout> layouts;
  while (!all.empty()) {
    // So that not always the first of those is taken that are as good.
    std::ranges::rotate(all, all.begin() + std::ssize(all) / 3);
    const auto news = [&](const Parts& parts) { return missing.count(parts); };
    const auto parts = *std::ranges::max_element(all, {}, news);
    missing.set(parts, false);
    layouts.push_back(layout_of(parts));
    std::erase_if(all, [&](const Parts& each) { return news(each) == 0; });
  }
  for (std::size_t item = 0; item < kItems; ++item) {
    layouts.push_back(layout_of({item, item % 2 == 0 ? kFloat32 : kBFloat16,
                                 kFirstDivision + item % std::size(kDivisions)}));
  }
  return layouts;
}

}  // namespace moegrad::tools
