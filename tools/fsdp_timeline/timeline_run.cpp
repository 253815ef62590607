// SPDX-License-Identifier: Apache-2.0
#include "tools/fsdp_timeline/timeline_run.h"

#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "framework/distributed/gather_timelines.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/distributed/slow_rank_watch.h"
#include "framework/runtime/rank_context.h"
#include "optim/adamw.h"
#include "train/data/random_data.h"
#include "train/data/step_loader.h"
#include "train/train_step.h"

namespace moegrad::tools {

using namespace training;

namespace {

using std::chrono::nanoseconds;

/// Makes every decoder layer of this rank compute `factor` times as long, forward and backward.
class Slowdown {
 public:
  Slowdown(models::CausalLM& model, double factor) : factor_(factor) {
    const auto begin = [this](nn::Module&) { begin_ = thread_cpu_time(); };
    const auto end = [this](nn::Module&) { stretch(); };
    for (auto& layer : model.layers()) {
      layer.register_forward_pre_hook(begin);
      layer.register_forward_hook(end);
      layer.register_backward_pre_hook(begin);
      layer.register_backward_hook(end);
    }
  }
  Slowdown(const Slowdown&) = delete;
  Slowdown& operator=(const Slowdown&) = delete;

 private:
  void stretch() const {
    const std::chrono::duration<double, std::nano> took = thread_cpu_time() - begin_;
    const auto end = begin_ + std::chrono::duration_cast<nanoseconds>(took * factor_);
    while (thread_cpu_time() < end) {
    }
  }

  double factor_;
  nanoseconds begin_{0};
};

RankTimeline run_rank(RankContext& context, const TimelineOptions& options,
                      const std::function<void(std::int64_t, const SlowRank&)>& on_slow_rank) {
  models::CausalLM model(options.config, /*seed=*/1);
  auto& state = shard_model(model, DeviceMesh::flat(context.group()),
                            {.forward_prefetch = options.prefetch ? 1 : 0});
  if (!options.prefetch) turn_backward_prefetch_off(model);
  std::unique_ptr<Slowdown> slowdown;
  if (context.rank() == options.slow_rank) {
    slowdown = std::make_unique<Slowdown>(model, options.slow_by);
  }
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  const RandomData data({.vocab_size = options.config.vocab_size,
                         .length = options.sequence_length,
                         .sequences = options.batch,
                         .micro_batches = options.ranks});
  fsdp::StepPlan plan(state, data.micro_batches());
  StepLoader loader(data, plan.indices());
  const StepOptions unclipped = {.max_grad_norm = 0};
  train_step(model, plan, loader.batches(0), unclipped, optimizer);
  context.arena()->reset_peak();
  context.group()->barrier()->wait();

  RankTimeline timeline;
  context.spans().start(options.level, std::numeric_limits<std::size_t>::max());
  SlowRankWatch watch(context, context.group());
  for (std::int64_t i = 0; i < options.steps; ++i) {
    const auto batches = loader.batches(1 + i);
    timeline.step_begins.push_back(SpanClock::now());
    {
      const WorkGuard work(WorkClass::kCompute);
      train_step(model, plan, batches, unclipped, optimizer);
    }
    if ((i + 1) % options.window != 0) continue;
    for (const auto& slow : watch.close_window()) {
      if (context.rank() == 0 && on_slow_rank) on_slow_rank(i + 1, slow);
    }
  }
  timeline.step_begins.push_back(SpanClock::now());
  context.spans().stop();
  timeline.spans = context.spans().spans();
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    timeline.peak_bytes[tag] = context.arena()->peak(static_cast<MemoryTag>(tag));
  }
  timeline.peak_total = context.arena()->peak().total();
  return timeline;
}

}  // namespace

void turn_backward_prefetch_off(nn::Module& root) {
  for (const auto& [path, module] : root.named_modules()) {
    if (auto* state = module->extension<fsdp::State>()) {
      state->set_modules_to_backward_prefetch({});
    }
  }
}

std::vector<RankTimeline> run_timeline(
    const TimelineOptions& options,
    const std::function<void(std::int64_t, const SlowRank&)>& on_slow_rank) {
  std::vector<RankTimeline> timelines;
  LaunchOptions launch_options;
  launch_options.exit_after = kProgramExitsAfter;
  launch_options.link = options.link;
  launch_ranks(
      options.ranks,
      [&](RankContext& context) {
        const auto own = run_rank(context, options, on_slow_rank);
        auto gathered = gather_timelines(*context.group(), own);
        if (context.rank() == 0) timelines = std::move(gathered);
      },
      launch_options);
  return timelines;
}

}  // namespace moegrad::tools
