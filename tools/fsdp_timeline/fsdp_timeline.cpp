// SPDX-License-Identifier: Apache-2.0

// Shows what fully_shard does, and when. Trains a few steps over a modelled link and writes a trace
// that https://ui.perfetto.dev and chrome://tracing open, and a summary in plain text.
//
//     build/release/tools/fsdp_timeline --world-size 4
//
// With --slow-rank 2 that rank computes --slow-by times as long, and is named while the run goes
// on, when it was slow in three windows in a row.
//
//     build/release/tools/fsdp_timeline --world-size 4 --steps 96 --slow-rank 2

#include <iomanip>
#include <iostream>
#include <optional>

#include "framework/io/output_file.h"
#include "framework/profile/trace.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/program.h"
#include "tools/fsdp_timeline/timeline_report.h"
#include "tools/tool_main.h"
#include "train/config/common_options.h"

namespace moegrad::tools {

using namespace training;

namespace {

constexpr double kSlowestLink = 1e-4;

struct ProgramOptions {
  TimelineOptions timeline = {};
  std::string preset = "tiny";
  double latency_us = 50;
  double gigabytes_per_second = 0.25;
  std::string trace = "fsdp_timeline.json";
  std::string summary = "fsdp_timeline.txt";
};

void report_slow_rank(std::int64_t steps, const SlowRank& slow) {
  std::cout << "after step " << steps << ": rank " << slow.rank << " is slow in "
            << to_string(slow.what) << ", " << std::fixed << std::setprecision(2) << slow.ratio
            << " times the median of the others" << std::endl;
}

void check_slow_rank(const TimelineOptions& options) {
  if (options.slow_rank < 0) return;
  check<UsageError>(options.slow_rank < options.ranks, "--slow-rank: must be below the ",
                    options.ranks, " ranks, got ", options.slow_rank);
  check<UsageError>(options.ranks >= 2, "--slow-rank: --world-size must be at least 2, got ",
                    options.ranks);
  check<UsageError>(options.steps / kSlowWindows >= options.window,
                    "--slow-rank: --steps must be at least ", kSlowWindows, " windows of ",
                    options.window, ", got ", options.steps);
}

int run(ProgramOptions options) {
  auto& timeline = options.timeline;
  check_slow_rank(timeline);
  check_product("tokens per rank (--batch x --seq-len)", timeline.batch, timeline.sequence_length,
                kMostTokens);
  const double rate = options.gigabytes_per_second;
  check<UsageError>(rate == 0 || rate >= kSlowestLink, "--gb-per-second: must be 0 or at least ",
                    kSlowestLink, ", got ", rate);
  timeline.config = models::CausalLMConfig::preset(options.preset);
  timeline.link = {
      .latency = std::chrono::nanoseconds(static_cast<std::int64_t>(1000 * options.latency_us)),
      .bytes_per_second = 1e9 * options.gigabytes_per_second};
  // Where ranks are processes, rank 0 has what all have recorded, and writes it.
  std::optional<OutputFile> trace_file, summary_file;
  if (is_first_process()) {
    trace_file.emplace(options.trace);
    summary_file.emplace(options.summary);
  }
  const auto ranks = run_timeline(timeline, report_slow_rank);
  if (!is_first_process()) return 0;
  auto &trace = *trace_file, &summary = *summary_file;
  std::vector<std::vector<Span>> spans;
  for (const auto& rank : ranks) spans.push_back(rank.spans);
  write_trace(trace, spans);
  const auto text = timeline_summary(timeline, ranks);
  summary << text;
  trace.finish();
  summary.finish();
  std::cout << text << "wrote " << options.trace << " and " << options.summary << std::endl;
  return 0;
}

CommandLine command_line(ProgramOptions& options) {
  auto& timeline = options.timeline;
  timeline.ranks = default_world_size(timeline.ranks);
  return {
      "Trains a few steps under fully_shard and shows when what happened.",
      {choice_of_text("preset", options.preset, {"tiny", "small", "medium"}, "model"),
       world_size_option(timeline.ranks, 1024),
       number_option("steps", timeline.steps, {1, 1 << 20}, "recorded, after one that is not"),
       batch_option(timeline.batch, "sequences per rank and step"),
       sequence_length_option(timeline.sequence_length),
       number_option("latency-us", options.latency_us, {0, 1e6}, "of the modelled link"),
       number_option("gb-per-second", options.gigabytes_per_second, {0, 1e6},
                     "bandwidth of the modelled link; 0: any"),
       switch_option("prefetch", timeline.prefetch, "gather the next group ahead of its use"),
       number_option("level", timeline.level, {1, 2},
                     "of the spans: 1 phases, modules, collectives; 2 also Functions"),
       number_option("slow-rank", timeline.slow_rank, {-1, 1 << 20}, "rank to slow down; -1: none"),
       number_option("slow-by", timeline.slow_by, {1, 100}, "how many times as long it computes"),
       number_option("window", timeline.window, {1, 1 << 20},
                     "steps over which ranks are compared"),
       path_option("trace", options.trace, PathKind::kOutput, "where to write the trace"),
       path_option("summary", options.summary, PathKind::kOutput, "where to write the summary")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program, "fsdp_timeline", command_line, run, argc, argv);
}
