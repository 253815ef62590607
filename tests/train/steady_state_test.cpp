// SPDX-License-Identifier: Apache-2.0

// A training step in its steady state asks the system for no memory, whichever way its tokens fall
// to documents and experts. A program of its own: it replaces operator new and filters system
// calls.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/distributed/process_group.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "models/causal_lm/loss.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "tests/mapping_calls.h"
#include "tests/new_calls.h"
#include "train/train_step.h"

namespace moegrad::training::steady_state_test {
namespace {

constexpr std::int64_t kTokens = 1024;  // of a micro-batch
constexpr std::int64_t kWarmUp = 4;
constexpr std::int64_t kSteps = 3;  // of a window
constexpr std::int64_t kWindows = 8;

struct Layout {
  int ranks, threads;  // per rank
  bool sharded;
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << (layout.sharded ? "fully_shard, " : "plain, ") << layout.ranks << " ranks x "
             << layout.threads << " threads";
}

// An expert has 512 rows on average, and now more, now fewer than those from which on a product
// packs its weight once (ops/grouped_products.cpp).
models::CausalLMConfig small_config() {
  models::CausalLMConfig config;
  config.vocab_size = 1024;
  config.hidden_size = 128;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  config.num_experts = 8;
  config.num_experts_per_tok = 4;
  config.moe_intermediate_size = 96;
  config.norm_topk_prob = true;
  config.router_aux_loss_coef = 0.001;
  return config;
}

// Random tokens of a vocabulary and in documents that are other ones in each micro-batch.
MicroBatch random_batch(std::int64_t step, std::int64_t index) {
  const Random random(static_cast<std::uint64_t>(2 * step + index), "steady state");
  std::uint64_t draws = 0;
  const auto vocabulary = 1 + random.integer(draws++, small_config().vocab_size);
  MicroBatch batch{.tokens = Tensor::empty({kTokens}, Dtype::kInt64),
                   .targets = Tensor::empty({kTokens}, Dtype::kInt64)};
  for (auto* tensor : {&batch.tokens, &batch.targets}) {
    for (auto& token : tensor->mutable_data<std::int64_t>()) {
      token = random.integer(draws++, vocabulary);
    }
  }
  std::vector<std::int64_t> offsets{0};
  while (offsets.back() < kTokens) {
    const auto length = 1 + random.integer(draws++, 400);
    offsets.push_back(std::min(kTokens, offsets.back() + length));
  }
  batch.documents = Documents(offsets);
  return batch;
}

void plain_step(models::CausalLM& model, const MicroBatch& batch, optim::AdamW& optimizer) {
  optimizer.zero_grad();
  const auto output = model(batch.tokens, batch.documents);
  models::causal_lm_loss(output, batch.targets, kTokens, 0.001).objective.backward();
  optim::clip_grad_norm(model.named_parameters(), 1.0);
  optimizer.step();
}

/// What the process has asked of the system and of its heap so far.
struct Requests {
  std::int64_t page_faults = 0, mapping_calls = 0;
  test::NewCalls news = {};

  static Requests now() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return {.page_faults = usage.ru_minflt + usage.ru_majflt,
            .mapping_calls = test::mapping_calls(),
            .news = test::new_calls()};
  }
};

void print(const Layout& layout, const Requests& before, const Requests& after) {
  const auto calls = after.news.calls - before.news.calls;
  std::cout << layout << ": in a step " << calls / kSteps << " calls of operator new, of "
            << (after.news.bytes - before.news.bytes) / calls << " bytes on average, "
            << after.news.largest << " at most\n";
}

/// Arenas never grow after the warm-up. The heap of the C library may, by a page: small blocks,
/// which come and go in a slightly other order in each step, fill it up differently. So of several
/// windows one must pass without a page fault and without a call that maps memory. Where the system
/// lets no program filter its own calls, page faults speak for those.
class SteadyState : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    static const bool counted = test::count_mapping_calls();
    if (!counted) std::cout << "mapping calls are not counted: no filter of system calls here\n";
  }

  void run_rank(RankContext& context) {
    models::CausalLM model(small_config(), 1);
    fsdp::State* state = nullptr;
    if (GetParam().sharded) state = &shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-3, 0.1), {});
    std::optional<fsdp::StepPlan> plan;
    if (state != nullptr) plan.emplace(*state, 2);
    std::vector<std::vector<MicroBatch>> steps;
    for (std::int64_t i = 0; i < kWarmUp + kWindows * kSteps; ++i) {
      steps.push_back({random_batch(i, 0), random_batch(i, 1)});
    }
    auto next = steps.begin();
    const auto run = [&](std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, ++next) {
        if (state == nullptr) {
          plain_step(model, next->front(), optimizer);
        } else {
          train_step(model, *plan, plan->own(*next), {}, optimizer);
        }
      }
      context.group()->barrier()->wait();
    };
    run(kWarmUp);
    const auto blocks = context.arena()->system_allocations();
    for (std::int64_t window = 0; window < kWindows && !silent_; ++window) {
      test::reset_largest_new();
      const auto before = Requests::now();
      context.group()->barrier()->wait();
      run(kSteps);
      if (context.rank() == 0) judge(before, Requests::now());
      context.group()->barrier()->wait();
    }
    EXPECT_EQ(context.arena()->system_allocations(), blocks);
  }

  // While the other ranks wait.
  void judge(const Requests& before, const Requests& after) {
    faults_ = after.page_faults - before.page_faults;
    mappings_ = after.mapping_calls - before.mapping_calls;
    silent_ = faults_ == 0 && mappings_ == 0;
    if (silent_) print(GetParam(), before, after);
  }

  bool silent_ = false;
  std::int64_t faults_ = 0, mappings_ = 0;  // of the last window
};

TEST_P(SteadyState, AStepAsksTheSystemForNoMemory) {
  launch(GetParam().ranks, [this](RankContext& context) { run_rank(context); },
         {.threads_per_rank = GetParam().threads});
  EXPECT_TRUE(silent_) << "each of " << kWindows << " times " << kSteps << " steps, the last with "
                       << faults_ << " page faults and " << mappings_ << " mapping calls";
}

INSTANTIATE_TEST_SUITE_P(Layouts, SteadyState,
                         ::testing::Values(Layout{1, 1, false}, Layout{1, 2, false},
                                           Layout{1, 1, true}, Layout{1, 2, true},
                                           Layout{2, 1, true}, Layout{2, 2, true}));

}  // namespace
}  // namespace moegrad::training::steady_state_test
