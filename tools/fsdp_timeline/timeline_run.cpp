// SPDX-License-Identifier: Apache-2.0
#include "tools/fsdp_timeline/timeline_run.h"

#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "framework/distributed/launch.h"
#include "framework/distributed/slow_rank_watch.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "models/qwen3_moe/loss.h"
#include "optim/adamw.h"
#include "train/train_step.h"

namespace moegrad::tools {

using namespace training;

namespace {

using std::chrono::nanoseconds;

/// Makes every decoder layer of this rank compute `factor` times as long, forward and backward.
class Slowdown {
 public:
  Slowdown(models::Qwen3Moe& model, double factor) : factor_(factor) {
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

MicroBatch random_batch(const TimelineOptions& options, std::int64_t step, int rank) {
  const Random random(1, "timeline tokens");
  const auto tokens = options.batch * options.sequence_length;
  const auto first = static_cast<std::uint64_t>((step * options.ranks + rank) * tokens);
  MicroBatch batch;
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i <= tokens; ++i) {
    values.push_back(
        random.integer(first + static_cast<std::uint64_t>(i), options.config.vocab_size));
  }
  batch.targets = Tensor::from(std::vector(values.begin() + 1, values.end()), {tokens});
  values.pop_back();
  batch.tokens = Tensor::from(values, {tokens});
  batch.documents = Documents::of_lengths(
      std::vector(static_cast<std::size_t>(options.batch), options.sequence_length));
  return batch;
}

void step(models::Qwen3Moe& model, const MicroBatch& batch, int ranks, optim::AdamW& optimizer) {
  const auto output = model(batch.tokens, batch.documents);
  const auto loss = [&] {
    const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "loss");
    const auto targets = ranks * batch.targets.numel();
    return models::qwen3_moe_loss(output, batch.targets, targets,
                                  model.config().router_aux_loss_coef);
  }();
  optimizer.zero_grad();
  loss.objective.backward();
  optimizer.step();
}

RankTimeline run_rank(RankContext& context, const TimelineOptions& options,
                      const std::function<void(std::int64_t, const SlowRank&)>& on_slow_rank) {
  models::Qwen3Moe model(options.config, /*seed=*/1);
  shard_model(model, DeviceMesh::flat(context.group()),
              {.forward_prefetch = options.prefetch ? 1 : 0});
  if (!options.prefetch) turn_backward_prefetch_off(model);
  std::unique_ptr<Slowdown> slowdown;
  if (context.rank() == options.slow_rank) {
    slowdown = std::make_unique<Slowdown>(model, options.slow_by);
  }
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  step(model, random_batch(options, options.steps, context.rank()), options.ranks, optimizer);
  context.arena()->reset_peak();
  context.group()->barrier()->wait();

  RankTimeline timeline;
  context.spans().start(options.level, std::numeric_limits<std::size_t>::max());
  SlowRankWatch watch(context);
  for (std::int64_t i = 0; i < options.steps; ++i) {
    const auto batch = random_batch(options, i, context.rank());
    timeline.step_begins.push_back(SpanClock::now());
    {
      const WorkGuard work(WorkClass::kCompute);
      step(model, batch, options.ranks, optimizer);
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
    if (auto* state = dynamic_cast<fsdp::State*>(module->extension())) {
      state->set_modules_to_backward_prefetch({});
    }
  }
}

std::vector<RankTimeline> run_timeline(
    const TimelineOptions& options,
    const std::function<void(std::int64_t, const SlowRank&)>& on_slow_rank) {
  std::vector<RankTimeline> timelines(static_cast<std::size_t>(options.ranks));
  launch(options.ranks,
         [&](RankContext& context) {
           timelines[static_cast<std::size_t>(context.rank())] =
               run_rank(context, options, on_slow_rank);
         },
         {.exit_after = kProgramExitsAfter, .link = options.link});
  return timelines;
}

}  // namespace moegrad::tools
