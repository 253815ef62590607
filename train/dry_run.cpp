// SPDX-License-Identifier: Apache-2.0
#include "train/dry_run.h"

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
#include <vector>

#include "framework/runtime/mpi_environment.h"
#include "framework/tensor/meta.h"
#include "models/causal_lm/model.h"
#include "train/memory_budget.h"
#include "train/memory_plan.h"
#include "train/optimizers.h"
#include "train/rank_memory.h"

namespace moegrad::training {
namespace {

constexpr std::string_view kLayers = "model.layers.";
constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

std::string with_separators(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// Layers that have the same parameters with the same shapes share one line per parameter.
struct Line {
  std::string name;  // within the layer, or the full name
  Tensor parameter;
  std::vector<std::int64_t> layers = {};
};

std::vector<Line> lines_of(const NamedTensors& parameters) {
  std::vector<Line> lines;
  for (const auto& [name, parameter] : parameters) {
    if (!name.starts_with(kLayers)) {
      lines.push_back({name, parameter});
      continue;
    }
    const auto dot = name.find('.', kLayers.size());
    const auto layer = std::stoll(name.substr(kLayers.size(), dot - kLayers.size()));
    const auto rest = name.substr(dot + 1);
    const auto& shape = parameter.shape();
    const auto seen = std::ranges::find_if(lines, [&](const Line& line) {
      return !line.layers.empty() && line.name == rest && line.parameter.shape() == shape;
    });
    if (seen == lines.end()) {
      lines.push_back({rest, parameter, {layer}});
    } else {
      seen->layers.push_back(layer);
    }
  }
  return lines;
}

// "0-3, 5"
std::string ranges_of(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(layers[i]);
    if (last > i) text.append("-").append(std::to_string(layers[last]));
    i = last + 1;
  }
  return text;
}

class Report {
 public:
  explicit Report(const TrainConfig& options) : options_(options), config_(options.model_config()) {
    check_memory_budget(options);
    const MetaGuard no_bytes;
    model_.emplace(config_);
    set_memory_plan(*model_, options.memory.plan);  // which may refuse it
    out_ << std::fixed << std::setprecision(2);
  }

  std::string text() {
    add_shapes();
    add_counts();
    const auto total = add_memory();
    if (config_.num_moe_layers() > 0 && total >= kGibibyte) add_memory_by_ranks();
    return out_.str();
  }

 private:
  void add_shapes() {
    for (const auto& [name, parameter, layers] : lines_of(model_->named_parameters())) {
      std::ostringstream shape;
      shape << parameter.shape();
      const auto full =
          layers.empty()
              ? name
              : std::string(kLayers).append("{").append(ranges_of(layers)).append("}.") + name;
      out_ << "  " << std::left << std::setw(58) << full << std::setw(18) << shape.str()
           << std::right << std::setw(18) << with_separators(parameter.numel()) << '\n';
    }
  }

  void count(std::string_view name, std::int64_t value) {
    out_ << std::left << std::setw(28) << name << std::right << std::setw(20)
         << with_separators(value) << '\n';
  }

  void add_counts() {
    std::int64_t total = 0;
    for (const auto& [name, parameter] : model_->named_parameters()) total += parameter.numel();
    const auto tables =
        (config_.tie_word_embeddings ? 1 : 2) * config_.vocab_size * config_.hidden_size;
    const auto active = models::active_parameter_count(config_);
    count("parameters", total);
    count("without embeddings", total - tables);
    count("active per token", active);
    count("active without embeddings", active - tables);
    count("tokens per step", options_.tokens_per_step());
    const double flops = models::flops_per_token(config_, options_.data.sequence_length);
    out_ << std::left << std::setw(28) << "FLOPs per token" << std::right << std::setw(20)
         << std::scientific << flops << std::fixed << "  (forward and backward, documents of "
         << options_.data.sequence_length << " tokens)\n";
  }

  void memory(std::string_view name, std::int64_t bytes) {
    if (bytes == 0) return;
    out_ << "  " << std::left << std::setw(32) << name << std::right << std::setw(16)
         << with_separators(bytes) << " bytes\n";
  }

  /// Returns the total.
  std::int64_t add_memory() {
    const auto bytes = rank_memory(options_);
    out_ << "memory of rank 0 of " << options_.parallel.world_size
         << (mpi_environment() ? " processes" : "") << ", the largest, without activations\n";
    memory("parameters", bytes.parameters);
    memory(optimizer_named(options_.optim.optimizer).title + "'s state", bytes.optimizer);
    memory("checkpoint's buffer", bytes.checkpoint);
    memory("gathered parameters", bytes.gathered);
    memory("gradients in backward, at most", bytes.backward);
    memory("  held until the step", bytes.gradients);
    memory("communication, at most", bytes.communication);
    memory("together, at most", bytes.total());
    return bytes.total();
  }

  // Where gathering a layer's experts takes too much, expert parallelism within a host may not.
  void add_memory_by_ranks() {
    constexpr int kRanksOfAHost = 8, kFewestRanks = 16, kMostRanks = 1024;
    const bool divisible = config_.num_experts % kRanksOfAHost == 0;
    out_ << "the same in GiB, at most, by the number of ranks\n"
         << std::setw(9) << "ranks" << std::setw(20) << "experts gathered";
    if (divisible) out_ << std::setw(24) << "--expert-parallel 8";
    out_ << '\n';
    for (int ranks = kFewestRanks; ranks <= kMostRanks; ranks *= 4) {
      auto options = options_;
      options.parallel.world_size = ranks;
      out_ << std::setw(9) << ranks;
      for (const int experts : {1, kRanksOfAHost}) {
        if (experts > 1 && !divisible) continue;
        options.parallel.expert_parallel = experts;
        out_ << std::setw(experts > 1 ? 24 : 20)
             << static_cast<double>(rank_memory(options).total()) / kGibibyte;
      }
      out_ << '\n';
    }
  }

  const TrainConfig& options_;
  models::CausalLMConfig config_;
  std::optional<models::CausalLM> model_;
  std::ostringstream out_;
};

}  // namespace

std::string dry_run_report(const TrainConfig& options) { return Report(options).text(); }

}  // namespace moegrad::training
