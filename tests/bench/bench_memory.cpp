// SPDX-License-Identifier: Apache-2.0

// What the tools for memory save and cost on one model, whose steps are run in pairs with those of
// the plain one, in turns:
//
//     build/release/tests/bench_memory --pairs 30
//
// Prints for each tool the peak of activations, and the medians of the step's time over the plain
// one's; how much of a swap over a link is hidden, on which going out takes 0.8 of forward; and the
// rate of a link at which swapping all that layers save costs as much as to compute it again. One
// thread computes, so that where there are two cores one is left for copies.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/linear.h"
#include "tests/bench/memory_step.h"
#include "tests/bench/quantile.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"
#include "train/speed_preset.h"

namespace moegrad::bench {
namespace {

using training::MemoryPlan;
using Loss = MemoryTools::Loss;

training::SpeedPreset model_of() {
  auto preset = training::speed_preset("main");
  auto& config = preset.config;
  config.num_hidden_layers = 16;
  config.hidden_size = 256;
  config.num_attention_heads = 4;
  config.num_experts = 8;
  config.moe_intermediate_size = 128;
  preset.sequences = 1;
  preset.length = 1024;
  return preset;
}

class Bench {
 public:
  Bench(RankContext& context, std::int64_t pairs)
      : context_(context), pairs_(pairs), plain_(preset_.config, {}, batch_) {}

  struct Pairs {
    std::vector<PartTimes> plain, tool;
    std::int64_t plain_peak = 0, peak = 0;  // of activations

    double ratio() const {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < tool.size(); ++i) {
        ratios.push_back(tool[i].total() / plain[i].total());
      }
      return median(ratios);
    }
    static double median_of(const std::vector<PartTimes>& times, double PartTimes::*part) {
      std::vector<double> values;
      for (const auto& time : times) values.push_back(time.*part);
      return median(values);
    }
  };

  Pairs measure(const MemoryTools& tools, const SwapOptions& swap = {}) {
    MemoryStep step(preset_.config, tools, batch_,
                    tools.plan.offload == "none" ? nullptr : SwapSpace::make(swap));
    Pairs pairs;
    pairs.plain_peak = peak_of(plain_);
    pairs.peak = peak_of(step);
    for (std::int64_t i = 0; i < pairs_; ++i) {
      pairs.plain.push_back(plain_.run());
      pairs.tool.push_back(step.run());
    }
    return pairs;
  }

  // What forward sends away in a step, with such a window, and what backward brings back.
  std::pair<std::int64_t, std::int64_t> swapped_bytes(const MemoryPlan& plan) {
    MemoryStep step(preset_.config, {.plan = plan}, batch_,
                    SwapSpace::make({.window = plan.offload_window}));
    const auto& counters = context_.counters();
    const auto out = counters.swapped_out_bytes.load(), in = counters.swapped_in_bytes.load();
    step.run();
    return {counters.swapped_out_bytes - out, counters.swapped_in_bytes - in};
  }

  double seconds_of_logits() {
    const auto& config = preset_.config;
    const Tensor x = Tensor::randn({preset_.length, config.hidden_size}, Random(1, "bench_memory"));
    const Tensor w =
        Tensor::randn({config.vocab_size, config.hidden_size}, Random(2, "bench_memory"));
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      ops::linear(x, w);
      times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return median(times);
  }

 private:
  std::int64_t peak_of(MemoryStep& step) {
    step.run();  // the first takes blocks from the system
    context_.arena()->reset_peak();
    const auto before = context_.arena()->live()[MemoryTag::kActivations];
    step.run();
    return context_.arena()->peak(MemoryTag::kActivations) - before;
  }

  RankContext& context_;
  std::int64_t pairs_;
  training::SpeedPreset preset_ = model_of();
  training::MicroBatch batch_ = training::random_data(preset_, 1, 1).micro_batch(0, 0);
  MemoryStep plain_;
};

void print(const std::string& name, const Bench::Pairs& pairs, double most) {
  std::cout << std::left << std::setw(44) << name << std::right << std::fixed
            << std::setprecision(1) << std::setw(8) << static_cast<double>(pairs.peak) / 1e6
            << std::setprecision(3) << std::setw(9) << pairs.ratio();
  if (most > 0) std::cout << "   at most " << most << (pairs.ratio() <= most ? "" : ": BROKEN");
  std::cout << std::endl;
}

void measure_swap(Bench& bench, const Bench::Pairs& whole_layers, std::int64_t layers) {
  using Pairs = Bench::Pairs;
  const double forward = Pairs::median_of(whole_layers.plain, &PartTimes::forward);
  const double backward = Pairs::median_of(whole_layers.plain, &PartTimes::backward);
  MemoryPlan plan{.offload = "activations", .offload_window = 1};
  plan.offload_window = 2 * bench.swapped_bytes(plan).first / layers;
  const auto [out, in] = bench.swapped_bytes(plan);

  const auto bytes_out = static_cast<double>(out), bytes_in = static_cast<double>(in);
  const auto swap_over = [&](double rate) {
    SwapOptions options{.window = plan.offload_window};
    options.link.bytes_per_second = rate;
    return bench.measure({.plan = plan}, options);
  };
  const double rate = bytes_out / (0.8 * forward);
  const auto pairs = swap_over(rate);
  print("swap, all that layers save", pairs, 0);
  std::vector<double> extra;
  for (std::size_t i = 0; i < pairs.tool.size(); ++i) {
    extra.push_back(pairs.tool[i].total() - pairs.plain[i].total());
  }
  const double transfers = (bytes_out + bytes_in) / rate;
  std::cout << "    " << bytes_out / 1e6 << " MB out and " << bytes_in / 1e6 << " MB in over "
            << rate / 1e6 << " MB/s: " << 1e3 * transfers << " ms, of which "
            << 100 * (1 - median(extra) / transfers) << " % are hidden (at least 95)\n";

  // Where what compute does not hide takes as long as the second forward.
  const double again =
      (whole_layers.ratio() - 1) * Pairs::median_of(whole_layers.plain, &PartTimes::forward) *
      (1 + (backward + Pairs::median_of(whole_layers.plain, &PartTimes::optimizer)) / forward);
  const auto exposed = [&](double at) {
    return std::max(0.0, bytes_out / at - forward) + std::max(0.0, bytes_in / at - backward);
  };
  double low = 1e6, high = rate;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (exposed(middle) > again ? low : high) = middle;
  }
  std::cout << "swap costs as much as whole layers again at " << high / 1e6 << " MB/s (computed)";
  double slower = 0, slower_cost = 0, measured = 0;
  for (double at = 0.7 * high; at < 1.5 * high && measured == 0; at += 0.1 * high) {
    const double cost = swap_over(at).ratio() - whole_layers.ratio();
    if (cost <= 0) {
      measured = slower == 0 ? at : slower + (at - slower) * slower_cost / (slower_cost - cost);
    }
    slower = at;
    slower_cost = cost;
  }
  std::cout << ", " << measured / 1e6 << " MB/s (measured), " << measured / high
            << " of it (0.85 to 1.15)\n";
}

int parse_and_run(int argc, char** argv) {
  std::int64_t pairs = 30;
  int threads = 1;
  using namespace training;
  CommandLine line("Measures what tools for memory save and cost.",
                   {number_option("pairs", pairs, {1, 1 << 20}, "of steps for each tool"),
                    threads_option(threads)});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  LaunchOptions options;
  options.threads_per_rank = threads;
  launch(
      1,
      [&](RankContext& context) {
        Bench bench(context, pairs);
        const auto layers = model_of().config.num_hidden_layers;
        const MemoryPlan wholes{.recompute_layers = layers};
        const auto whole_layers = bench.measure({.plan = wholes});
        const auto& plain = whole_layers.plain;
        const double share = Bench::Pairs::median_of(plain, &PartTimes::forward) /
                             (Bench::Pairs::median_of(plain, &PartTimes::forward) +
                              Bench::Pairs::median_of(plain, &PartTimes::backward) +
                              Bench::Pairs::median_of(plain, &PartTimes::optimizer));
        std::cout << "tool                              peak of activations (MB), step's time over "
                     "the plain one's\n"
                  << "nothing                                     " << std::fixed
                  << std::setprecision(1) << std::setw(8)
                  << static_cast<double>(whole_layers.plain_peak) / 1e6 << "    1.000; forward is "
                  << std::setprecision(3) << share << " of a step" << std::endl;
        for (const auto* set : {"adaptive", "light", "medium", "full"}) {
          print(std::string("--recompute ") + set, bench.measure({.plan = {.recompute = set}}), 0);
        }
        print("--recompute-layers 16", whole_layers, 1 + 1.1 * share);
        print("--recompute layernorm,moe_act",
              bench.measure({.plan = {.recompute = "layernorm,moe_act"}}), 1.04);
        const auto chunked = bench.measure({.loss = Loss::kChunked});
        print("chunked loss", chunked, 1.03);
        const auto twice = bench.measure({.loss = Loss::kChunkedTwice});
        print("chunked loss, logits twice", twice, 0);
        const double step = Bench::Pairs::median_of(plain, &PartTimes::forward) / share;
        std::cout << "    once is faster by "
                  << (twice.ratio() - chunked.ratio()) * step / bench.seconds_of_logits()
                  << " of a product of logits (at least 0.7)\n";
        measure_swap(bench, whole_layers, layers);
        const auto mix = bench.measure({.plan = {.recompute = "light,moe_act",
                                                 .offload = "attn_norm,mlp_norm,attn_proj",
                                                 .offload_window = 8 << 20},
                                        .loss = Loss::kChunked},
                                       {.window = 8 << 20});
        print("light, sums and attention swapped, chunked", mix, 0);
      },
      options);
  return 0;
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program_once("bench_memory",
                                   [&] { return moegrad::bench::parse_and_run(argc, argv); });
}
