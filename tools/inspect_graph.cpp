// SPDX-License-Identifier: Apache-2.0

// Inspects the tape of one forward of Qwen3-MoE with its loss: which Functions it contains, how
// long its longest chain is, and what training would hold in memory at each moment.
//
//     build/release/tools/inspect_graph --preset tiny && dot -Tsvg graph.dot -o graph.svg

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>

#include "framework/autograd/dropout_ids.h"
#include "framework/autograd/graph.h"
#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "tools/tool_main.h"
#include "train/data/random_data.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct Options {
  std::string preset = "small";
  std::string config;
  std::int64_t tokens = 128;
  std::string dot = "graph.dot";
  std::string critical_path = "critical_path.tsv";
  std::string live_bytes = "live_bytes.tsv";
};

/// The loss of `count` random tokens, as one document.
Tensor loss_of(models::CausalLM& model, std::int64_t count) {
  const RandomData data({.vocab_size = model.config().vocab_size, .length = count});
  const auto batch = data.micro_batch(0, 0);
  const DropoutIdsGuard random({.step = 0});  // of a model with router_jitter_noise
  const auto output = model(batch.tokens, batch.documents);
  return models::causal_lm_loss(output, batch.targets, count, model.config().router_aux_loss_coef)
      .objective;
}

/// Opens `path`, lets `write` fill it, and reports an error if the disk is full.
template <class Write>
void write_file(const std::string& path, const Write& write) {
  OutputFile file(path);
  write(file);
  file.finish();
  std::cout << "wrote " << path << '\n';
}

void write_critical_path(const CriticalPath& path, std::ostream& out) {
  out << "op\tmodule\tflops\n";
  for (const auto& step : path.steps) {
    out << step.name << '\t' << step.path << '\t' << std::setprecision(17) << step.flops << '\n';
  }
}

void write_live_bytes(const std::vector<LiveBytes>& profile, std::ostream& out) {
  out << "phase\top\tmodule\tsaved\tgradients\tleaf_gradients\ttotal\n";
  for (const auto& entry : profile) {
    out << (entry.backward ? "backward" : "forward") << '\t' << entry.name << '\t' << entry.path
        << '\t' << entry.saved << '\t' << entry.gradients << '\t' << entry.leaf_gradients << '\t'
        << entry.total() << '\n';
  }
}

int run(const Options& options) {
  models::CausalLM model(options.config.empty() ? models::CausalLMConfig::preset(options.preset)
                                                : models::read_model_config(options.config));
  const Tensor loss = loss_of(model, options.tokens);

  const auto summary = summarize_graph(loss);
  std::cout << summary.functions << " Functions, " << summary.edges << " edges, " << summary.leaves
            << " leaves; " << summary.saved_bytes << " bytes in saved tensors\n";

  const auto path = critical_path(loss);
  std::cout << std::setprecision(4) << "forward: " << path.total_flops / 1e6 << " MFLOP, "
            << path.flops / 1e6 << " of them along the critical path of " << path.steps.size()
            << " Functions\n";

  const auto profile = live_bytes_profile(loss);
  const auto peak = std::ranges::max_element(profile, {}, &LiveBytes::total);
  std::cout << "peak: " << peak->total() << " bytes in the "
            << (peak->backward ? "backward" : "forward") << " of " << peak->name;
  if (!peak->path.empty()) std::cout << " in " << peak->path;
  std::cout << " (saved " << peak->saved << ", gradients " << peak->gradients << ", of leaves "
            << peak->leaf_gradients << ")\n";

  write_file(options.dot, [&](std::ostream& out) { write_dot(loss, out); });
  write_file(options.critical_path, [&](std::ostream& out) { write_critical_path(path, out); });
  write_file(options.live_bytes, [&](std::ostream& out) { write_live_bytes(profile, out); });
  return 0;
}

CommandLine command_line(Options& options) {
  return {
      "Writes the tape of one forward of the model as DOT, its critical path by FLOPs "
      "and its live bytes over time.",
      {choice_of_text(
           "preset", options.preset,
           {"tiny", "small", "medium", "tiny-qwen2-moe", "tiny-mixtral", "tiny-glm4-moe"}, "model"),
       path_option("config", options.config, PathKind::kInput,
                   "config.json of a model instead of a preset")
           .excluding("preset"),
       number_option("tokens", options.tokens, {1, 1 << 24}, "tokens of the forward"),
       path_option("dot", options.dot, PathKind::kOutput, "where to write the graph for Graphviz"),
       path_option("critical-path", options.critical_path, PathKind::kOutput,
                   "where to write the longest chain"),
       path_option("live-bytes", options.live_bytes, PathKind::kOutput,
                   "where to write bytes over time")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program_once, "inspect_graph", command_line, run, argc, argv);
}
