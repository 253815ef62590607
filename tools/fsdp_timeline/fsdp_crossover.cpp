// SPDX-License-Identifier: Apache-2.0

// From how many tokens per step on the compute of a layer covers the gather of the next layer:
// measured on two ranks and a modelled link, and compared with the roofline's prediction.
//
//     build/release/tools/fsdp_crossover
//
// A gather counts as covered if 90 % of it is hidden. The roofline's compute time is FLOPs divided
// by the rate that is reached with the most tokens. Its crossover is where that time is 90 % of the
// gather's time, latency + bytes / bandwidth. Writes fsdp_crossover.svg.

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "framework/io/output_file.h"
#include "framework/profile/overlap.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "tools/fsdp_timeline/timeline_report.h"
#include "tools/tool_main.h"

namespace moegrad::tools {

using namespace training;

namespace {

constexpr double kCovered = 0.9;  // share hidden from which on we call a gather covered
const std::int64_t kTokens[] = {16, 32, 64, 128, 256, 512, 1024, 2048};

struct CrossoverOptions {
  double megabytes_per_second = 60;
  std::int64_t steps = 8;
};

struct Point {
  double tokens = 0, compute = 0, gather = 0, hidden = 0;  // seconds, share
};

/// Measures the forwards of all layers except the first, whose gather nothing can cover.
Point measure(const TimelineOptions& options) {
  std::vector<double> compute, gather, hidden;
  const auto timelines = run_timeline(options);
  if (timelines.empty()) return {};  // rank 0's process has them
  for (const auto& rank : timelines) {
    const auto busy = compute_intervals(rank.spans);
    std::vector<Interval> forwards;
    for (const auto& span : rank.spans) {
      if (span.kind == SpanKind::kPhase && span.name == "forward") {
        forwards.push_back({span.begin, span.end});
      }
    }
    const auto in_forward = [&](const Span& span) {
      return std::ranges::any_of(forwards, [&](const Interval& forward) {
        return forward.begin <= span.begin && span.begin < forward.end;
      });
    };
    for (const auto& span : rank.spans) {
      const auto layer = span.name.rfind("model.layers.");
      if (layer == std::string::npos || span.name.find('.', layer + 13) != std::string::npos ||
          span.name.ends_with(".0") || !in_forward(span)) {
        continue;
      }
      const auto whole = overlap_of(span, busy);
      if (span.kind == SpanKind::kModule) compute.push_back(seconds(whole.hidden));
      if (span.lane != Lane::kGather) continue;
      gather.push_back(seconds(whole.total));
      hidden.push_back(whole.hidden_share());
    }
  }
  return {.tokens = static_cast<double>(options.batch * options.sequence_length),
          .compute = median(compute),
          .gather = median(gather),
          .hidden = median(hidden)};
}

/// Where the hidden share first reaches kCovered, along straight lines over log(tokens).
double measured_crossover(const std::vector<Point>& points) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].hidden < kCovered) continue;
    if (i == 0) return points[0].tokens;
    const auto& a = points[i - 1];
    const auto& b = points[i];
    const double part = (kCovered - a.hidden) / (b.hidden - a.hidden);
    return a.tokens * std::pow(b.tokens / a.tokens, part);
  }
  return HUGE_VAL;
}

void write_svg(const std::vector<Point>& points, double flops_per_token, double rate, double link) {
  constexpr double kWidth = 640, kHeight = 400, kLeft = 70, kTop = 30;
  double low = link, high = link;
  for (const auto& point : points) {
    low = std::min({low, point.compute, point.tokens * flops_per_token / rate});
    high = std::max({high, point.compute, point.gather});
  }
  const auto x = [&](double tokens) {
    return kLeft + kWidth * std::log(tokens / points.front().tokens) /
                       std::log(points.back().tokens / points.front().tokens);
  };
  const auto y = [&](double time) {
    return kTop + kHeight * std::log(high / time) / std::log(high / low);
  };
  OutputFile file("fsdp_crossover.svg");
  file << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kLeft + kWidth + 30
       << "\" height=\"" << kTop + kHeight + 50
       << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
          "fill=\"white\"/>\n<rect x=\""
       << kLeft << "\" y=\"" << kTop << "\" width=\"" << kWidth << "\" height=\"" << kHeight
       << "\" fill=\"none\" stroke=\"#999\"/>\n";
  double row = kTop + 20;
  const auto line = [&](const char* colour, const std::string& label, const auto& time) {
    file << "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"" << colour << "\" points=\"";
    for (const auto& point : points) file << x(point.tokens) << ',' << y(time(point)) << ' ';
    file << "\"/>\n<text x=\"" << kLeft + 10 << "\" y=\"" << row << "\" fill=\"" << colour << "\">"
         << label << "</text>\n";
    row += 16;
  };
  line("#1b6ca8", "compute of a layer, forward, measured",
       [](const Point& p) { return p.compute; });
  line("#2e933c", "the same by the roofline",
       [&](const Point& p) { return p.tokens * flops_per_token / rate; });
  line("#d1495b", "gather of a layer, modelled link", [](const Point& p) { return p.gather; });
  for (const auto& point : points) {
    file << "<text x=\"" << x(point.tokens) - 10 << "\" y=\"" << kTop + kHeight + 18 << "\">"
         << static_cast<std::int64_t>(point.tokens) << "</text>\n";
  }
  file << "<text x=\"" << kLeft << "\" y=\"" << kTop + kHeight + 38
       << "\">tokens per rank and step; time from " << low * 1e3 << " to " << high * 1e3
       << " ms, both logarithmic</text>\n</svg>\n";
}

int run(const CrossoverOptions& program) {
  const auto& [megabytes_per_second, steps] = program;
  TimelineOptions options;
  options.steps = steps;
  options.window = steps + 1;
  options.link.bytes_per_second = 1e6 * megabytes_per_second;
  std::vector<Point> points;
  std::cout << "link modelled at " << megabytes_per_second << " MB/s\n"
            << "  tokens  compute ms  gather ms  compute/gather  hidden %\n";
  for (const auto tokens : kTokens) {
    options.sequence_length = std::min<std::int64_t>(tokens, 64);
    options.batch = tokens / options.sequence_length;
    const auto& point = points.emplace_back(measure(options));
    std::cout << std::fixed << std::setw(8) << tokens << std::setw(12) << std::setprecision(3)
              << point.compute * 1e3 << std::setw(11) << point.gather * 1e3 << std::setw(16)
              << std::setprecision(2) << point.compute / point.gather << std::setw(10)
              << std::setprecision(1) << 100 * point.hidden << std::endl;
  }
  if (!is_first_process()) return 0;
  // The forward of one layer: a third of training's FLOPs, the same for every layer but the head.
  auto fewer = options.config;
  --fewer.num_hidden_layers;
  const double flops = (models::flops_per_token(options.config, options.sequence_length) -
                        models::flops_per_token(fewer, options.sequence_length)) /
                       3;
  const double rate = flops * points.back().tokens / points.back().compute;
  // Half of the layer comes from the other rank.
  const auto bytes =
      (models::parameter_count(options.config) - models::parameter_count(fewer)) * 4 / 2;
  const double link = seconds(options.link.duration(bytes));
  std::cout << "rate " << std::setprecision(2) << rate / 1e9 << " GFLOP/s, gather by the model "
            << std::setprecision(3) << link * 1e3 << " ms\ncrossover: roofline "
            << std::setprecision(0) << kCovered * link * rate / flops << " tokens, measured "
            << measured_crossover(points) << " tokens (" << 100 * kCovered
            << " % of a gather hidden)\n";
  write_svg(points, flops, rate, link);
  std::cout << "wrote fsdp_crossover.svg\n";
  return 0;
}

CommandLine command_line(CrossoverOptions& options) {
  return {
      "From how many tokens on a layer's compute covers the gather of the next one.",
      {number_option("mb-per-second", options.megabytes_per_second, {1e-3, 1e9},
                     "bandwidth of the modelled link"),
       number_option("steps", options.steps, {1, 1 << 20}, "measured, for each number of tokens")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program, "fsdp_crossover", command_line, run, argc, argv);
}
