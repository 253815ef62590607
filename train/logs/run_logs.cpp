// SPDX-License-Identifier: Apache-2.0
#include "train/logs/run_logs.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/slow_storage.h"
#include "framework/runtime/program.h"
#include "train/logs/peak_flops.h"

namespace moegrad::training {

namespace {

std::optional<StatusLine::Columns> columns_of_stdout() {
  if (!can_redraw(STDOUT_FILENO)) return std::nullopt;
  return [] { return terminal_columns(STDOUT_FILENO); };
}

}  // namespace

RunLogs::RunLogs(const TrainConfig::Output& output, LoggedRun run, RankContext& context,
                 StepProfile& profile)
    : output_(output),
      run_(std::move(run)),
      context_(context),
      profile_(profile),
      progress_(terminal_output(), columns_of_stdout(), run_.first_step, run_.steps,
                output.log_every),
      tensorboard_(context.rank() == 0 ? output.tensorboard : "", run_.first_step),
      metrics_(context.rank() == 0 ? output.metrics : "", run_.first_step, std::move(run_.header)),
      exchange_(context.counters()),
      axes_(context.group(), std::move(run_.axes)),
      swap_(context.counters()) {
  if (records()) peak_flops_ = measure_peak_flops();
}

bool RunLogs::records() const { return !output_.metrics.empty() || !output_.tensorboard.empty(); }

void RunLogs::begin_step(std::int64_t step) {
  profile_.begin_step(step, context_);
  exchange_.begin();
  axes_.begin();
  swap_.begin();
}

// Collective. Records the most bytes of any rank since the last call.
void RunLogs::record_peaks(StepReport& report) {
  auto& arena = *context_.arena();
  std::vector<std::int64_t> peaks(kMemoryTags + 1);
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    peaks[tag] = arena.peak(static_cast<MemoryTag>(tag));
  }
  peaks[kMemoryTags] = arena.peak().total();
  arena.reset_peak();
  all_reduce(*context_.group(), std::span(peaks), ReduceOp::kMax, {.label = "peak bytes"});
  std::copy_n(peaks.begin(), kMemoryTags, report.peak_bytes.begin());
  report.peak_total = peaks[kMemoryTags];
}

void RunLogs::end_step(StepReport report) {
  axes_.end();
  report.profile = profile_.end_step(report.step, context_);
  report.peak_flops = peak_flops_;
  report.expert_parallel = run_.expert_parallel;
  if (records()) record_peaks(report);
  if (records()) report.axes = axes_.read();
  if (records() && run_.offloads) report.swap = swap_.read(*context_.group());
  if (records() && report.expert_parallel > 1) report.exchange = exchange_.read(*context_.group());
  if (context_.rank() != 0) return;
  recent_loads_.add(report.result.tokens_per_expert);
  const SlowStorage storage("writing the logs");
  report.configuration = std::exchange(run_.configuration, {});
  metrics_.write(report);
  tensorboard_.write(report);
  if (report.step % output_.log_every == 0 || report.step + 1 == run_.steps) {
    tensorboard_.write_expert_loads(report);
  }
  progress_.step(report.step, figures(report), Progress::Seconds(report.seconds));
}

void RunLogs::recent_loads() {
  const auto loads = recent_loads_.text();
  if (loads.empty()) return;
  progress_.print("experts of each layer over the last " + std::to_string(recent_loads_.steps()) +
                  " steps, least and most tokens in means: " + loads);
}

bool RunLogs::report() const {
  const bool metrics = metrics_.report(), tensorboard = tensorboard_.report();
  return (context_.rank() != 0 || profile_.report()) && metrics && tensorboard;
}

bool RunLogs::validation_due(std::int64_t steps) const {
  return output_.validation_interval > 0 && steps % output_.validation_interval == 0 &&
         steps < run_.steps;
}

void RunLogs::first_validation(std::int64_t steps, double loss, std::string_view unit) {
  const bool had = metrics_.had_validation();
  if (validation_due(steps) && !had) return validation(steps, loss, unit);
  // After the last step the end of the run has it.
  if (steps == 0 || steps >= run_.steps || context_.rank() != 0) return;
  // Readers of event files have dropped an earlier one; without a file of metrics nothing says if
  // there was one.
  if (!had && !output_.metrics.empty()) return;
  const SlowStorage storage("writing the logs");
  tensorboard_.write_validation(steps, loss);
}

void RunLogs::validation(std::int64_t steps, double loss, std::string_view unit) {
  if (context_.rank() != 0) return;
  const SlowStorage storage("writing the logs");
  metrics_.write_validation(steps, loss);
  tensorboard_.write_validation(steps, loss);
  std::ostringstream line;
  line << "validation loss " << loss << " nats per " << unit << " after " << steps << " steps";
  progress_.print(line.str());
}

}  // namespace moegrad::training
