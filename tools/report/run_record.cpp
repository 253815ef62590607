// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "train/logs/metrics_lines.h"
#include "train/logs/run_header_json.h"

namespace moegrad::tools {

using namespace training;

namespace {

using nlohmann::json;

// Limits steps so that neighbouring steps differ as floating-point numbers, with room to draw.
constexpr std::int64_t kMostSteps = 1'000'000'000'000'000;

const json& object_of(const json& line, const char* key, const std::string& who) {
  const auto& value = line.at(key);
  check<ValueError>(value.is_object(), who, ": ", key, " must be an object, got ",
                    in_quotes(value.dump()));
  return value;
}

ExpertCounts counts_of(const json& value, const std::string& who) {
  const auto is_count = [](const json& count) { return count.is_number_unsigned(); };
  const auto is_layer = [&](const json& layer) {
    return layer.is_array() && !layer.empty() && std::ranges::all_of(layer, is_count);
  };
  check<ValueError>(value.is_array() && std::ranges::all_of(value, is_layer), who,
                    ": tokens_per_expert must be lists of counts, got ", in_quotes(value.dump()));
  return value.get<ExpertCounts>();
}

void add_loads(RunRecord& run, std::int64_t step, const json& value, const std::string& who) {
  const auto counts = counts_of(value, who);
  if (counts.empty()) return;  // a model without mixture layers
  if (!run.loads) run.loads.emplace(counts);
  try {
    run.loads->add(step, counts);
  } catch (const ValueError& error) {
    throw ValueError(who + ": " + error.what());
  }
}

void add_memory(RunRecord& run, const json& value, const std::string& who) {
  if (!run.memory) run.memory.emplace();
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    auto& most = run.memory->tags[tag];
    most = std::max(most, number_of(value, to_string(static_cast<MemoryTag>(tag)), who));
  }
  run.memory->total = std::max(run.memory->total, number_of(value, "total", who));
}

CommunicationRecord communication_of(const json& value, const std::string& who) {
  const auto lane = [&](const char* name) {
    check<ValueError>(value.contains(name), who, ": communication must have ", name, ", got none");
    const auto& figures = object_of(value, name, who);
    return CommunicationRecord::Lane{.seconds = number_of(figures, "seconds", who),
                                     .exposed_seconds = number_of(figures, "exposed_seconds", who),
                                     .bytes = number_of(figures, "bytes", who)};
  };
  return {.steps = number_of(value, "steps", who),
          .compute_seconds = number_of(value, "compute_seconds", who),
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

void add_step(RunRecord& run, std::int64_t step, const json& line, const std::string& who) {
  run.first_step = run.steps == 0 ? step : std::min(run.first_step, step);
  run.last_step = std::max(run.last_step, step);
  ++run.steps;
  if (line.contains("loss")) number_of(line, "loss", who);  // not shown, but must be a number
  run.ce.add(step, number_of(line, "ce", who));
  const double grad_norm = number_of(line, "grad_norm", who);
  run.grad_norm.add(step, grad_norm);
  add_clipping(run, grad_norm);
  run.lr.add(step, number_of(line, "lr", who));
  const double tokens_per_second = number_of(line, "tokens_per_second", who);
  run.tokens_per_second.add(step, tokens_per_second);
  if (std::isfinite(tokens_per_second)) run.throughputs.push_back(tokens_per_second);
  run.tokens += number_of(line, "tokens", who);
  const double seconds = number_of(line, "seconds", who);
  run.total_seconds += seconds;
  if (line.contains("data_seconds")) {
    const double data_seconds = number_of(line, "data_seconds", who);
    run.data_percent.add(step, 100 * data_seconds / seconds);
    run.total_data_seconds += data_seconds;
  }
  if (line.contains("mfu")) run.mfu_percent.add(step, 100 * number_of(line, "mfu", who));
  if (line.contains("router_entropy")) {
    run.router_entropy.add(step, number_of(line, "router_entropy", who));
  }
  if (line.contains("skipped_steps")) run.skipped_steps = number_of(line, "skipped_steps", who);
  if (line.contains("tokens_per_expert")) add_loads(run, step, line["tokens_per_expert"], who);
  if (line.contains("peak_bytes")) add_memory(run, object_of(line, "peak_bytes", who), who);
  if (line.contains("communication")) {
    run.communication = communication_of(object_of(line, "communication", who), who);
  }
  if (!line.contains("configuration")) return;
  const auto& text = line["configuration"];
  check<ValueError>(text.is_string(), who, ": configuration must be a text, got ",
                    in_quotes(text.dump()));
  run.configuration = text.get<std::string>();
  run.starts.push_back(step);
}

}  // namespace

RunRecord read_run_record(const std::string& path) {
  RunRecord run = {.path = path};
  const auto add_line = [&run](std::int64_t step, const json& line, const std::string& who) {
    check<ValueError>(step <= kMostSteps, who, ": step must be at most ", kMostSteps, ", got ",
                      step);
    if (line.contains("run")) {
      run.parts.push_back({step, run_header_of(object_of(line, "run", who), who)});
    }
    if (line.contains("validation_loss")) {
      run.validation.add(step, number_of(line, "validation_loss", who));
    } else {
      add_step(run, step, line, who);
    }
  };
  run.bytes_left_out = read_metrics_lines(path, add_line);
  check<ValueError>(run.steps > 0, "metrics: ", path, ": must have a training step, got none");
  return run;
}

}  // namespace moegrad::tools
