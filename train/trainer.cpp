// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "framework/autograd/grad_mode.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/slow_storage.h"
#include "framework/runtime/error.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "models/qwen3_moe/loss.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "optim/clip_grad_norm.h"

namespace moegrad::training {
namespace {

using Counts = std::vector<std::vector<std::int64_t>>;

void add_counts(Counts& counts, const Counts& more) {
  if (counts.empty()) counts.resize(more.size());
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    counts[layer].resize(more[layer].size());
    std::ranges::transform(counts[layer], more[layer], counts[layer].begin(), std::plus<>());
  }
}

// Adds the ranks' counts; each is an exact integer.
void sum_counts(Counts& counts, ProcessGroup& group) {
  for (auto& layer : counts) all_reduce(group, std::span(layer));
}

std::int64_t draw(std::span<const double> weights, double u) {
  double total = 0;
  for (const auto weight : weights) total += weight;
  double sum = 0;
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    sum += weights[i];
    if (u * total < sum) return static_cast<std::int64_t>(i);
  }
  return std::ssize(weights) - 1;
}

std::int64_t choose(const Tensor& logits, std::int64_t row, double temperature, double u) {
  const Tensor values = to_dtype(logits, Dtype::kFloat64);
  const auto n = static_cast<std::size_t>(logits.dim(1));
  const auto all = values.data<double>().subspan(static_cast<std::size_t>(row) * n, n);
  const auto largest = std::ranges::max_element(all);
  if (temperature == 0) return largest - all.begin();
  std::vector<double> weights;
  for (const auto value : all) weights.push_back(std::exp((value - *largest) / temperature));
  return draw(weights, u);
}

template <class Visit>
void for_each_word(std::string_view text, const Visit& visit) {
  std::string word;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) != 0) {
      word += text[i];
    } else if (!word.empty()) {
      visit(std::exchange(word, {}));
    }
  }
}

}  // namespace

std::vector<optim::ParamGroup> decay_matrices(const NamedTensors& parameters, double lr,
                                              double weight_decay) {
  std::vector<optim::ParamGroup> groups = {
      {.parameters = {}, .lr = lr, .weight_decay = weight_decay},
      {.parameters = {}, .lr = lr, .weight_decay = 0}};
  for (const auto& parameter : parameters) {
    groups[parameter.tensor.ndim() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return groups;
}

fsdp::State& shard_model(models::Qwen3Moe& model, const DeviceMesh& mesh,
                         const fsdp::Policy& policy) {
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh, policy);
  auto whole = policy;
  whole.linear_only_shard = false;  // the root takes what the layers left
  return fsdp::fully_shard(model, mesh, whole);
}

double sum_in_order(std::vector<double> terms, const std::shared_ptr<ProcessGroup>& group) {
  // Exact: of each term's summands all but one are zero.
  if (group && group->size() > 1) all_reduce(*group, std::span(terms));
  double sum = 0;
  for (const auto term : terms) sum += term;
  return sum;
}

StepResult train_step(models::Qwen3Moe& model, fsdp::State& state,
                      const std::vector<MicroBatch>& batches, const StepOptions& options,
                      optim::AdamW& optimizer) {
  const auto coefficient = model.config().router_aux_loss_coef;
  std::int64_t targets = 0;
  for (const auto& batch : batches) targets += ops::count_targets(batch.targets);
  const auto own =
      owned_micro_batches(std::ssize(batches), GridPlace::of(state), options.accumulation);

  StepResult result;
  std::vector<double> ce(batches.size()), loss(batches.size());
  optimizer.zero_grad();
  for (std::size_t slot = 0; slot < own.size(); ++slot) {
    const bool idle = own[slot] == kIdle;
    const auto index = idle ? 0 : static_cast<std::size_t>(own[slot]);
    const auto& batch = batches[index];
    communicate_gradients(state, options.accumulation, slot + 1 == own.size());
    models::Qwen3Moe::ForwardOptions forward{.recompute_layers = options.recompute_layers};
    if (options.linear_cross_entropy) forward.targets = batch.targets;
    if (options.replay != nullptr) forward.replay_expert_indices = &(*options.replay)[index];
    auto output = model(batch.tokens, batch.documents, forward);
    const auto share = models::qwen3_moe_loss(output, batch.targets, targets, coefficient);
    if (idle) {
      (share.objective * 0.0).backward();
      for (auto& counts : output.tokens_per_expert) std::ranges::fill(counts, 0);
      add_counts(result.tokens_per_expert, output.tokens_per_expert);
      continue;
    }
    share.objective.backward();
    ce[index] = share.ce_sum.item();
    loss[index] = share.objective.item();
    result.expert_indices.push_back(output.expert_indices);
    add_counts(result.tokens_per_expert, output.tokens_per_expert);
  }
  const auto& group = RankContext::current().group();
  if (group) sum_counts(result.tokens_per_expert, *group);
  result.ce = sum_in_order(std::move(ce), group) / static_cast<double>(targets);
  result.loss = sum_in_order(std::move(loss), group);
  const auto parameters = model.named_parameters();
  const double limit = options.max_grad_norm > 0 ? options.max_grad_norm : HUGE_VAL;
  result.grad_norm = optim::clip_grad_norm(parameters, limit);
  if (result.is_finite()) optimizer.step();
  return result;
}

double evaluate(models::Qwen3Moe& model, const TrainingData& data,
                const std::function<void()>& before_batch) {
  const NoGradGuard no_grad;
  auto& context = RankContext::current();
  const auto batches = data.validation_batches();
  const auto each = (batches + context.world_size() - 1) / context.world_size();
  std::vector<double> sums(static_cast<std::size_t>(batches)), targets = sums;
  for (std::int64_t i = context.rank() * each; i < (context.rank() + 1) * each; ++i) {
    before_batch();
    // The last rank may have fewer: it repeats one and counts it as nothing.
    const auto held_out = [&] {
      const SlowStorage storage("reading held-out batches");
      return data.validation_batch(std::min(i, batches - 1));
    }();
    const auto output = model(held_out.tokens, held_out.documents);
    if (i >= batches) continue;
    sums[static_cast<std::size_t>(i)] =
        ops::cross_entropy(output.logits, held_out.targets, {.denominator = 1.0}).item();
    targets[static_cast<std::size_t>(i)] =
        static_cast<double>(ops::count_targets(held_out.targets));
  }
  const double sum = sum_in_order(std::move(sums), context.group());
  return sum / sum_in_order(std::move(targets), context.group());
}

std::string sample(models::Qwen3Moe& model, const std::string& prompt, std::int64_t bytes,
                   std::int64_t context, double temperature, std::uint64_t seed,
                   const std::function<void()>& before_byte) {
  check<ValueError>(!prompt.empty(), "--prompt: must not be empty");
  const NoGradGuard no_grad;
  const Random random(seed, "sampling");
  std::string text = prompt;
  for (std::int64_t i = 0; i < bytes; ++i) {
    before_byte();
    const auto length = std::min(context, std::ssize(text));
    std::vector<std::int64_t> window;
    for (auto at = std::ssize(text) - length; at < std::ssize(text); ++at) {
      window.push_back(static_cast<unsigned char>(text[static_cast<std::size_t>(at)]));
    }
    const auto output = model(Tensor::from(window, {length}));
    const auto next = choose(output.logits, length - 1, temperature,
                             random.uniform(static_cast<std::uint64_t>(i)));
    text += static_cast<char>(next);
  }
  return text.substr(prompt.size());
}

double known_words(std::string_view text, std::string_view corpus) {
  std::unordered_set<std::string> vocabulary;
  for_each_word(corpus, [&](std::string word) { vocabulary.insert(std::move(word)); });
  std::int64_t words = 0, known = 0;
  for_each_word(text, [&](const std::string& word) {
    ++words;
    known += vocabulary.contains(word) ? 1 : 0;
  });
  return words == 0 ? 0.0 : static_cast<double>(known) / static_cast<double>(words);
}

}  // namespace moegrad::training
