// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_record.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/runtime/error.h"
#include "train/logs/metrics_lines.h"
#include "train/logs/run_header_json.h"

namespace moegrad::tools {

using namespace training;

namespace {

// Limits steps so that neighbouring steps differ as floating-point numbers, with room to draw.
constexpr std::int64_t kMostSteps = 1'000'000'000'000'000;

void add_loads(RunRecord& run, std::int64_t step, const JsonNode& layers) {
  const auto counts_of = [](const JsonNode& layer) {
    const auto counts = layer.list([](const JsonNode& expert) {
      constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
      return static_cast<double>(expert.unsigned_up_to(kMost));
    });
    layer.require(!counts.empty(), "must have an expert, got none");
    return counts;
  };
  const ExpertCounts counts = layers.list(counts_of);
  if (counts.empty()) return;  // a model without mixture layers
  if (!run.loads) run.loads.emplace(counts);
  try {
    run.loads->add(step, counts);
  } catch (const ValueError& error) {
    layers.require(false, error.what());
  }
}

void add_memory(RunRecord& run, const JsonNode& peak_bytes) {
  if (!run.memory) run.memory.emplace();
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    auto& most = run.memory->tags[tag];
    most = std::max(most, peak_bytes[to_string(static_cast<MemoryTag>(tag))].number_or_nan());
  }
  run.memory->total = std::max(run.memory->total, peak_bytes["total"].number_or_nan());
}

CommunicationRecord communication_of(const JsonNode& value) {
  const auto lane = [&](const char* name) {
    const auto figures = value[name];
    return CommunicationRecord::Lane{.seconds = figures["seconds"].number_or_nan(),
                                     .exposed_seconds = figures["exposed_seconds"].number_or_nan(),
                                     .bytes = figures["bytes"].number_or_nan()};
  };
  return {.steps = value["steps"].number_or_nan(),
          .compute_seconds = value["compute_seconds"].number_or_nan(),
          .gather = lane("gather"),
          .reduce = lane("reduce"),
          .other = lane("other")};
}

void add_clipping(RunRecord& run, double grad_norm) {
  if (run.parts.empty() || !std::isfinite(grad_norm)) return;
  const double limit = run.parts.back().header.max_grad_norm.value_or(0);
  if (!(limit > 0)) return;
  ++run.clipping.steps;
  if (grad_norm > limit) ++run.clipping.clipped;
}

void add_exchange(RunRecord& run, std::int64_t step, double seconds, const JsonNode& exchange) {
  run.exchange_percent.add(step, 100 * exchange["wait_seconds"].number_or_nan() / seconds);
  double worst = 0;
  for (const auto& load : exchange["rank_load"].elements()) {
    worst = std::max(worst, load.number_or_nan());
  }
  run.rank_load.add(step, worst);
}

// A step of so many seconds.
void add_traffic(TrafficRecord& record, double seconds, const JsonNode& figures, const char* sent,
                 const char* received) {
  ++record.steps;
  record.seconds += seconds;
  record.bytes_sent += figures[sent].number_or_nan();
  record.bytes_received += figures[received].number_or_nan();
  record.wait_seconds += figures["wait_seconds"].number_or_nan();
}

void add_axes(RunRecord& run, double seconds, const JsonNode& axes) {
  for (const auto& [name, figures] : axes.members()) {
    add_traffic(run.axes[name], seconds, figures, "bytes_sent", "bytes_received");
  }
}

void add_step(RunRecord& run, std::int64_t step, const JsonNode& line) {
  run.first_step = run.steps == 0 ? step : std::min(run.first_step, step);
  run.last_step = std::max(run.last_step, step);
  ++run.steps;
  if (line.contains("loss")) line["loss"].number_or_nan();  // not shown, but must be a number
  run.ce.add(step, line["ce"].number_or_nan());
  const double grad_norm = line["grad_norm"].number_or_nan();
  run.grad_norm.add(step, grad_norm);
  add_clipping(run, grad_norm);
  run.lr.add(step, line["lr"].number_or_nan());
  const double tokens_per_second = line["tokens_per_second"].number_or_nan();
  run.tokens_per_second.add(step, tokens_per_second);
  if (std::isfinite(tokens_per_second)) run.throughputs.push_back(tokens_per_second);
  run.tokens += line["tokens"].number_or_nan();
  const double seconds = line["seconds"].number_or_nan();
  run.total_seconds += seconds;
  if (line.contains("data_seconds")) {
    const double data_seconds = line["data_seconds"].number_or_nan();
    run.data_percent.add(step, 100 * data_seconds / seconds);
    run.total_data_seconds += data_seconds;
  }
  if (line.contains("mfu")) run.mfu_percent.add(step, 100 * line["mfu"].number_or_nan());
  if (line.contains("router_entropy")) {
    run.router_entropy.add(step, line["router_entropy"].number_or_nan());
  }
  if (line.contains("exchange")) add_exchange(run, step, seconds, line["exchange"]);
  if (line.contains("axes")) add_axes(run, seconds, line["axes"]);
  if (line.contains("swap")) {
    if (!run.swap) run.swap.emplace();
    add_traffic(*run.swap, seconds, line["swap"], "bytes_out", "bytes_in");
  }
  if (line.contains("skipped_steps")) run.skipped_steps = line["skipped_steps"].number_or_nan();
  if (line.contains("tokens_per_expert")) add_loads(run, step, line["tokens_per_expert"]);
  if (line.contains("peak_bytes")) add_memory(run, line["peak_bytes"]);
  if (line.contains("communication")) run.communication = communication_of(line["communication"]);
  if (!line.contains("configuration")) return;
  run.configuration = line["configuration"].text();
  run.starts.push_back(step);
}

}  // namespace

RunRecord read_run_record(const std::string& path) {
  RunRecord run = {.path = path};
  const auto add_line = [&run](std::int64_t step, const JsonNode& line) {
    line["step"].require(step <= kMostSteps, "must be at most ", kMostSteps, ", got ", step);
    if (line.contains("run")) run.parts.push_back({step, run_header_of(line["run"])});
    if (line.contains("validation_loss")) {
      run.validation.add(step, line["validation_loss"].number_or_nan());
    } else {
      add_step(run, step, line);
    }
  };
  run.bytes_left_out = read_metrics_lines(path, add_line);
  check<ValueError>(run.steps > 0, "metrics: ", path, ": must have a training step, got none");
  return run;
}

}  // namespace moegrad::tools
