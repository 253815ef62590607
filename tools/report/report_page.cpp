// SPDX-License-Identifier: Apache-2.0
#include "tools/report/report_page.h"

#include <cmath>
#include <optional>
#include <string_view>

#include "tools/fsdp_timeline/timeline_report.h"
#include "tools/report/bar_chart.h"
#include "tools/report/chart_style.h"
#include "tools/report/curve_chart.h"
#include "tools/report/heat_map.h"
#include "tools/report/markup.h"
#include "tools/report/report_style.h"

namespace moegrad::tools {

using namespace training;

namespace {

constexpr double kWide = 860;

std::string section(const std::string& id, const std::string& title, const std::string& content) {
  return concat("<section id=\"", id, "\">\n<h2>", escape(title), "</h2>\n", content,
                "</section>\n");
}

std::string paragraph(const std::string& text) { return concat("<p>", escape(text), "</p>\n"); }

// On narrow screens the chart scrolls, because its text would shrink with it. A hint says so.
std::string wide(const std::string& chart) {
  return concat(
      "<p class=\"hint\">The chart is wider than the screen: scroll it sideways \u2192</p>\n",
      "<div class=\"wide\">\n", chart, "</div>\n");
}

std::string tile(const std::string& name, const std::string& value) {
  return concat("<div><dt>", escape(name), "</dt><dd>", escape(value), "</dd></div>\n");
}

std::string count(double value) {
  std::string digits = fixed(value, 0);
  for (auto at = std::ssize(digits) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), "\u202F");  // narrow no-break space
  }
  return digits;
}

std::string percent(double part, double whole) {
  return whole > 0 ? fixed(100 * part / whole, 1) + " %" : "-";
}

const std::string kUnknown = "unknown";

std::string or_unknown(const std::string& text) { return text.empty() ? kUnknown : text; }

RunHeader last_header(const RunRecord& run) {
  return run.parts.empty() ? RunHeader() : run.parts.back().header;
}

std::string loss_unit(const RunRecord& run) {
  const auto unit = last_header(run).unit;
  return unit.empty() ? "nats per byte or token (unknown which)" : "nats per " + unit;
}

// "2.4 %", "off" or "unknown".
std::string clipped_share(const RunRecord& run) {
  if (run.clipping.steps > 0) {
    return percent(static_cast<double>(run.clipping.clipped),
                   static_cast<double>(run.clipping.steps));
  }
  return last_header(run).max_grad_norm == 0.0 ? "off" : kUnknown;
}

std::string clipping(const RunRecord& run) {
  const auto limit = last_header(run).max_grad_norm;
  if (limit == 0.0) return paragraph("Clipping is off (max_grad_norm 0).");
  if (run.clipping.steps == 0 || !limit) {
    return paragraph("Clipping: max_grad_norm is unknown.");
  }
  return paragraph(concat("Clipped above ", short_number(*limit),
                          " (max_grad_norm): ", count(static_cast<double>(run.clipping.clipped)),
                          " of ", count(static_cast<double>(run.clipping.steps)), " steps, ",
                          clipped_share(run), "."));
}

double dead_experts(const ExpertLoads& loads) {
  std::int64_t dead = 0;
  for (std::int64_t layer = 0; layer < loads.layers(); ++layer) dead += loads.dead(layer);
  return static_cast<double>(dead);
}

double all_experts(const ExpertLoads& loads) {
  std::int64_t experts = 0;
  for (std::int64_t layer = 0; layer < loads.layers(); ++layer) experts += loads.experts(layer);
  return static_cast<double>(experts);
}

std::string title(const RunRecord& run) {
  const auto recorded = last_header(run).title;
  if (!recorded.empty()) return recorded;
  return run.path.substr(run.path.rfind('/') + 1);  // npos + 1 is 0
}

std::string fact(const std::string& name, const std::string& value) {
  return concat("<dt>", escape(name), "</dt><dd>", escape(or_unknown(value)), "</dd>\n");
}

// Lines break between words if possible, and not at hyphens.
std::string command(const std::vector<std::string>& words) {
  if (words.empty()) return kUnknown;
  std::string html;
  for (const auto& word : words) {
    if (!html.empty()) html += ' ';
    html += concat("<span>", escape(shell_word(word)), "</span>");
  }
  return concat("<code>", html, "</code>");
}

// Facts about the run. Those of the last part are visible; those of earlier parts need a click.
std::string facts(const RunHeader& header) {
  return concat("<dl class=\"facts\">\n", fact("started", header.date),
                fact("moegrad version", header.version), fact("CPU", header.cpu),
                "<dt>command</dt><dd>", command(header.command), "</dd>\n</dl>\n");
}

std::string facts_of_parts(const RunRecord& run) {
  auto html = facts(last_header(run));
  if (run.parts.size() < 2) return html;
  html +=
      concat("<details><summary>Earlier parts of the run: ", std::to_string(run.parts.size() - 1),
             "</summary>\n");
  for (std::size_t i = 0; i + 1 < run.parts.size(); ++i) {
    html += paragraph(concat("From step ", std::to_string(run.parts[i].first_step), ":")) +
            facts(run.parts[i].header);
  }
  return html + "</details>\n";
}

std::string tiles(const RunRecord& run) {
  std::string html = "<dl class=\"tiles\">\n";
  html += tile("steps", count(static_cast<double>(run.steps)));
  html += tile("tokens", count(run.tokens));
  html += tile("last training loss, " + loss_unit(run), fixed(run.ce.last(), 4));
  html += tile("last validation loss, " + loss_unit(run), fixed(run.validation.last(), 4));
  html += tile("tokens per second, median of steps", count(median(run.throughputs)));
  html += tile("tokens per second, over all", count(run.tokens / run.total_seconds));
  html += tile("clipped steps", clipped_share(run));
  html += tile("skipped steps", count(run.skipped_steps));
  html += tile("time in steps", format_seconds(run.total_seconds));
  html += tile("spent loading data", percent(run.total_data_seconds, run.total_seconds));
  if (run.loads) {
    html += tile("dead experts",
                 count(dead_experts(*run.loads)) + " of " + count(all_experts(*run.loads)));
  }
  if (run.memory) html += tile("peak memory of a rank", format_bytes(run.memory->total));
  return html + "</dl>\n";
}

// The parts that a run consists of, and what is missing.
std::string remarks(const RunRecord& run) {
  std::string html;
  if (run.starts.size() > 1) {
    std::string text = "Resumed at step";
    for (std::size_t i = 1; i < run.starts.size(); ++i) {
      text += (i == 1 ? " " : ", ") + std::to_string(run.starts[i]);
    }
    html += paragraph(text + ".");
  }
  const auto planned = last_header(run).steps;
  if (planned && run.last_step + 1 < *planned) {
    html += paragraph(concat("The run ends after step ", std::to_string(run.last_step), ": ",
                             std::to_string(run.last_step + 1), " of ", std::to_string(*planned),
                             " steps are done."));
  }
  if (run.bytes_left_out > 0) {
    html +=
        paragraph("The last line of the file is cut short: " + std::to_string(run.bytes_left_out) +
                  " bytes are left out.");
  }
  return html;
}

// A sentence about values that are not numbers: in a bin of many steps they leave no gap.
std::string missing(const Curve& curve, const std::string& what) {
  if (curve.missing() == 0) return {};
  return paragraph(concat("Values of the ", what,
                          " that are not finite: ", std::to_string(curve.missing()), "."));
}

std::string losses(const RunRecord& run, const AxisRange& steps) {
  std::vector<ChartLine> lines = {{"training", &run.ce}};
  if (!run.validation.bins().empty()) lines.push_back({"validation", &run.validation});
  return wide(curve_chart(lines, steps, {.width = kWide, .height = 320, .unit = loss_unit(run)})) +
         missing(run.ce, "training loss") + missing(run.validation, "validation loss");
}

// "Dead experts, without a token in the last 100 steps: 3 of 128 in layer 0, 1 of 128 in layer 7."
std::string dead_sentence(const ExpertLoads& loads) {
  std::string layers;
  for (std::int64_t layer = 0; layer < loads.layers(); ++layer) {
    if (loads.dead(layer) == 0) continue;
    layers += concat(layers.empty() ? "" : ", ", std::to_string(loads.dead(layer)), " of ",
                     std::to_string(loads.experts(layer)), " in layer ", std::to_string(layer));
  }
  const auto steps = loads.dead_steps();
  return paragraph(concat("Dead experts, without a token in the last ",
                          steps == 1 ? "step" : std::to_string(steps) + " steps", ": ",
                          layers.empty() ? "none" : layers, "."));
}

std::string experts(const RunRecord& run) {
  if (!run.loads) return paragraph("The file has no tokens per expert.");
  std::string html =
      paragraph(
          "Tokens of each expert over the mean of its layer, as a logarithm: white is an "
          "even load, the darkest colour none at all. Grey: no step. ") +
      dead_sentence(*run.loads) + "<div class=\"legend\">" + heat_map_legend() +
      "</div>\n<div class=\"grid2\">\n";
  for (std::int64_t layer = 0; layer < run.loads->layers(); ++layer) {
    html += heat_map(*run.loads, layer);
  }
  return html + "</div>\n";
}

std::string memory(const RunRecord& run) {
  if (!run.memory) return paragraph("The file has no memory use.");
  std::vector<Bar> bars;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    const auto bytes = run.memory->tags[tag];
    bars.push_back({.label = std::string(to_string(static_cast<MemoryTag>(tag))),
                    .parts = {bytes},
                    .note = format_bytes(bytes)});
  }
  bars.push_back({.label = "all at one moment",
                  .parts = {run.memory->total},
                  .note = format_bytes(run.memory->total)});
  std::string text =
      paragraph("Highest use of any rank. The tags have theirs at different moments.");
  if (const auto& swap = run.swap) {
    text += paragraph(concat("Swapped in a step, on average, the most of any rank: ",
                             format_bytes(swap->bytes_sent / swap->steps), " out, ",
                             format_bytes(swap->bytes_received / swap->steps), " back, waited for ",
                             percent(swap->wait_seconds, swap->seconds), " of the time."));
  }
  return text + wide(bar_chart(bars));
}

std::string communication(const RunRecord& run) {
  if (!run.communication) {
    return paragraph("Not profiled: train with --profile-steps a:b for these figures.");
  }
  const auto& record = *run.communication;
  const auto milliseconds = [](double seconds) { return fixed(1e3 * seconds, 3) + " ms"; };
  const auto bar = [&](const std::string& name, const CommunicationRecord::Lane& lane) {
    const double hidden = lane.seconds - lane.exposed_seconds;
    return Bar{.label = name,
               .parts = {hidden, lane.exposed_seconds},
               .note = concat(milliseconds(lane.seconds), ", ", percent(hidden, lane.seconds),
                              " hidden, ", format_bytes(lane.bytes), " received")};
  };
  return paragraph("Mean per rank and step over " + fixed(record.steps, 0) +
                   " profiled steps, beside " + milliseconds(record.compute_seconds) +
                   " of compute. Time under compute of the same rank is hidden.") +
         "<p><span class=\"key bar0\"></span> hidden <span class=\"key bar1\"></span> "
         "exposed</p>\n" +
         wide(bar_chart({bar("gather", record.gather), bar("reduce", record.reduce),
                         bar("other", record.other)}));
}

std::string axes(const RunRecord& run) {
  std::vector<Bar> bars;
  for (const auto& [name, axis] : run.axes) {
    bars.push_back({.label = name,
                    .parts = {axis.wait_seconds / axis.seconds},
                    .note = concat(percent(axis.wait_seconds, axis.seconds), ", ",
                                   format_bytes(axis.bytes_sent / axis.steps), " sent, ",
                                   format_bytes(axis.bytes_received / axis.steps), " received")});
  }
  return paragraph(
             "Mean over the steps of the most of any rank: the share of the step's time that its "
             "threads waited for collectives and messages along the axis, and their bytes.") +
         wide(bar_chart(bars));
}

std::string configuration(const RunRecord& run) {
  if (run.configuration.empty()) return paragraph("The file has no configuration.");
  return concat("<pre>", escape(run.configuration), "</pre>\n");
}

std::string small_chart(const std::string& id, const std::string& title, const Curve& curve,
                        const AxisRange& steps, const ChartOptions& options,
                        const std::string& remark = {}) {
  return section(id, title,
                 curve_chart({{title, &curve}}, steps, options) + remark + missing(curve, title));
}

std::optional<ReferenceLine> clipping_line(const RunRecord& run) {
  const auto limit = last_header(run).max_grad_norm;
  if (!limit || !(*limit > 0)) return std::nullopt;
  return ReferenceLine{.value = *limit, .name = "clipped above " + short_number(*limit)};
}

std::optional<ReferenceLine> median_line(const RunRecord& run) {
  const double value = median(run.throughputs);
  if (!std::isfinite(value)) return std::nullopt;
  return ReferenceLine{.value = value, .name = "median " + short_number(value)};
}

}  // namespace

std::string report_page(const RunRecord& run) {
  // The last validation loss is after the last step.
  const AxisRange steps = {static_cast<double>(run.first_step) - 0.5,
                           static_cast<double>(run.last_step) + 1.5};
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>" +
      escape(title(run)) + ": training report</title>\n<style>" + std::string(kChartStyle) +
      std::string(kReportStyle) + "</style>\n</head>\n<body>\n<h1><bdi>" + escape(title(run)) +
      "</bdi>: training report</h1>\n";
  html += concat("<p class=\"path\">", escape(run.path), "</p>\n", facts_of_parts(run), tiles(run),
                 remarks(run));
  html += section("loss", "Loss", losses(run, steps));
  html += "<div class=\"grid2\">\n";
  html +=
      small_chart("grad-norm", "Gradient norm", run.grad_norm, steps,
                  {.unit = "before clipping", .from_zero = true, .reference = clipping_line(run)},
                  clipping(run));
  html += small_chart("lr", "Learning rate", run.lr, steps, {.from_zero = true});
  html +=
      small_chart("throughput", "Throughput", run.tokens_per_second, steps,
                  {.unit = "tokens per second", .from_zero = true, .reference = median_line(run)});
  html += small_chart("data-loading", "Data loading", run.data_percent, steps,
                      {.unit = "% of the step's time", .from_zero = true});
  html += small_chart("mfu", "Model FLOPs utilisation", run.mfu_percent, steps,
                      {.unit = "% of the peak measured at the start", .from_zero = true});
  html += small_chart("router-entropy", "Router entropy", run.router_entropy, steps,
                      {.unit = "nats, mean over tokens and layers", .from_zero = true});
  if (!run.exchange_percent.bins().empty()) {  // under expert parallelism
    html += small_chart("exchange", "Waiting for tokens of other ranks", run.exchange_percent,
                        steps, {.unit = "% of the step's time", .from_zero = true});
    html += small_chart("rank-load", "Load of the busiest part of the experts", run.rank_load,
                        steps, {.unit = "tokens, in means of the parts", .from_zero = true});
  }
  html += "</div>\n";
  html += section("experts", "Expert load", experts(run));
  html += section("memory", "Memory by tag", memory(run));
  if (!run.axes.empty()) {  // with several ranks
    html += section("axes", "Bytes and waiting by axis", axes(run));
  }
  html += section("communication", "Communication", communication(run));
  html += section("configuration", "Configuration", configuration(run));
  return html + "</body>\n</html>\n";
}

}  // namespace moegrad::tools
