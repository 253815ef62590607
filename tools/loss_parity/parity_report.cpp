// SPDX-License-Identifier: Apache-2.0
#include "tools/loss_parity/parity_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "framework/io/output_file.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "tools/report/curve_chart.h"
#include "tools/report/svg.h"

namespace moegrad::tools {
namespace {

std::int64_t count_differing(const std::vector<double>& a, const std::vector<double>& b) {
  std::int64_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    count += std::bit_cast<std::uint64_t>(a[i]) != std::bit_cast<std::uint64_t>(b[i]) ? 1 : 0;
  }
  return count;
}

ParityCheck bounded(std::string what, double worst, double limit) {
  // Written so that NaN breaks the bound.
  return {.what = std::move(what), .worst = worst, .limit = limit, .holds = worst <= limit};
}

// A NaN anywhere makes the result NaN, which no bound admits.
double worst_of(const std::vector<double>& differences, std::size_t begin, std::size_t end) {
  double worst = 0;
  for (auto i = begin; i < end; ++i) {
    worst = std::isnan(differences[i]) ? differences[i] : std::max(worst, differences[i]);
    if (std::isnan(worst)) break;
  }
  return worst;
}

Curve curve_of(const std::vector<double>& values) {
  Curve curve;
  for (std::size_t step = 0; step < values.size(); ++step) {
    curve.add(static_cast<std::int64_t>(step), values[step]);
  }
  return curve;
}

}  // namespace

std::vector<double> relative_differences(const Run& a, const Run& b) {
  check(a.loss.size() == b.loss.size(), "loss_parity: runs of ", a.loss.size(), " and ",
        b.loss.size(), " steps");
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.loss.size(); ++i) {
    differences.push_back(std::abs(a.loss[i] - b.loss[i]) / std::abs(a.loss[i]));
  }
  return differences;
}

ParityCheck check_bitwise(const Run& a, const Run& b) {
  auto count = count_differing(a.loss, b.loss) + count_differing(a.grad_norm, b.grad_norm);
  if (a.parameters.empty() || a.parameters.size() != b.parameters.size()) ++count;
  for (std::size_t i = 0; i < std::min(a.parameters.size(), b.parameters.size()); ++i) {
    count += count_differing(a.parameters[i], b.parameters[i]);
  }
  return bounded("bits of loss, grad norm, parameters: " + a.name + " = " + b.name,
                 static_cast<double>(count), 0);
}

ParityCheck check_close(const std::string& what, const Run& a, const Run& b, double limit) {
  const auto differences = relative_differences(a, b);
  return bounded(what, worst_of(differences, 0, differences.size()), limit);
}

std::optional<std::int64_t> first_different_choice(const Run& a, const Run& b) {
  for (std::size_t step = 0; step < a.choices.size(); ++step) {
    for (std::size_t batch = 0; batch < a.choices[step].size(); ++batch) {
      for (std::size_t layer = 0; layer < a.choices[step][batch].size(); ++layer) {
        const Tensor& x = a.choices[step][batch][layer];
        const Tensor& y = b.choices[step][batch][layer];
        if (!std::ranges::equal(x.data<std::int64_t>(), y.data<std::int64_t>())) {
          return static_cast<std::int64_t>(step);
        }
      }
    }
  }
  return std::nullopt;
}

std::vector<ParityCheck> check_free_running(const Run& a, const Run& b, double before,
                                            double after) {
  const auto differences = relative_differences(a, b);
  const auto flip = first_different_choice(a, b);
  // The loss of the step at which a choice first differs already comes from the other expert.
  const auto cut = static_cast<std::size_t>(flip.value_or(std::ssize(differences)));
  std::vector<ParityCheck> checks = {
      bounded("fp32 free-running, " + a.name + " - " + b.name + ", before any choice differs",
              worst_of(differences, 0, cut), before)};
  if (flip) {
    checks.push_back(bounded(
        "the same from step " + std::to_string(*flip) + " on, where a token's experts first differ",
        worst_of(differences, cut, differences.size()), after));
  }
  return checks;
}

std::string LossCurve::name() const {
  if (runs == 1) return run->name;
  return run->name + " (and " + std::to_string(runs - 1) + " with the same bits)";
}

std::vector<LossCurve> distinct_curves(const std::vector<Run>& runs) {
  std::vector<LossCurve> curves;
  for (const auto& run : runs) {
    const auto same = std::ranges::find_if(curves, [&](const LossCurve& curve) {
      return count_differing(curve.run->loss, run.loss) == 0;
    });
    if (same != curves.end()) {
      ++same->runs;
    } else {
      curves.push_back({.run = &run});
    }
  }
  return curves;
}

void write_parity_json(const std::string& path, const std::vector<Run>& runs,
                       const std::vector<ParityCheck>& checks) {
  nlohmann::json json;
  for (const auto& run : runs) {
    std::uint32_t checksum = 0;
    for (const auto& values : run.parameters) {
      checksum = crc32c(std::as_bytes(std::span(values)), checksum);
    }
    json["runs"].push_back({{"name", run.name},
                            {"loss", run.loss},
                            {"grad_norm", run.grad_norm},
                            {"parameters_crc32c", checksum}});
  }
  for (const auto& check : checks) {
    json["checks"].push_back({{"what", check.what},
                              {"worst", check.worst},
                              {"limit", check.limit},
                              {"holds", check.holds}});
  }
  OutputFile file(path);
  file << json.dump(1) << '\n';
  file.finish();
}

void write_parity_svg(const std::string& path, const std::vector<Run>& runs) {
  constexpr double kWidth = 900, kHeight = 360;
  constexpr double kLowest = -18;  // log10: what is drawn for "equal"
  const auto distinct = distinct_curves(runs);
  std::vector<Curve> losses, differences;
  for (const auto& [run, count] : distinct) {
    auto difference = relative_differences(runs[0], *run);
    for (auto& d : difference) d = d == 0 ? kLowest : std::max(std::log10(d), kLowest);
    losses.push_back(curve_of(run->loss));
    differences.push_back(curve_of(difference));
  }
  const auto steps = axis_range(0, static_cast<double>(runs[0].loss.size()) - 1);
  const auto chart = [&](const std::vector<Curve>& curves, const std::string& unit) {
    std::vector<ChartLine> lines;
    for (std::size_t i = 0; i < curves.size(); ++i) {
      lines.push_back({distinct[i].name(), &curves[i]});
    }
    return curve_chart(lines, steps, {.width = kWidth, .height = kHeight, .unit = unit});
  };
  OutputFile file(path);
  file << svg_file(
      {chart(losses, "loss"), chart(differences,
                                    "log10 of the relative difference from the first run "
                                    "(-18: equal)")},
      kWidth, kHeight);
  file.finish();
}

}  // namespace moegrad::tools
