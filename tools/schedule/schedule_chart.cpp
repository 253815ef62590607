// SPDX-License-Identifier: Apache-2.0
#include "tools/schedule/schedule_chart.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tools/report/axis.h"
#include "tools/report/chart_style.h"
#include "tools/report/markup.h"
#include "tools/report/svg.h"

namespace moegrad::tools {
namespace {

using plan::ActionKind, plan::TimedAction, plan::Simulation;

constexpr double kChartWidth = 960, kRowsTop = 56, kRowHeight = 30, kBoxHeight = 20,
                 kLaneHeight = 4;
constexpr double kMemoryHeight = 130, kMemoryGap = 44, kChartLeft = 60, kChartRight = 800;

const char* colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "#4285f4";
    case ActionKind::kBackwardInput:
      return "#16a5a5";
    case ActionKind::kBackwardWeight:
      return "#34a853";
    case ActionKind::kFullBackward:
      return "#f29900";
    case ActionKind::kUnshard:
      return "#8250df";
    case ActionKind::kReduceGrad:
      return "#9a6700";
    default:
      return "#8a939c";
  }
}

/// The stages of each rank in ascending order.
std::vector<std::vector<int>> stages_of_ranks(const Simulation& simulation) {
  std::vector<std::set<int>> stages(simulation.ranks.size());
  for (const auto& timed : simulation.actions) stages[timed.row].insert(timed.action.stage);
  std::vector<std::vector<int>> result;
  for (const auto& own : stages) result.emplace_back(own.begin(), own.end());
  return result;
}

std::string action_box(const TimedAction& timed, const PlotArea& area, double top, double height,
                       double opacity) {
  constexpr double kDigit = 6.5;  // of the text's width
  const double left = area.x(timed.begin), width = area.x(timed.end) - left;
  auto svg = concat("<rect x=\"", fixed(left, 2), "\" y=\"", fixed(top, 1), "\" width=\"",
                    fixed(width, 2), "\" height=\"", fixed(height, 1), "\" fill=\"",
                    colour_of(timed.action.kind), "\" fill-opacity=\"", fixed(opacity, 2),
                    "\" stroke=\"#ffffff\" stroke-width=\"0.5\"><title>", to_string(timed.action),
                    "</title></rect>\n");
  const auto number = std::to_string(timed.action.micro_batch);
  if (!has_micro_batch(timed.action.kind) || height < kBoxHeight / 2 ||
      width < kDigit * static_cast<double>(number.size())) {
    return svg;
  }
  const double size = height < kBoxHeight ? 9 : 11;
  svg += concat("<text x=\"", fixed(left + width / 2, 1), "\" y=\"",
                fixed(top + height / 2 + size * 0.36, 1),
                "\" text-anchor=\"middle\" style=\"fill: "
                "#ffffff; font-size: ",
                fixed(size, 0), "px\">", number, "</text>\n");
  return svg;
}

double row_top(std::size_t row) { return kRowsTop + kRowHeight * static_cast<double>(row); }

/// How dark a stage is among those of its rank.
double opacity_of(const std::vector<int>& stages, int stage) {
  if (stages.size() < 2) return 1;
  const auto position = std::ranges::find(stages, stage) - stages.begin();
  return 0.6 + 0.4 * static_cast<double>(position) / static_cast<double>(stages.size() - 1);
}

std::string draw_actions(const Simulation& simulation, const PlotArea& area) {
  const auto stages = stages_of_ranks(simulation);
  std::string svg;
  const auto& actions = simulation.actions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto& timed = actions[i];
    if (timed.begin == timed.end) continue;
    const double top = row_top(timed.row);
    if (!is_compute(timed.action.kind)) {
      svg += action_box(timed, area, top + kBoxHeight, kLaneHeight, 1);
      continue;
    }
    const auto is_half_with = [&](const TimedAction& other) {
      return other.row == timed.row && other.cell == timed.cell && other.begin == timed.begin &&
             other.begin < other.end;
    };
    const bool upper = i + 1 < actions.size() && is_half_with(actions[i + 1]);
    const bool lower = i > 0 && is_half_with(actions[i - 1]);
    const double height = upper || lower ? kBoxHeight / 2 : kBoxHeight;
    svg += action_box(timed, area, lower ? top + height : top, height,
                      opacity_of(stages[timed.row], timed.action.stage));
  }
  return svg;
}

/// A line for each message, from the end of what makes it to the beginning of what needs it.
std::string draw_messages(const Simulation& simulation, const PlotArea& area) {
  std::map<plan::Action, const TimedAction*> by_action;
  const auto find = [&](ActionKind kind, int stage, int micro_batch) -> const TimedAction* {
    const auto found = by_action.find({kind, stage, micro_batch});
    return found == by_action.end() ? nullptr : found->second;
  };
  for (const auto& timed : simulation.actions) by_action[timed.action] = &timed;
  std::string lines;
  for (const auto& timed : simulation.actions) {
    const auto& [kind, stage, micro_batch] = timed.action;
    const TimedAction* reader = nullptr;
    if (kind == ActionKind::kForward) {
      reader = find(ActionKind::kForward, stage + 1, micro_batch);
    } else if (plan::is_input_backward(kind)) {
      reader = find(ActionKind::kFullBackward, stage - 1, micro_batch);
      if (reader == nullptr) reader = find(ActionKind::kBackwardInput, stage - 1, micro_batch);
    }
    if (reader == nullptr || reader->row == timed.row) continue;
    const bool down = reader->row > timed.row;
    const double from = row_top(timed.row) + (down ? kBoxHeight : 0);
    const double to = row_top(reader->row) + (down ? 0 : kBoxHeight);
    lines += concat("M", fixed(area.x(timed.end), 1), ",", fixed(from, 1), "L",
                    fixed(area.x(reader->begin), 1), ",", fixed(to, 1));
  }
  return concat("<path d=\"", lines,
                "\" style=\"fill: none; stroke: var(--soft); stroke-width: 0.5\"/>\n");
}

std::string draw_numbers(const Simulation& simulation) {
  std::string svg;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const auto& of = simulation.ranks[rank];
    const double y = row_top(rank) + kBoxHeight * 0.7;
    const double share = simulation.makespan > 0 ? 100 * of.bubble / simulation.makespan : 0;
    svg += svg_text(kChartLeft - 6, y, "end", concat("rank ", std::to_string(rank)));
    svg += svg_text(kChartRight + 6, y, "start",
                    concat("bubble ", fixed(share, 1), " %, peak ",
                           short_number(static_cast<double>(of.peak_bytes))));
  }
  return svg;
}

/// A line per rank; the first ranks are named, since colours begin anew after them.
std::string draw_live_bytes(const Simulation& simulation, const PlotArea& area) {
  std::string svg;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    std::string line;
    double before = 0;
    for (const auto& live : simulation.ranks[rank].live) {
      const auto total = static_cast<double>(live.total());
      line += line.empty()
                  ? concat("M", area.point(live.time, total))
                  : concat("L", area.point(live.time, before), "L", area.point(live.time, total));
      before = total;
    }
    line += concat("L", area.point(simulation.makespan, before));
    const auto number = std::to_string(rank % kChartColours);
    svg += concat("<path class=\"line", number, "\" d=\"", line, "\"/>\n");
    if (rank >= kChartColours) continue;
    const double y = area.top + 12 + 14 * static_cast<double>(rank);
    svg += concat("<path class=\"line", number, "\" d=\"M", fixed(area.right + 8, 1), ",",
                  fixed(y - 4, 1), "h18\"/>\n",
                  svg_text(area.right + 32, y, "start", concat("rank ", std::to_string(rank))));
  }
  return svg;
}

std::string draw_time_axis(const PlotArea& area) {
  std::string svg = concat("<path class=\"axis\" d=\"M", fixed(area.left, 1), ",",
                           fixed(area.bottom, 1), "H", fixed(area.right, 1), "\"/>\n");
  for (const auto& tick : ticks(area.steps, 12)) {
    svg += svg_text(area.x(tick.value), area.bottom + 16, "middle", tick.label);
  }
  return svg + svg_text((area.left + area.right) / 2, area.bottom + 31, "middle", "time");
}

std::string draw_colours() {
  constexpr std::pair<ActionKind, const char*> kColours[] = {
      {ActionKind::kForward, "F"},
      {ActionKind::kBackwardInput, "I"},
      {ActionKind::kBackwardWeight, "W"},
      {ActionKind::kFullBackward, "B"},
      {ActionKind::kRecompute, "R"},
      {ActionKind::kUnshard, "UNSHARD"},
      {ActionKind::kReduceGrad, "REDUCE_GRAD"}};
  std::string svg;
  double x = kChartLeft;
  for (const auto& [kind, name] : kColours) {
    svg += concat("<rect x=\"", fixed(x, 1), "\" y=\"32\" width=\"12\" height=\"12\" fill=\"",
                  colour_of(kind), "\"/>\n", svg_text(x + 16, 42, "start", name));
    x += 40 + 7.5 * static_cast<double>(std::string_view(name).size());
  }
  return svg;
}

}  // namespace

std::string schedule_chart(const std::string& title, const Simulation& simulation) {
  const auto ranks = simulation.ranks.size();
  std::int64_t peak = 1;  // at least, for an axis that begins at 0
  for (const auto& rank : simulation.ranks) peak = std::max(peak, rank.peak_bytes);
  PlotArea area = {.left = kChartLeft,
                   .top = row_top(ranks) + kMemoryGap,
                   .right = kChartRight,
                   .steps = axis_range(0, simulation.makespan > 0 ? simulation.makespan : 1),
                   .values = axis_range(0, static_cast<double>(peak))};
  area.bottom = area.top + kMemoryHeight;
  const double height = area.bottom + 40;
  std::string svg = svg_begin(kChartWidth, height);
  svg += svg_text(kChartLeft, 20, "start",
                  concat(title, ": makespan ", short_number(simulation.makespan)));
  svg += draw_colours();
  svg += draw_messages(simulation, area);
  svg += draw_actions(simulation, area);
  svg += draw_numbers(simulation);
  svg += svg_text(kChartLeft, area.top - 12, "start", "live at each moment");
  for (const auto& tick : ticks(area.values, 4)) svg += value_tick(area, tick);
  svg += draw_live_bytes(simulation, area);
  svg += draw_time_axis(area);
  return svg_file({svg + "</svg>\n"}, kChartWidth, height);
}

}  // namespace moegrad::tools
