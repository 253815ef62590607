// SPDX-License-Identifier: Apache-2.0
#include "tools/nz_ablation/nz_ablation_report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "tools/fsdp_timeline/timeline_report.h"

namespace moegrad::tools {
namespace {

// The first step whose loss has other bits than the loss of the first rung; the number of steps if
// there is none.
std::size_t first_difference(const Ladder& ladder, std::size_t rung) {
  const auto& expected = ladder.rungs[0].loss;
  const auto& loss = ladder.rungs[rung].loss;
  std::size_t step = 0;
  while (step < loss.size() &&
         std::bit_cast<std::uint64_t>(loss[step]) == std::bit_cast<std::uint64_t>(expected[step])) {
    ++step;
  }
  return step;
}

bool is_bitwise(const Ladder& ladder, std::size_t rung) {
  return first_difference(ladder, rung) == ladder.rungs[rung].loss.size();
}

std::string difference_text(const Ladder& ladder, std::size_t rung) {
  if (is_bitwise(ladder, rung)) return "0 (bitwise)";
  std::ostringstream text;
  text << std::scientific << std::setprecision(1) << max_loss_difference(ladder, rung);
  return text.str();
}

nlohmann::ordered_json rung_json(const Ladder& ladder, std::size_t rung) {
  const auto& run = ladder.rungs[rung];
  const auto& moved = run.moved;
  const auto step = spread_of(run.seconds);
  nlohmann::ordered_json gains;
  for (const auto baseline : all_baselines(ladder)) {
    const auto over = gain(ladder, rung, baseline);
    gains.push_back({{"over", ladder.rungs[baseline].name},
                     {"median", over.median},
                     {"lower_quartile", over.lower_quartile},
                     {"upper_quartile", over.upper_quartile}});
  }
  return {{"name", run.name},
          {"step_ms", 1e3 * step.median},
          {"lower_quartile_step_ms", 1e3 * step.lower_quartile},
          {"upper_quartile_step_ms", 1e3 * step.upper_quartile},
          {"fastest_step_ms", 1e3 * std::ranges::min(run.seconds)},
          {"tgs", tgs(ladder, rung)},
          {"gains", gains},
          {"moved_bytes", moved.bytes()},
          {"copied_out_bytes", moved.copied_out_bytes},
          {"converted_bytes", moved.converted_bytes},
          {"packed_bytes", moved.packed_bytes},
          {"materialized_transposes", moved.materialized_transposes},
          {"transposed_packs", moved.transposed_packs},
          {"packed_panels", moved.packed_panels},
          {"nz_conversions", moved.nz_conversions},
          {"nz_copy_outs", moved.nz_copy_outs},
          {"max_loss_difference", max_loss_difference(ladder, rung)},
          {"bitwise", is_bitwise(ladder, rung)}};
}

std::string number(int width, int digits, double value) {
  std::ostringstream text;
  text << std::fixed << std::right << std::setw(width) << std::setprecision(digits) << value;
  return text.str();
}

// "  300.0 (250.0 - 350.0)"
std::string spread_text(int digits, const Spread& values) {
  return number(7, digits, values.median) + " (" + number(0, digits, values.lower_quartile) +
         " - " + number(0, digits, values.upper_quartile) + ')';
}

std::string times_table(const Ladder& ladder) {
  constexpr int kName = 20, kSpread = 25;
  const auto baselines = all_baselines(ladder);
  std::ostringstream text;
  text
      << "milliseconds of a step, tokens per second and rank (TGS), and how many times as fast as\n"
         "another rung of the same round; medians and quartiles:\n"
      << std::left << std::setw(kName) << "rung" << std::right << std::setw(6) << "TGS" << std::left
      << std::setw(kSpread) << "  step ms";
  for (const auto rung : baselines) {
    text << "  over " << std::setw(rung == baselines.back() ? 0 : kSpread - 7)
         << ladder.rungs[rung].name;
  }
  text << '\n';
  for (std::size_t i = 0; i < ladder.rungs.size(); ++i) {
    auto milliseconds = ladder.rungs[i].seconds;
    for (auto& time : milliseconds) time *= 1e3;
    text << std::left << std::setw(kName) << ladder.rungs[i].name << number(6, 0, tgs(ladder, i))
         << std::left << std::setw(kSpread) << spread_text(1, spread_of(std::move(milliseconds)));
    for (const auto rung : baselines) {
      text << std::left << std::setw(rung == baselines.back() ? 0 : kSpread)
           << spread_text(2, gain(ladder, i, rung));
    }
    text << '\n';
  }
  return text.str();
}

std::string copies_table(const Ladder& ladder) {
  std::ostringstream text;
  text << "copies per rank and step, and the largest difference of a loss from the first rung's:\n"
          "rung                  MB moved  transposes  packs  transposed  to NZ  copy-outs to NZ  "
          "loss difference\n";
  for (std::size_t i = 0; i < ladder.rungs.size(); ++i) {
    const auto& [name, seconds, loss, moved] = ladder.rungs[i];
    text << std::left << std::setw(20) << name << number(10, 1, moved.bytes() / 1e6)
         << number(12, 0, moved.materialized_transposes)
         << number(7, 0, moved.packed_panels + moved.transposed_packs)
         << number(12, 0, moved.transposed_packs) << number(7, 0, moved.nz_conversions)
         << number(17, 0, moved.nz_copy_outs) << "  " << difference_text(ladder, i) << '\n';
  }
  return text.str();
}

}  // namespace

double max_loss_difference(const Ladder& ladder, std::size_t rung) {
  double worst = 0;
  for (std::size_t step = 0; step < ladder.rungs[rung].loss.size(); ++step) {
    worst = std::max(worst, std::abs(ladder.rungs[rung].loss[step] - ladder.rungs[0].loss[step]));
  }
  return worst;
}

void check_losses_agree(const Ladder& ladder) {
  for (std::size_t rung = 1; rung < ladder.rungs.size(); ++rung) {
    const auto& loss = ladder.rungs[rung].loss;
    const auto step = first_difference(ladder, rung);
    if (step == loss.size()) continue;
    std::ostringstream values;
    values << std::setprecision(17) << ladder.rungs[0].loss[step] << " and " << loss[step];
    check(false, ladder.title, ": losses must agree to the bit, got ", values.str(), " of '",
          ladder.rungs[0].name, "' and '", ladder.rungs[rung].name, "' at step ", step);
  }
}

Spread spread_of(std::vector<double> values) {
  check<ValueError>(!values.empty(), "nz_ablation: a spread needs at least one value, got none");
  std::ranges::sort(values);
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const auto above = std::min(below + 1, values.size() - 1);
    return std::lerp(values[below], values[above], at - std::floor(at));
  };
  return {
      .median = quantile(0.5), .lower_quartile = quantile(0.25), .upper_quartile = quantile(0.75)};
}

Spread gain(const Ladder& ladder, std::size_t rung, std::size_t baseline) {
  const auto& before = ladder.rungs[baseline].seconds;
  const auto& after = ladder.rungs[rung].seconds;
  std::vector<double> ratios;
  for (std::size_t round = 0; round < after.size(); ++round) {
    ratios.push_back(before[round] / after[round]);
  }
  return spread_of(std::move(ratios));
}

std::optional<std::size_t> fastest_row_major(const Ladder& ladder) {
  std::optional<std::size_t> fastest;
  for (std::size_t rung = 0; rung + 1 < ladder.rungs.size(); ++rung) {
    const auto& [name, seconds, loss, moved] = ladder.rungs[rung];
    if (moved.nz_conversions + moved.nz_copy_outs > 0) continue;
    if (!fastest || median(seconds) < median(ladder.rungs[*fastest].seconds)) fastest = rung;
  }
  return fastest;
}

std::vector<std::size_t> all_baselines(const Ladder& ladder) {
  auto rungs = ladder.baselines;
  const auto fastest = fastest_row_major(ladder);
  if (fastest && std::ranges::count(rungs, *fastest) == 0) rungs.push_back(*fastest);
  return rungs;
}

std::string gain_lines(const Ladder& ladder) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2);
  const auto last = ladder.rungs.size() - 1;
  const auto line = [&](std::size_t baseline, const char* which) {
    const auto [median, lower, upper] = gain(ladder, last, baseline);
    text << ladder.title << ": '" << ladder.rungs[last].name << "' is " << median
         << " times (quartiles " << lower << " to " << upper << ") as fast as '"
         << ladder.rungs[baseline].name << "'" << which << '\n';
  };
  const auto fastest = fastest_row_major(ladder);
  const auto baselines = all_baselines(ladder);
  for (const auto rung : baselines) {
    line(rung, rung == fastest ? ", the fastest row-major rung" : "");
  }
  if (last > 0 && std::ranges::count(baselines, last - 1) == 0) {
    line(last - 1, ", the rung before it");
  }
  return text.str();
}

double tgs(const Ladder& ladder, std::size_t rung) {
  return static_cast<double>(ladder.tokens) / median(ladder.rungs[rung].seconds);
}

std::string ladder_table(const Ladder& ladder) {
  const auto& options = ladder.options;
  std::ostringstream text;
  text << ladder.title << ": " << options.ranks << " ranks x " << options.threads << " threads, "
       << ladder.tokens << " tokens per rank and step, " << options.rounds << " rounds\n"
       << times_table(ladder) << copies_table(ladder);
  return text.str();
}

void write_ablation_json(const std::string& path, const std::vector<Ladder>& ladders) {
  nlohmann::ordered_json json;
  for (const auto& ladder : ladders) {
    nlohmann::ordered_json rungs;
    for (std::size_t i = 0; i < ladder.rungs.size(); ++i) rungs.push_back(rung_json(ladder, i));
    json["ladders"].push_back({{"title", ladder.title},
                               {"ranks", ladder.options.ranks},
                               {"threads", ladder.options.threads},
                               {"rounds", ladder.options.rounds},
                               {"tokens_per_rank", ladder.tokens},
                               {"rungs", rungs}});
  }
  OutputFile file(path);
  file << json.dump(2) << '\n';
  file.finish();
}

}  // namespace moegrad::tools
