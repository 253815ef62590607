// SPDX-License-Identifier: Apache-2.0
#include "train/config/log_options.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "train/config/program_options.h"

namespace moegrad::training {
namespace {

std::optional<StepRange> parse_range(std::string_view text) {
  StepRange range;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.begin);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, range.end);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return range;
}

}  // namespace

void add_log_options(CLI::App& app, TrainOptions& options) {
  add_number(app, "--validation-interval", options.validation_interval, {0, kManySteps},
             "steps from one validation loss to the next; 0: at the end alone");
  add_path(app, "--tensorboard", options.tensorboard, PathKind::kOutputFolder,
           "folder for an event file of TensorBoard: scalars of each step, expert loads of "
           "those that --log-every prints");
  app.add_option("--profile-steps", options.profile_steps,
                 "a:b, steps from a up to b of which a trace is written");
  add_path(app, "--profile", options.profile, PathKind::kOutput,
           "file for that trace; default: trace.json");
}

std::optional<StepRange> profiled_steps(const TrainOptions& options) {
  if (options.profile_steps.empty()) {
    check<ValueError>(options.profile.empty(), "--profile: needs --profile-steps");
    return std::nullopt;
  }
  const auto range = parse_range(options.profile_steps);
  const bool sound =
      range && 0 <= range->begin && range->begin < range->end && range->end <= options.steps;
  check<ValueError>(sound, "--profile-steps: must be a:b with 0 <= a < b <= ", options.steps,
                    " (steps), got ", in_quotes(options.profile_steps));
  return range;
}

}  // namespace moegrad::training
