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
  return {{"name", run.name},
          {"step_ms", 1e3 * median(run.seconds)},
          {"fastest_step_ms", 1e3 * std::ranges::min(run.seconds)},
          {"tgs", tgs(ladder, rung)},
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

Gain gain(const Ladder& ladder, std::size_t baseline) {
  const auto& before = ladder.rungs[baseline].seconds;
  const auto& last = ladder.rungs.back().seconds;
  std::vector<double> ratios;
  for (std::size_t round = 0; round < last.size(); ++round) {
    ratios.push_back(before[round] / last[round]);
  }
  const auto [lowest, highest] = std::ranges::minmax(ratios);
  return {.median = median(std::move(ratios)), .lowest = lowest, .highest = highest};
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

std::string gain_lines(const Ladder& ladder) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2);
  const auto line = [&](std::size_t baseline, const char* which) {
    const auto [median, lowest, highest] = gain(ladder, baseline);
    text << ladder.title << ": '" << ladder.rungs.back().name << "' is " << median << " times ("
         << lowest << " to " << highest << " in " << ladder.options.rounds
         << " rounds) as fast as '" << ladder.rungs[baseline].name << "'" << which << '\n';
  };
  line(ladder.baseline, "");
  if (const auto rung = fastest_row_major(ladder)) line(*rung, ", the fastest row-major rung");
  return text.str();
}

double tgs(const Ladder& ladder, std::size_t rung) {
  return static_cast<double>(ladder.tokens) / median(ladder.rungs[rung].seconds);
}

std::string ladder_table(const Ladder& ladder) {
  const auto& options = ladder.options;
  std::ostringstream text;
  text
      << std::fixed << ladder.title << ": " << options.ranks << " ranks x " << options.threads
      << " threads, " << ladder.tokens << " tokens per rank and step, median of " << options.rounds
      << " rounds; per rank and step:\n"
      << "rung                   step ms  fastest    TGS  MB moved  transposes  packs  transposed  "
         "to NZ  copy-outs to NZ  loss difference\n";
  const auto column = [&](int width, int digits, double value) {
    text << std::right << std::setw(width) << std::setprecision(digits) << value;
  };
  for (std::size_t i = 0; i < ladder.rungs.size(); ++i) {
    const auto& [name, seconds, loss, moved] = ladder.rungs[i];
    text << std::left << std::setw(20) << name;
    column(10, 1, 1e3 * median(seconds));
    column(9, 1, 1e3 * std::ranges::min(seconds));
    column(7, 0, tgs(ladder, i));
    column(10, 1, moved.bytes() / 1e6);
    column(12, 0, moved.materialized_transposes);
    column(7, 0, moved.packed_panels + moved.transposed_packs);
    column(12, 0, moved.transposed_packs);
    column(7, 0, moved.nz_conversions);
    column(17, 0, moved.nz_copy_outs);
    text << "  " << difference_text(ladder, i) << '\n';
  }
  return text.str();
}

void write_ablation_json(const std::string& path, const std::vector<Ladder>& ladders) {
  nlohmann::ordered_json json;
  for (const auto& ladder : ladders) {
    nlohmann::ordered_json rungs;
    for (std::size_t i = 0; i < ladder.rungs.size(); ++i) rungs.push_back(rung_json(ladder, i));
    const auto gain_json = [&](std::size_t baseline) -> nlohmann::ordered_json {
      const auto [median, lowest, highest] = gain(ladder, baseline);
      return {{"over", ladder.rungs[baseline].name},
              {"median", median},
              {"lowest", lowest},
              {"highest", highest}};
    };
    nlohmann::ordered_json gains;
    gains.push_back(gain_json(ladder.baseline));
    if (const auto rung = fastest_row_major(ladder)) gains.push_back(gain_json(*rung));
    json["ladders"].push_back({{"title", ladder.title},
                               {"ranks", ladder.options.ranks},
                               {"threads", ladder.options.threads},
                               {"rounds", ladder.options.rounds},
                               {"tokens_per_rank", ladder.tokens},
                               {"rungs", rungs},
                               {"gains", gains}});
  }
  OutputFile file(path);
  file << json.dump(2) << '\n';
  file.finish();
}

}  // namespace moegrad::tools
