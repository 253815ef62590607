// SPDX-License-Identifier: Apache-2.0
#include "tools/loss_parity/parity_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"

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

constexpr double kWidth = 900, kLeft = 70, kRight = 20, kPanel = 300, kGap = 60;
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93"};

std::string polyline(const std::vector<double>& values, double low, double high, double top,
                     std::size_t run) {
  std::ostringstream points;
  const auto n = static_cast<double>(std::max<std::size_t>(values.size(), 2) - 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = kLeft + static_cast<double>(i) / n * (kWidth - kLeft - kRight);
    const double y = top + kPanel * (1 - (values[i] - low) / (high - low));
    points << x << ',' << std::clamp(y, top, top + kPanel) << ' ';
  }
  return "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"" +
         std::string(kColours[run % std::size(kColours)]) + "\" points=\"" + points.str() +
         "\"/>\n";
}

void write_text(std::ostream& out, double x, double y, const std::string& text,
                const std::string& colour = "#333") {
  out << "<text x=\"" << x << "\" y=\"" << y << "\" fill=\"" << colour << "\">" << text
      << "</text>\n";
}

void write_axes(std::ostream& out, double top, const std::string& title, const std::string& low,
                const std::string& high) {
  out << "<rect x=\"" << kLeft << "\" y=\"" << top << "\" width=\"" << kWidth - kLeft - kRight
      << "\" height=\"" << kPanel << "\" fill=\"none\" stroke=\"#999\"/>\n";
  write_text(out, kLeft, top - 8, title);
  write_text(out, 8, top + 10, high);
  write_text(out, 8, top + kPanel, low);
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
    json["runs"].push_back({{"name", run.name}, {"loss", run.loss}, {"grad_norm", run.grad_norm}});
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
  constexpr double kTop = 40;
  constexpr double kSecond = kTop + kPanel + kGap;
  constexpr double kLowest = -18;  // log10: what is drawn for "equal"
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const auto& run : runs) {
    const auto [least, most] = std::ranges::minmax(run.loss);
    low = std::min(low, least);
    high = std::max(high, most);
  }
  if (high <= low) high = low + 1;
  OutputFile file(path);
  const double height = kSecond + kPanel + 20;
  file << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kWidth << "\" height=\"" << height
       << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
          "fill=\"white\"/>\n";
  write_axes(file, kTop, "loss per step", std::to_string(low), std::to_string(high));
  write_axes(file, kSecond, "log10 of the relative difference from the first run (bottom: equal)",
             "1e-18", "1");
  const auto curves = distinct_curves(runs);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto& run = *curves[i].run;
    file << polyline(run.loss, low, high, kTop, i);
    write_text(file, kWidth - 420, kTop + 18 + 16 * static_cast<double>(i), curves[i].name(),
               kColours[i % std::size(kColours)]);
    if (i == 0) continue;
    auto differences = relative_differences(runs[0], run);
    for (auto& d : differences) d = d > 0 ? std::max(std::log10(d), kLowest) : kLowest;
    file << polyline(differences, kLowest, 0, kSecond, i);
  }
  file << "</svg>\n";
  file.finish();
}

}  // namespace moegrad::tools
