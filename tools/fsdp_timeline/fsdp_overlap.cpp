// SPDX-License-Identifier: Apache-2.0

// How much of fully_shard's communication is hidden under compute, on two ranks and a link so slow
// that gathers and reductions together take 80 % of the time of compute:
//
//     build/release/tools/fsdp_overlap
//     mpirun -n 2 build/release/tools/fsdp_overlap      with processes for ranks
//
// The program first measures layers that sleep instead of computing. They show the schedule
// whatever else the machine does. Then it measures Qwen3-MoE layers, which need a core per rank to
// be meaningful. The figures come from the span log, with prefetch on and off. The first gather and
// the last reduction of a step are left out, because no compute can hide them. The link's times are
// modelled.
//
// Cores are not equally fast at every moment, and a collective begins when the last rank joins it.
// So the faster rank waits for the slower one, and no prefetch can avoid that. Therefore the share
// is printed twice: over all ranks and steps, and over the rank of each step that waits least,
// which sets the pace.

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "framework/distributed/collectives.h"
#include "framework/distributed/gather_timelines.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/profile/overlap.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/program.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/fully_shard.h"
#include "tools/fsdp_timeline/slept_model.h"
#include "tools/fsdp_timeline/timeline_report.h"
#include "tools/tool_main.h"

namespace moegrad::tools {

using namespace training;

namespace {

constexpr double kShareOfCompute = 0.8;
constexpr std::int64_t kSequenceLength = 64;

struct OverlapOptions {
  std::int64_t layers = 16, tokens = 1024, steps = 16;
};

struct Hidden {
  Overlap gather, reduce;   // without the first gather and the last reduction
  Overlap on_slowest_rank;  // both, on the rank of each step that waits least: others wait for it
  std::map<std::string, Overlap> by_name;
};

Hidden measure(const std::vector<RankTimeline>& ranks) {
  Hidden result;
  std::vector<Overlap> on_slowest_rank(ranks[0].step_begins.size() - 1);
  for (const auto& rank : ranks) {
    const auto compute = compute_intervals(rank.spans);
    for (std::size_t step = 0; step + 1 < rank.step_begins.size(); ++step) {
      std::vector<Span> gathers, reductions;
      for (const auto& span : rank.spans) {
        if (span.begin < rank.step_begins[step] || span.begin >= rank.step_begins[step + 1])
          continue;
        if (span.lane == Lane::kGather) gathers.push_back(span);
        if (span.lane == Lane::kReduce) reductions.push_back(span);
      }
      std::ranges::sort(gathers, {}, &Span::begin);
      std::ranges::sort(reductions, {}, &Span::begin);
      Overlap both;
      for (std::size_t i = 1; i < gathers.size(); ++i) {
        const auto overlap = overlap_of(gathers[i], compute);
        result.gather += overlap;
        both += overlap;
        const bool forward = i <= gathers.size() / 2;
        result.by_name[gathers[i].name + (forward ? " (forward)" : " (backward)")] += overlap;
      }
      for (std::size_t i = 0; i + 1 < reductions.size(); ++i) {
        const auto overlap = overlap_of(reductions[i], compute);
        result.reduce += overlap;
        both += overlap;
        result.by_name[reductions[i].name] += overlap;
      }
      if (on_slowest_rank[step].total.count() == 0 ||
          both.hidden_share() > on_slowest_rank[step].hidden_share())
        on_slowest_rank[step] = both;
    }
  }
  for (const auto& step : on_slowest_rank) result.on_slowest_rank += step;
  return result;
}

/// Takes the figures of a run on a link that costs no time. Returns a link on which its gathers and
/// reductions, including their copies, would take kShareOfCompute of its compute.
LinkModel calibrated(const TimelineFigures& free) {
  const auto time = kShareOfCompute * free.compute - (free.gather + free.reduce);
  check<ValueError>(time > 0, "compute must take longer than copies, copies take ",
                    free.gather + free.reduce, " s a step, compute ", free.compute,
                    " s: take more tokens");
  return {.bytes_per_second = (free.gathered_bytes + free.reduced_bytes) / time};
}

void print(const std::string& title, const TimelineFigures& figures, const Hidden& hidden) {
  auto both = hidden.gather;
  both += hidden.reduce;
  std::cout << std::fixed << std::setprecision(1) << title << ": step " << figures.step * 1e3
            << " ms, compute " << figures.compute * 1e3 << " ms, gather + reduce "
            << (figures.gather + figures.reduce) * 1e3
            << " ms (modelled link)\n  hidden: " << 100 * both.hidden_share() << " % of both ("
            << 100 * hidden.on_slowest_rank.hidden_share() << " % on the rank that sets the pace), "
            << 100 * hidden.gather.hidden_share() << " % of gathers, "
            << 100 * hidden.reduce.hidden_share() << " % of reductions\n";
  std::vector<std::pair<std::string, Overlap>> names(hidden.by_name.begin(), hidden.by_name.end());
  std::ranges::sort(names, std::greater(),
                    [](const auto& entry) { return entry.second.exposed(); });
  names.resize(std::min<std::size_t>(names.size(), 5));
  for (const auto& [name, overlap] : names) {
    std::cout << "  exposed " << 100 * (1 - overlap.hidden_share()) << " % of " << name << ", "
              << 100 * std::chrono::duration<double>(overlap.exposed()) /
                     std::chrono::duration<double>(both.total)
              << " % of all\n";
  }
}

std::vector<RankTimeline> run_slept(std::int64_t layers, std::int64_t numel,
                                    std::chrono::nanoseconds time, std::int64_t steps,
                                    bool prefetch, const LinkModel& link) {
  std::vector<RankTimeline> ranks;
  const auto body = [&](RankContext& context) {
    SleepModel model(layers, numel, time);
    const auto mesh = DeviceMesh::flat(context.group());
    const fsdp::Policy policy = {.forward_prefetch = prefetch ? 1 : 0};
    for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh, policy);
    fsdp::fully_shard(model, mesh, policy);
    if (!prefetch) turn_backward_prefetch_off(model);
    RankTimeline timeline;
    for (std::int64_t step = -1; step < steps; ++step) {  // the first one learns the order
      if (step == 0) context.spans().start(1, std::numeric_limits<std::size_t>::max());
      if (step >= 0) timeline.step_begins.push_back(SpanClock::now());
      model(Tensor::zeros({1})).backward();
      model.zero_grad();
    }
    timeline.step_begins.push_back(SpanClock::now());
    timeline.spans = context.spans().spans();
    auto gathered = gather_timelines(*context.group(), timeline);
    if (context.rank() == 0) ranks = std::move(gathered);
  };
  LaunchOptions options;
  options.link = link;
  launch_ranks(2, body, options);
  return ranks;
}

// The figures of a run and the link that they lead to. Where ranks are processes, rank 0 alone has
// the former, and gives the latter to the other.
std::pair<TimelineFigures, LinkModel> free_run(const std::vector<RankTimeline>& ranks) {
  TimelineFigures figures;
  LinkModel link;
  if (is_first_process()) {
    figures = timeline_figures(ranks);
    link = calibrated(figures);
  }
  if (mpi_environment()) {
    launch_mpi(2, [&](RankContext& context) {
      broadcast(*context.group(), std::span(&link.bytes_per_second, 1), /*root=*/0);
    });
  }
  return {figures, link};
}

void print(const std::string& title, const std::vector<RankTimeline>& ranks) {
  if (is_first_process()) print(title, timeline_figures(ranks), measure(ranks));
}

void slept(std::int64_t layers, std::int64_t steps) {
  constexpr std::int64_t kNumel = 1 << 17;
  constexpr std::chrono::milliseconds kTime(4);
  const auto [free, link] = free_run(run_slept(layers, kNumel, kTime, 2, true, {}));
  std::cout << layers << " sleeping layers, " << std::fixed << std::setprecision(1)
            << free.compute * 1e3 << " ms a step; link modelled at " << link.bytes_per_second / 1e6
            << " MB/s\n";
  for (const bool prefetch : {true, false}) {
    const auto ranks = run_slept(layers, kNumel, kTime, steps, prefetch, link);
    print(prefetch ? "prefetch on" : "prefetch off", ranks);
  }
}

void computed(std::int64_t layers, std::int64_t tokens, std::int64_t steps) {
  TimelineOptions options;
  options.config.num_hidden_layers = layers;
  options.steps = steps;
  options.window = steps + 1;
  options.sequence_length = kSequenceLength;
  options.batch = tokens / options.sequence_length;

  const auto [free, link] = free_run(run_timeline(options));
  options.link = link;
  std::cout << layers << " layers, " << tokens << " tokens per rank, compute " << std::fixed
            << std::setprecision(1) << free.compute * 1e3 << " ms a step; link modelled at "
            << options.link.bytes_per_second / 1e6 << " MB/s\n";
  for (const bool prefetch : {true, false}) {
    options.prefetch = prefetch;
    const auto ranks = run_timeline(options);
    print(prefetch ? "prefetch on" : "prefetch off", ranks);
  }
}

int run(const OverlapOptions& options) {
  const auto& [layers, tokens, steps] = options;
  check<UsageError>(tokens % kSequenceLength == 0, "--tokens: must be a multiple of ",
                    kSequenceLength, ", got ", tokens);
  slept(layers, steps);
  computed(layers, tokens, steps);
  return 0;
}

CommandLine command_line(OverlapOptions& options) {
  return {
      "How much of fully_shard's communication is hidden under compute.",
      {number_option("layers", options.layers, {1, 1 << 10}, "of either model"),
       number_option("tokens", options.tokens, {1, 1 << 24},
                     "per rank and step, in sequences of 64"),
       number_option("steps", options.steps, {1, 1 << 20}, "measured, with prefetch on and off")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program, "fsdp_overlap", command_line, run, argc, argv);
}
