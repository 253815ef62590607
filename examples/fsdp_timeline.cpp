// SPDX-License-Identifier: Apache-2.0

// Shows what fully_shard does when: trains a few steps over a modelled link and writes a trace that
// https://ui.perfetto.dev and chrome://tracing open, and a summary in plain text.
//
//     build/release/examples/fsdp_timeline --ranks 4
//
// With --slow-rank 2 that rank computes --slow-by times as long, and is named while the run goes
// on, when it was slow in three windows in a row.
//
//     build/release/examples/fsdp_timeline --ranks 4 --steps 96 --slow-rank 2

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "examples/output_file.h"
#include "examples/timeline_report.h"
#include "framework/runtime/error.h"
#include "framework/runtime/trace.h"

namespace moegrad::examples {
namespace {

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
  check<ValueError>(options.slow_rank < options.ranks, "--slow-rank: must be below the ",
                    options.ranks, " ranks, got ", options.slow_rank);
  check<ValueError>(options.ranks >= 2, "--slow-rank: --ranks must be at least 2, got ",
                    options.ranks);
  check<ValueError>(options.steps / kSlowWindows >= options.window,
                    "--slow-rank: --steps must be at least ", kSlowWindows, " windows of ",
                    options.window, ", got ", options.steps);
}

int run(ProgramOptions options) {
  auto& timeline = options.timeline;
  check_slow_rank(timeline);
  timeline.config = models::Qwen3MoeConfig::preset(options.preset);
  timeline.link = {
      .latency = std::chrono::nanoseconds(static_cast<std::int64_t>(1000 * options.latency_us)),
      .bytes_per_second = 1e9 * options.gigabytes_per_second};
  auto trace = open_for_writing(options.trace);
  auto summary = open_for_writing(options.summary);
  const auto ranks = run_timeline(timeline, report_slow_rank);
  std::vector<std::vector<Span>> spans;
  for (const auto& rank : ranks) spans.push_back(rank.spans);
  write_trace(trace, spans);
  const auto text = timeline_summary(timeline, ranks);
  summary << text;
  std::cout << text << "wrote " << options.trace << " and " << options.summary << std::endl;
  return 0;
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  moegrad::examples::ProgramOptions options;
  auto& timeline = options.timeline;
  CLI::App app("Trains a few steps under fully_shard and shows when what happened.");
  app.add_option("--preset", options.preset, "model: tiny, small or medium")->capture_default_str();
  app.add_option("--ranks", timeline.ranks, "threads that train together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", timeline.steps, "recorded, after one that is not")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", timeline.batch, "sequences per rank and step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seq-len", timeline.sequence_length, "tokens per sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--latency-us", options.latency_us, "of the modelled link")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--gb-per-second", options.gigabytes_per_second,
                 "bandwidth of the modelled link; 0: any")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--prefetch", timeline.prefetch, "gather the next group ahead of its use")
      ->capture_default_str();
  app.add_option("--level", timeline.level,
                 "of the spans: 1 phases, modules, collectives; 2 also Functions")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  app.add_option("--slow-rank", timeline.slow_rank, "rank to slow down; -1: none")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
  app.add_option("--slow-by", timeline.slow_by, "how many times as long it computes")
      ->check(CLI::Range(1.0, 100.0))
      ->capture_default_str();
  app.add_option("--window", timeline.window, "steps over which ranks are compared")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--trace", options.trace, "where to write the trace")->capture_default_str();
  app.add_option("--summary", options.summary, "where to write the summary")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return moegrad::examples::run(options);
  } catch (const moegrad::Error& error) {
    std::cerr << "fsdp_timeline: " << error.what() << '\n';
    return 1;
  }
}
