// SPDX-License-Identifier: Apache-2.0
#include "train/logs/step_profile.h"

#include <iostream>
#include <limits>

#include "framework/distributed/process_group.h"
#include "framework/distributed/slow_storage.h"
#include "framework/profile/trace.h"
#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

constexpr int kLevel = 1;  // phases, modules, collectives

}  // namespace

StepProfile::StepProfile(const TrainConfig& options)
    : steps_(options.output.profile_steps),
      path_(options.output.profile.empty() ? kDefaultTrace : options.output.profile),
      ranks_(static_cast<std::size_t>(options.parallel.world_size)) {}

void StepProfile::open(std::int64_t first_step) {
  if (!steps_) return;
  if (first_step >= steps_->end) {
    std::cout << "no trace: steps " << steps_->begin << " to " << steps_->end - 1
              << " lie before step " << first_step << std::endl;
    return;
  }
  try {
    file_.emplace(path_);
  } catch (const ValueError& error) {
    throw ValueError(std::string("--profile: ") + error.what());
  }
  std::cout << "trace of steps " << steps_->begin << " to " << steps_->end - 1 << " in " << path_
            << ", for https://ui.perfetto.dev" << std::endl;
}

void StepProfile::begin_step(std::int64_t step, RankContext& context) {
  if (!steps_ || !steps_->contains(step)) return;
  ranks_[static_cast<std::size_t>(context.rank())].step_begins.push_back(SpanClock::now());
  context.spans().start(kLevel, std::numeric_limits<std::size_t>::max());
}

std::optional<ProfileFigures> StepProfile::end_step(std::int64_t step, RankContext& context) {
  if (!steps_ || !steps_->contains(step)) return std::nullopt;
  context.spans().stop();
  auto& own = ranks_[static_cast<std::size_t>(context.rank())];
  const auto spans = context.spans().spans();
  own.spans.insert(own.spans.end(), spans.begin(), spans.end());
  if (step + 1 < steps_->end) return std::nullopt;
  own.step_begins.push_back(SpanClock::now());
  context.group()->barrier({.label = "spans of all ranks"})->wait();
  if (context.rank() != 0) return std::nullopt;
  return write();
}

ProfileFigures StepProfile::write() {
  const SlowStorage storage("writing the trace");
  std::vector<std::vector<Span>> spans;
  for (const auto& rank : ranks_) spans.push_back(rank.spans);
  write_trace(*file_, spans);
  try {
    file_->finish();
  } catch (const ValueError& error) {
    lost_.record(error.what());  // the run goes on without its trace
  }
  file_.reset();
  return {.steps = std::ssize(ranks_[0].step_begins) - 1, .timeline = timeline_figures(ranks_)};
}

}  // namespace moegrad::training
