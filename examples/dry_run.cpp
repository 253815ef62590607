// SPDX-License-Identifier: Apache-2.0
#include "examples/dry_run.h"

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
#include <vector>

#include "framework/tensor/meta.h"
#include "models/qwen3_moe.h"

namespace moegrad::examples {
namespace {

constexpr std::string_view kLayers = "model.layers.";

std::string with_separators(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// What a rank keeps of a parameter: rows in equal chunks, rounded up.
std::int64_t largest_shard(const Tensor& parameter, std::int64_t ranks) {
  const auto rows = parameter.dim(0);
  return (rows + ranks - 1) / ranks * (parameter.numel() / rows);
}

// Layers with the same parameters of the same shapes make one line each.
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
    const auto seen = std::ranges::find_if(lines, [&](const Line& line) {
      return !line.layers.empty() && line.name == rest &&
             line.parameter.shape() == parameter.shape();
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
  explicit Report(const TrainOptions& options)
      : options_(options), config_(options.model_config()) {
    const MetaGuard no_bytes;
    model_.emplace(config_);
    out_ << std::fixed << std::setprecision(2);
  }

  std::string text() {
    add_shapes();
    add_counts();
    add_memory();
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
    const double flops = models::flops_per_token(config_, options_.sequence_length);
    out_ << std::left << std::setw(28) << "FLOPs per token" << std::right << std::setw(20)
         << std::scientific << flops << std::fixed << "  (forward and backward, documents of "
         << options_.sequence_length << " tokens)\n";
  }

  void memory(std::string_view name, std::int64_t elements) {
    const auto bytes = static_cast<double>(elements * size_of(config_.dtype));
    out_ << "  " << std::left << std::setw(26) << name << std::right << std::setw(16) << bytes / 1e6
         << " MB\n";
    total_bytes_ += bytes;
  }

  // Elements of the largest decoder layer, and of all that stands in none.
  std::pair<std::int64_t, std::int64_t> group_sizes() const {
    std::vector<std::int64_t> layers(static_cast<std::size_t>(config_.num_hidden_layers));
    std::int64_t root = 0;
    for (const auto& [name, parameter] : model_->named_parameters()) {
      if (name.starts_with(kLayers)) {
        layers[static_cast<std::size_t>(std::stoll(name.substr(kLayers.size())))] +=
            parameter.numel();
      } else {
        root += parameter.numel();
      }
    }
    return {*std::ranges::max_element(layers), root};
  }

  void add_memory() {
    std::int64_t shard = 0;
    for (const auto& [name, parameter] : model_->named_parameters()) {
      shard += largest_shard(parameter, options_.world_size);
    }
    out_ << "memory per rank (" << options_.world_size << " ranks, " << config_.dtype
         << "; activations come on top)\n";
    memory("parameters", shard);
    memory("gradients", shard);
    memory("AdamW's moments", 2 * shard);
    if (!options_.checkpoint_dir.empty()) memory("checkpoint's buffer", 3 * shard);
    const auto [layer, root] = group_sizes();
    if (options_.world_size > 1) {
      const auto gathered =
          std::min<std::int64_t>(1 + options_.prefetch, config_.num_hidden_layers);
      memory("gathered at a time", root + gathered * layer);
      memory("their gradients", root + layer);
    }
    out_ << "  " << std::left << std::setw(26) << "together" << std::right << std::setw(16)
         << total_bytes_ / 1e6 << " MB\n";
  }

  const TrainOptions& options_;
  models::Qwen3MoeConfig config_;
  std::optional<models::Qwen3Moe> model_;
  std::ostringstream out_;
  double total_bytes_ = 0;
};

}  // namespace

std::string dry_run_report(const TrainOptions& options) { return Report(options).text(); }

}  // namespace moegrad::examples
