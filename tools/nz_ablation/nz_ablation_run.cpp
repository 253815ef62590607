// SPDX-License-Identifier: Apache-2.0
#include "tools/nz_ablation/nz_ablation_run.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "framework/distributed/launch.h"
#include "framework/distributed/process_group.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/meta.h"
#include "fsdp/step_plan.h"
#include "nn/init.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "tools/nz_ablation/nz_rungs.h"
#include "tools/nz_ablation/rung_forward.h"
#include "train/data/random_data.h"
#include "train/speed_preset.h"
#include "train/train_step.h"

namespace moegrad::tools {

using namespace training;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLayerExperts = 128;
constexpr int kLayerRanks = 8;

models::CausalLMConfig config_of(const SpeedPreset& preset, const Rung& rung) {
  auto config = preset.config;
  config.expert_weights = rung.weights;
  return config;
}

/// A module that takes its steps in turn with others.
class RungRunner {
 public:
  virtual ~RungRunner() = default;
  virtual void step() = 0;
  /// The loss of the last step, over all ranks. Collective.
  virtual double loss() const = 0;
  virtual const nn::Module& module() const = 0;
};

// Gives weights to a sharded module that was made without bytes: those of `like` or, if that is
// null, random ones.
void fill(nn::Module& module, const nn::Module* like, double std) {
  module.to_empty();
  if (like != nullptr) {
    module.load_state_dict(like->state_dict());
  } else {
    nn::init_weights(module, /*seed=*/1, std);
  }
}

/// A model under training. Between its steps it holds no gradients.
class Training final : public RungRunner {
 public:
  Training(const SpeedPreset& preset, const Rung& rung, const nn::Module* like,
           RankContext& context, const RandomData& data)
      : forward_(forward_of(rung)) {
    {
      const MetaGuard no_bytes;
      model_.emplace(config_of(preset, rung));
    }
    auto& state = shard_model(
        *model_, DeviceMesh::flat(context.group()),
        {.linear_only_shard = rung.linear_only_shard, .gathered_layout = rung.gathered});
    plan_.emplace(state, data.micro_batches());
    batches_ = plan_->own(step_batches(data, 0));
    fill(*model_, like, preset.config.initializer_range);
    optimizer_.emplace(model_->named_parameters(), optim::AdamW::Config{.lr = 3e-4});
  }

  void step() override {
    const StepOptions options = {.max_grad_norm = 0};
    loss_ = train_step(*model_, *plan_, batches_, options, *optimizer_, forward_).loss;
  }
  double loss() const override { return loss_; }
  const nn::Module& module() const override { return *model_; }

 private:
  static StepForward forward_of(const Rung& rung) {
    return [rung](models::CausalLM& model, const auto& /*turn*/, const MicroBatch& batch,
                  const auto& /*options*/) {
      return run_forward(model, rung, batch.tokens, batch.documents);
    };
  }

  StepForward forward_;
  double loss_ = 0;
  std::vector<MicroBatch> batches_;
  std::optional<models::CausalLM> model_;
  std::optional<fsdp::StepPlan> plan_;
  std::optional<optim::AdamW> optimizer_;
};

/// A mixture layer alone, without the tape.
class Layer final : public RungRunner {
 public:
  Layer(const models::CausalLMConfig& config, const Rung& rung, const nn::Module* like,
        RankContext& context, const Tensor& x)
      : rung_(rung), x_(x) {
    {
      const MetaGuard no_bytes;
      moe_.emplace(nn::MoE::Config{.hidden_size = config.hidden_size,
                                   .intermediate_size = config.moe_intermediate_size,
                                   .num_experts = kLayerExperts,
                                   .top_k = config.num_experts_per_tok,
                                   .norm_topk_prob = config.norm_topk_prob,
                                   .expert_weights = rung.weights});
    }
    // With linear_only_shard, the root of a model gathers the router. Here the router stays whole.
    fsdp::fully_shard(
        *moe_, DeviceMesh::flat(context.group()),
        {.linear_only_shard = rung.linear_only_shard, .gathered_layout = rung.gathered});
    fill(*moe_, like, config.initializer_range);
  }

  void step() override {
    const NoGradGuard no_grad;
    sum_ = ops::sum(run_forward(*moe_, rung_, x_).hidden).item();
  }
  double loss() const override {
    const auto& context = RankContext::current();
    std::vector<double> terms(static_cast<std::size_t>(context.world_size()));
    terms[static_cast<std::size_t>(context.rank())] = sum_;
    return fsdp::sum_in_order(std::move(terms), {.shard = context.group()});
  }
  const nn::Module& module() const override { return *moe_; }

 private:
  Rung rung_;
  Tensor x_;
  double sum_ = 0;
  std::optional<nn::MoE> moe_;
};

DataMovement count(const Counters& counters) {
  const auto value = [](const auto& counter) { return static_cast<double>(counter.load()); };
  return {.materialized_transposes = value(counters.materialized_transposes),
          .transposed_packs = value(counters.transposed_packs),
          .packed_panels = value(counters.packed_panels),
          .nz_conversions = value(counters.nz_conversions),
          .nz_copy_outs = value(counters.nz_copy_outs),
          .copied_out_bytes = value(counters.copied_out_bytes),
          .converted_bytes = value(counters.converted_bytes),
          .packed_bytes = value(counters.packed_bytes)};
}

// sum += (after - before) / steps
void add(DataMovement& sum, const DataMovement& before, const DataMovement& after,
         std::int64_t steps) {
  for (const auto field : {&DataMovement::materialized_transposes, &DataMovement::transposed_packs,
                           &DataMovement::packed_panels, &DataMovement::nz_conversions,
                           &DataMovement::nz_copy_outs, &DataMovement::copied_out_bytes,
                           &DataMovement::converted_bytes, &DataMovement::packed_bytes}) {
    sum.*field += (after.*field - before.*field) / static_cast<double>(steps);
  }
}

using RungRunners = std::vector<std::unique_ptr<RungRunner>>;  // one per rung

// Runs one round that is not measured, then `rounds` that are. Each round begins one rung later.
std::vector<RungRun> run_in_turn(RankContext& context, std::int64_t rounds,
                                 const std::vector<Rung>& rungs, const RungRunners& runners) {
  std::vector<RungRun> runs;
  for (const auto& rung : rungs) runs.push_back({.name = rung.name});
  for (std::int64_t round = -1; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < rungs.size(); ++turn) {
      const auto i = (static_cast<std::size_t>(round + 1) + turn) % rungs.size();
      context.group()->barrier()->wait();
      const auto before = count(context.counters());
      const auto begin = Clock::now();
      runners[i]->step();
      context.group()->barrier()->wait();
      const std::chrono::duration<double> time = Clock::now() - begin;
      const auto after = count(context.counters());
      runs[i].loss.push_back(runners[i]->loss());
      if (round < 0) continue;
      runs[i].seconds.push_back(time.count());
      add(runs[i].moved, before, after, rounds);
    }
  }
  return runs;
}

using Make =
    std::function<std::unique_ptr<RungRunner>(RankContext&, const Rung&, const nn::Module* like)>;

// Makes the runners on every rank and lets them step in turn. Returns rank 0's results.
std::vector<RungRun> compare(const AblationOptions& options, const std::vector<Rung>& rungs,
                             const Make& make) {
  std::vector<RungRun> runs;
  const auto body = [&](RankContext& context) {
    RungRunners runners;
    for (const auto& rung : rungs) {
      const nn::Module* like = nullptr;
      for (std::size_t i = 0; i < runners.size(); ++i) {
        const bool same_shards = rungs[i].linear_only_shard == rung.linear_only_shard;
        if (same_shards && rungs[i].weights == rung.weights) like = &runners[i]->module();
      }
      runners.push_back(make(context, rung, like));
    }
    auto own = run_in_turn(context, options.rounds, rungs, runners);
    if (context.rank() == 0) runs = std::move(own);
  };
  launch(options.ranks, body,
         {.threads_per_rank = options.threads, .exit_after = kProgramExitsAfter});
  return runs;
}

Tensor random_rows(std::int64_t rows, std::int64_t columns, int rank) {
  const Random random(1, "layer input");
  std::vector<float> values;
  const auto first = static_cast<std::uint64_t>(rank * rows * columns);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    values.push_back(static_cast<float>(random.normal(first + static_cast<std::uint64_t>(i))));
  }
  return Tensor::from(values, {rows, columns});
}

Ladder run_layer(const std::string& preset_name, std::int64_t rounds,
                 const std::vector<Rung>& rungs) {
  const auto preset = speed_preset(preset_name);
  const AblationOptions options = {.ranks = kLayerRanks, .rounds = rounds};
  const auto tokens = preset.sequences * preset.length / options.ranks;
  const auto make = [&](RankContext& context, const Rung& rung, const nn::Module* like) {
    return std::make_unique<Layer>(preset.config, rung, like, context,
                                   random_rows(tokens, preset.config.hidden_size, context.rank()));
  };
  return {.title = "one layer of " + preset_name + " with 128 experts, forward",
          .options = options,
          .tokens = tokens,
          .rungs = compare(options, rungs, make)};
}

}  // namespace

Ladder run_ladder(const std::string& preset_name, const AblationOptions& options) {
  const auto preset = speed_preset(preset_name);
  const auto sequences = std::max<std::int64_t>(preset.sequences, options.ranks);
  check<ValueError>(sequences % options.ranks == 0, "--world-size: must divide the ", sequences,
                    " sequences of ", preset_name, ", got ", options.ranks);
  const auto own = sequences / options.ranks;
  const auto data = random_data(preset, own, options.ranks);
  const auto make = [&](RankContext& context, const Rung& rung, const nn::Module* like) {
    return std::make_unique<Training>(preset, rung, like, context, data);
  };
  return {.title = preset_name,
          .options = options,
          .tokens = own * preset.length,
          .rungs = compare(options, nz_ladder(), make),
          .baselines = {0, 1}};
}

Ladder run_layer_ladder(const std::string& preset, std::int64_t rounds) {
  auto ladder = run_layer(preset, rounds, nz_ladder());
  ladder.baselines = {0, 1};
  return ladder;
}

Ladder run_ways_to_nz(const std::string& preset, std::int64_t rounds) {
  auto ladder = run_layer(preset, rounds, ways_to_nz());
  ladder.title += ", two ways to NZ";
  return ladder;
}

}  // namespace moegrad::tools
