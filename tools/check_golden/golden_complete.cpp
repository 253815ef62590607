// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_complete.h"

#include <algorithm>

#include "framework/runtime/error.h"

namespace moegrad::tools {
namespace {

using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

Names names_of(const NamedTensors& tensors) {
  Names names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

Names names_of(const NamedStats& stats) {
  Names names;
  for (const auto& [name, stat] : stats) names.push_back(name);
  return names;
}

class Completeness {
 public:
  Completeness(const GoldenCase& golden, const Names& parameters)
      : golden_(golden), parameters_(parameters) {}

  void need(bool there, const std::string& what) {
    if (!there) missing_.push_back(what);
  }

  void need_losses(const GoldenLosses& losses, const std::string& where, const std::string& end) {
    need(losses.loss.has_value(), where + "loss" + end);
    need(losses.ce.has_value(), where + "loss_ce" + end);
    need(losses.aux.has_value(), where + "aux_loss" + end);
  }

  /// Requires all parameters except those that may be absent.
  void need_parameters(const Names& given, const std::string& where,
                       const Names& may_be_absent = {}) {
    for (const auto& name : given) {
      check<ValueError>(contains(parameters_, name), "the folder expects something of '", name,
                        "', which its model does not have");
    }
    for (const auto& name : parameters_) {
      need(contains(given, name) || contains(may_be_absent, name), where + name);
    }
  }

  void need_row(const GoldenValues& values, const std::string& file, const std::string& keys,
                const Names& gradients_not_stored) {
    need_losses(values.losses[0], file, "_f64");
    need(values.logits.defined(), file + "logits_f64");
    for_each_mixture([&](std::int64_t layer) {
      need(values.router_logits.contains(layer),
           file + "router_logits_f64." + std::to_string(layer));
    });
    need_parameters(names_of(values.gradients), file + "grad.", gradients_not_stored);
    if (!golden_.has_figures) return;
    const auto json = "expected.json: " + keys;
    need_losses(values.losses.size() > 1 ? values.losses[1] : GoldenLosses{}, json + "fp64.", "");
    need(values.router_margin.has_value(), json + "min_router_margin");
    need(values.gradient_l2.has_value(), json + "grad_global_l2");
    need_parameters(names_of(values.gradient_stats), json + "grad_stats_fp64.");
  }

  void need_pretrained() {
    const auto need_run = [&](const GoldenValues& values, const std::string& precision) {
      const std::string file = "expected.safetensors: ";
      need(values.logits.defined(), file + "logits_" + precision);
      need(values.losses[0].loss.has_value(), file + "loss_" + precision);
      need_parameters(names_of(values.gradients), file + "grad_" + precision + ".");
    };
    need_run(golden_.expected, "f64");
    need_run(golden_.expected_float32, "f32");
    need(!golden_.generations.empty(), "generate.json");
  }

  /// Only gradients of experts may be left out, which are most of a file.
  void check_not_stored() const {
    for (const auto& name : golden_.gradients_not_stored) {
      const bool allowed =
          contains(parameters_, name) && name.find(".experts.") != std::string::npos;
      check<ValueError>(allowed,
                        "expected.json: grad_tensors_not_stored must name weights of the "
                        "model's experts, got '",
                        name, "'");
    }
  }

  void need_batch() {
    const auto& values = golden_.expected;
    const std::string file = "expected.safetensors: ", json = "expected.json: ";
    need_row(values, file, "", golden_.gradients_not_stored);
    const bool some_hidden = std::ranges::any_of(values.hidden, &Tensor::defined);
    for (std::size_t i = 0; i < values.hidden.size() && (some_hidden || !compact()); ++i) {
      need(values.hidden[i].defined(), file + "hidden_f64." + std::to_string(i));
    }
    for_each_mixture([&](std::int64_t layer) {
      const auto at = std::to_string(layer);
      need(values.topk_indices.contains(layer), file + "topk_indices." + at);
      need(values.topk_weights.contains(layer), file + "topk_weights_f64." + at);
      need(!golden_.has_figures || values.tokens_per_expert.contains(layer),
           json + "tokens_per_expert." + at);
    });
    need(golden_.has_figures, "expected.json");
    if (!golden_.has_figures) return;
    need(values.ce_gradient_l2.has_value(), json + "grad_ce_global_l2");
    need_parameters(names_of(values.ce_gradient_stats), json + "grad_ce_only_stats_fp64.");
  }

  void need_packed() {
    need(golden_.packed.has_value(), "the packed row");
    if (!golden_.packed) return;
    Names may_be_absent;
    for (const auto& name : parameters_) {
      if (compact() && name.find(".experts.") != std::string::npos) may_be_absent.push_back(name);
    }
    const std::string file = "expected_packed.safetensors: ";
    need_row(golden_.expected_packed, file, "packed.", may_be_absent);
    for (std::size_t i = 0; i < golden_.alone.size(); ++i) {
      if (golden_.alone[i].num_targets == 0) continue;  // without a loss
      const auto& losses = golden_.expected_alone[i].losses;
      need_losses(losses[0], file + "seq" + std::to_string(i + 1) + ".", "_f64");
      if (!golden_.has_figures) continue;
      need_losses(losses.size() > 1 ? losses[1] : GoldenLosses{},
                  "expected.json: packed.seq_fp64[" + std::to_string(i) + "].", "");
    }
  }

  void need_training() {
    need(!golden_.steps.empty(), "train.json");
    if (golden_.steps.empty()) return;
    need(!golden_.variants.empty(), "train.json: variants");
    for (const auto& name : golden_.variant_names) {
      need(
          std::ranges::find(golden_.variants, name, &GoldenVariant::name) != golden_.variants.end(),
          "train.json: variants." + name);
    }
    for (const auto& variant : golden_.variants) {
      const auto json = "train.json: variants." + variant.name + ".";
      need_losses(variant.final_eval, json + "fp64.final_eval.", "");
      need_parameters(names_of(variant.final_stats), json + "final_param_stats_fp64.");
      const bool stored = !variant.final_parameters.empty() ||
                          (!compact() && contains(kStoredVariants, variant.name));
      if (!stored) continue;
      need_parameters(names_of(variant.final_parameters),
                      "train_final.safetensors: " + variant.name + "/");
    }
  }

  Names take() { return std::move(missing_); }

 private:
  bool compact() const { return !golden_.gradients_not_stored.empty(); }

  template <class Visit>
  void for_each_mixture(const Visit& visit) const {
    for (std::int64_t i = 0; i < golden_.config.num_hidden_layers; ++i) {
      if (golden_.config.is_moe_layer(i)) visit(i);
    }
  }

  const Names kStoredVariants = {"adamw_const", "adamw_clip_cosine"};

  const GoldenCase& golden_;
  const Names& parameters_;
  Names missing_;
};

}  // namespace

std::vector<std::string> missing_expectations(const GoldenCase& golden,
                                              const std::vector<std::string>& parameters) {
  Completeness completeness(golden, parameters);
  if (golden.kind == GoldenKind::kPretrained) {
    completeness.need_pretrained();
    return completeness.take();
  }
  completeness.check_not_stored();
  completeness.need_batch();
  completeness.need_packed();
  completeness.need_training();
  return completeness.take();
}

}  // namespace moegrad::tools
