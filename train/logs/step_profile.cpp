// SPDX-License-Identifier: Apache-2.0
#include "train/logs/step_profile.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <utility>

#include "framework/distributed/gather_timelines.h"
#include "framework/distributed/slow_storage.h"
#include "framework/profile/trace.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"

namespace moegrad::training {
namespace {

constexpr int kLevel = 1;  // phases, modules, collectives

}  // namespace

StepProfile::StepProfile(std::optional<StepRange> steps, const std::string& path)
    : steps_(steps), path_(path.empty() ? kDefaultTrace : path) {}

void StepProfile::open(std::int64_t first_step) {
  if (!steps_) return;
  if (first_step >= steps_->end) {
    log(LogLevel::kWarning, "--profile-steps: no trace is written, since steps " +
                                std::to_string(steps_->begin) + " to " +
                                std::to_string(steps_->end - 1) + " lie before step " +
                                std::to_string(first_step) + ", where the run begins");
    return;
  }
  try {
    file_.emplace(path_);
  } catch (const ValueError& error) {
    throw ValueError(std::string("--profile: ") + error.what());
  }
  std::cout << "trace of steps " << std::max(steps_->begin, first_step) << " to " << steps_->end - 1
            << " in " << path_ << ", for https://ui.perfetto.dev" << std::endl;
}

void StepProfile::begin_step(std::int64_t step, RankContext& context) {
  if (!steps_ || !steps_->contains(step)) return;
  own_.step_begins.push_back(SpanClock::now());
  context.spans().start(kLevel, std::numeric_limits<std::size_t>::max());
}

std::optional<ProfileFigures> StepProfile::end_step(std::int64_t step, RankContext& context) {
  if (!steps_ || !steps_->contains(step)) return std::nullopt;
  context.spans().stop();
  const auto spans = context.spans().spans();
  own_.spans.insert(own_.spans.end(), spans.begin(), spans.end());
  if (step + 1 < steps_->end) return std::nullopt;
  own_.step_begins.push_back(SpanClock::now());
  const auto ranks = gather_timelines(*context.group(), std::exchange(own_, {}));
  if (context.rank() != 0) return std::nullopt;
  return write(ranks);
}

ProfileFigures StepProfile::write(const std::vector<RankTimeline>& ranks) {
  const SlowStorage storage("writing the trace");
  std::vector<std::vector<Span>> spans;
  for (const auto& rank : ranks) spans.push_back(rank.spans);
  write_trace(*file_, spans);
  try {
    file_->finish();
  } catch (const ValueError& error) {
    lost_.record(error.what());  // the run goes on without its trace
  }
  file_.reset();
  return {.steps = std::ssize(ranks[0].step_begins) - 1, .timeline = timeline_figures(ranks)};
}

}  // namespace moegrad::training
