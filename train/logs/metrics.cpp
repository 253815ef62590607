// SPDX-License-Identifier: Apache-2.0
#include "train/logs/metrics.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "framework/runtime/log.h"
#include "train/logs/run_header_json.h"

namespace moegrad::training {

namespace {

// What a resumed run finds in its file.
struct EarlierLines {
  bool others = false;            // not metrics, or metrics of another run
  std::int64_t bytes = 0;         // of the lines up to the resumed run's first step
  bool lacks_line_feed = false;   // the last of these lines lacks its line feed
  bool would_lose_lines = false;  // after them are lines that the resumed run does not write again
  bool validated = false;         // the last of them is the validation loss at its first step
  std::vector<std::int64_t> steps = {};         // whose lines these are
  std::optional<std::int64_t> no_step_on = {};  // the number of the first of them without a step
};

std::optional<std::int64_t> step_of(const nlohmann::json& line) {
  const auto step = line.is_object() ? line.find("step") : line.end();
  if (step == line.end() || !step->is_number_unsigned()) return std::nullopt;
  return step->get<std::int64_t>();
}

// RunHeader::identity of the run that wrote the line, if the line contains it.
std::string identity_in(const nlohmann::json& line) {
  const auto run = line.is_object() ? line.find("run") : line.end();
  if (run == line.end() || !run->is_object()) return {};
  const auto identity = run->find("identity");
  return identity != run->end() && identity->is_string() ? identity->get<std::string>() : "";
}

// Whether a run from `first_step` on logs the validation loss after `step` steps.
bool writes_validation(const RunHeader& header, std::int64_t first_step, std::int64_t step) {
  if (step == first_step || !header.steps || step == *header.steps) return true;
  return step < *header.steps && header.validation_interval > 0 &&
         step % header.validation_interval == 0;
}

// A last line that a killed process has not finished does not count. A pipe or a terminal is not
// read: it keeps nothing, and reading it would wait for ever.
EarlierLines find_earlier_lines(const std::string& path, std::int64_t first_step,
                                const RunHeader& header) {
  const auto& identity = header.identity;
  EarlierLines found;
  if (!std::filesystem::is_regular_file(path)) return found;
  std::ifstream file(path, std::ios::binary);
  found.others = !file.is_open();
  bool own = false, first = true, behind = false;
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line); first = false) {
    ++number;
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = step_of(parsed);
    const auto writer = identity_in(parsed);
    found.others = (first && !step) || (!writer.empty() && writer != identity);
    if (found.others) return {.others = true};
    own = own || (!writer.empty() && writer == identity);
    const bool ended = !file.eof();
    if (!ended && !step) break;
    const bool validation = step && parsed.contains("validation_loss");
    // The validation loss at the first step would be the same. The one at the end is written there.
    const bool stays = validation && *step == first_step && !behind && !found.validated &&
                       (!header.steps || first_step < *header.steps);
    behind = behind || (step && *step >= first_step && !stays);
    found.validated = found.validated || stays;
    if (behind) {
      const bool again = own && step && *step >= first_step &&
                         (validation ? writes_validation(header, first_step, *step)
                                     : !header.steps || *step < *header.steps);
      found.would_lose_lines = found.would_lose_lines || !again;
    } else {
      found.bytes += std::ssize(line) + (ended ? 1 : 0);
      found.lacks_line_feed = !ended;
      if (!step && !found.no_step_on) found.no_step_on = number;
      if (step && !validation) found.steps.push_back(*step);
    }
  }
  check<ValueError>(!file.bad(), "--metrics: cannot read file '", path, "' to its end");
  return found;
}

// A resumed run adds its lines to what it finds. The programs that read the file show a hole as if
// nothing had happened there, and refuse a line without a step.
void warn_of_holes(const std::string& path, std::int64_t first_step, EarlierLines earlier) {
  auto& steps = earlier.steps;
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  const auto missing = first_step - std::ssize(steps);
  if (missing > 0) {
    std::int64_t least = 0;
    while (least < std::ssize(steps) && steps[static_cast<std::size_t>(least)] == least) ++least;
    log(LogLevel::kWarning, "--metrics: " + path + " lacks " + std::to_string(missing) +
                                " of the " + std::to_string(first_step) + " steps before step " +
                                std::to_string(first_step) + ", the first of them step " +
                                std::to_string(least));
  }
  if (earlier.no_step_on) {
    log(LogLevel::kWarning, "--metrics: line " + std::to_string(*earlier.no_step_on) + " of " +
                                path + " has no step; programs that read the file refuse it");
  }
}

nlohmann::json memory_of(const StepReport& report) {
  nlohmann::json memory = {{"total", report.peak_total}};
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    memory[std::string(to_string(static_cast<MemoryTag>(tag)))] = report.peak_bytes[tag];
  }
  return memory;
}

nlohmann::json communication_of(const ProfileFigures& profile) {
  const auto& figures = profile.timeline;
  const auto lane = [](double seconds, double exposed, double bytes) {
    return nlohmann::json{{"seconds", seconds}, {"exposed_seconds", exposed}, {"bytes", bytes}};
  };
  return {{"steps", profile.steps},
          {"compute_seconds", figures.compute},
          {"gather", lane(figures.gather, figures.exposed_gather, figures.gathered_bytes)},
          {"reduce", lane(figures.reduce, figures.exposed_reduce, figures.reduced_bytes)},
          {"other", lane(figures.other, figures.exposed_other, figures.other_bytes)}};
}

nlohmann::json exchange_of(const StepReport& report, const ExchangeFigures& exchange) {
  return {{"rows_sent", exchange.rows_sent},
          {"rows_received", exchange.rows_received},
          {"bytes_sent", exchange.bytes_sent},
          {"bytes_received", exchange.bytes_received},
          {"wait_seconds", exchange.wait_seconds},
          {"rank_load", rank_load(report.result, report.expert_parallel)}};
}

nlohmann::json axes_of(const StepReport& report) {
  nlohmann::json axes;
  for (const auto& each : report.axes) {
    axes[each.axis] = {{"bytes_sent", each.bytes_sent},
                       {"bytes_received", each.bytes_received},
                       {"wait_seconds", each.wait_seconds}};
  }
  return axes;
}

// A line of the file; the first one that is written has the header as well.
std::string text_of(nlohmann::json line, std::optional<RunHeader>& header) {
  if (header) line["run"] = to_json(*std::exchange(header, std::nullopt));
  // A file name in the configuration or the command may not be UTF-8.
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::vector<double> expert_load(const StepResult& result) {
  std::vector<double> load;
  for (const auto& counts : result.tokens_per_expert) {
    const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const double mean = static_cast<double>(total) / static_cast<double>(counts.size());
    load.push_back(total == 0 ? 0.0
                              : static_cast<double>(*std::ranges::max_element(counts)) / mean);
  }
  return load;
}

std::optional<double> worst_load(const StepResult& result) {
  const auto loads = expert_load(result);
  if (loads.empty()) return std::nullopt;
  return *std::ranges::max_element(loads);
}

std::optional<double> StepReport::mfu() const {
  if (!peak_flops) return std::nullopt;
  return result.model_flops / (seconds * *peak_flops);
}

std::vector<std::string> figures(const StepReport& report) {
  const auto format = [](const auto&... parts) {
    std::ostringstream text;
    text << std::fixed;
    (text << ... << parts);
    return text.str();
  };
  const auto digits = [](int count) { return std::setprecision(count); };
  std::vector<std::string> figures = {format("loss ", digits(4), report.result.loss),
                                      format("grad norm ", digits(3), report.result.grad_norm),
                                      format("lr ", std::scientific, digits(2), report.lr),
                                      format(digits(0), report.tokens_per_second(), " tokens/s"),
                                      format("TGS ", digits(0), report.tgs())};
  const auto loads = expert_load(report.result);
  if (loads.empty()) return figures;
  std::string load = "load";
  for (const auto value : loads) load += format(' ', digits(2), value);
  figures.push_back(load);
  return figures;
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step,
                         std::optional<RunHeader> header)
    : header_(std::move(header)) {
  if (path.empty()) return;
  file_.emplace(path, "--metrics");
  if (first_step == 0) {
    file_->set_aside();
  } else {
    auto earlier = find_earlier_lines(path, first_step, header_.value_or(RunHeader{}));
    had_validation_ = earlier.validated;
    if (earlier.others || earlier.would_lose_lines) {
      file_->set_aside(earlier.others ? 0 : earlier.bytes);
    } else {
      file_->cut(earlier.bytes);
    }
    if (earlier.lacks_line_feed) file_->end_line();
    if (std::filesystem::is_regular_file(path)) warn_of_holes(path, first_step, std::move(earlier));
  }
}

void MetricsFile::write(const StepReport& report) {
  if (!file_) return;
  nlohmann::json line = {{"step", report.step},
                         {"loss", report.result.loss},
                         {"ce", report.result.ce},
                         {"grad_norm", report.result.grad_norm},
                         {"lr", report.lr},
                         {"seconds", report.seconds},
                         {"data_seconds", report.data_seconds},
                         {"tokens", report.tokens},
                         {"tokens_per_second", report.tokens_per_second()},
                         {"tgs", report.tgs()},
                         {"model_flops", report.result.model_flops},
                         {"skipped_steps", report.skipped_steps},
                         {"expert_load", expert_load(report.result)},
                         {"tokens_per_expert", report.result.tokens_per_expert},
                         {"peak_bytes", memory_of(report)}};
  if (report.peak_flops) line["peak_flops"] = *report.peak_flops;
  if (const auto mfu = report.mfu()) line["mfu"] = *mfu;
  if (const auto worst = worst_load(report.result)) {
    line["worst_load"] = *worst;
    line["router_entropy"] = report.result.router_entropy;
  }
  if (report.exchange) line["exchange"] = exchange_of(report, *report.exchange);
  if (!report.axes.empty()) line["axes"] = axes_of(report);
  if (const auto& swap = report.swap) {
    line["swap"] = {{"bytes_out", swap->bytes_out},
                    {"bytes_in", swap->bytes_in},
                    {"wait_seconds", swap->wait_seconds}};
  }
  if (report.profile) line["communication"] = communication_of(*report.profile);
  if (!report.configuration.empty()) line["configuration"] = report.configuration;
  file_->write(text_of(std::move(line), header_));
}

void MetricsFile::write_validation(std::int64_t step, double loss) {
  if (file_) file_->write(text_of({{"step", step}, {"validation_loss", loss}}, header_));
}

}  // namespace moegrad::training
