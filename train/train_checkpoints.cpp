// SPDX-License-Identifier: Apache-2.0
#include "train/train_checkpoints.h"

#include <set>
#include <sstream>
#include <utility>

#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/utf8.h"

namespace moegrad::training {
namespace {

// The first lines that are not the same, without indentation.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  while (line_a == line_b && (lines_a || lines_b)) {
    std::getline(lines_a >> std::ws, line_a);
    std::getline(lines_b >> std::ws, line_b);
  }
  for (auto* line : {&line_a, &line_b}) {
    if (line->ends_with(',')) line->pop_back();  // of a JSON text
  }
  return {line_a, line_b};
}

void check_same_run(const TrainCheckpointOptions& options,
                    const std::map<std::string, std::string>& others,
                    const CheckpointReader& reader) {
  auto run = options.run, saved = reader.manifest().values;
  for (const auto& value : options.formerly) run.insert(value), saved.insert(value);
  const auto step = reader.manifest().step;
  const auto folder = reader.folder().string();
  const auto compare = [&](const std::string& name, const std::string& value) {
    const auto found = saved.find(name);
    check<ValueError>(found != saved.end(), "resume: ", folder, " must record ", name,
                      ", got a checkpoint of an earlier version, which did not");
    const bool same = found->second == value ||
                      (options.same_so_far && options.same_so_far(name, found->second, step));
    const auto [wanted, got] = first_difference(found->second, value);
    check<ValueError>(same, "resume: ", name, " must be ", wanted, " as in ", folder, ", got ",
                      got);
  };
  for (const auto& [name, value] : options.formerly) compare(name, run.at(name));
  // Single values first: where one of them differs, so may a longer text that depends on it.
  for (const bool single : {true, false}) {
    for (const auto& [name, value] : run) {
      if ((value.find('\n') == value.npos) == single) compare(name, value);
    }
  }
  for (const auto& [name, value] : saved) {
    const bool known = run.contains(name) || others.contains(name) || name == kSkippedSteps;
    check<ValueError>(known, "resume: ", folder, " must record what this version knows, got ",
                      in_quotes(name));
  }
}

// 0 for a checkpoint of an earlier version, which does not record the number.
std::int64_t skipped_steps_of(const CheckpointReader& reader) {
  const auto& saved = reader.manifest().values;
  const auto found = saved.find(kSkippedSteps);
  if (found == saved.end()) return 0;
  const auto name = "resume: " + reader.folder().string() + ": " + kSkippedSteps;
  return parse_number<std::int64_t>(name, found->second, {0, reader.manifest().step});
}

}  // namespace

TrainCheckpoints::TrainCheckpoints(const std::string& folder, TrainState& state,
                                   TrainCheckpointOptions options)
    : folder_(folder),
      state_(state),
      options_(std::move(options)),
      context_(RankContext::current()) {
  check<ValueError>(options_.interval >= 0, "checkpoints: interval must be at least 0, got ",
                    options_.interval);
  if (folder.empty()) return;
  if (context_.rank() == 0) {
    lock_.emplace(folder);
    remove_leftovers(folder);
  }
  saver_.emplace(
      folder, context_.group(),
      CheckpointOptions{
          .keep = options_.keep, .lock = lock_ ? &*lock_ : nullptr, .observe = options_.observe});
}

NamedTensors TrainCheckpoints::tensors() const {
  NamedTensors all = state_.model.state_dict();
  for (const auto& [name, tensor] : state_.optimizer.state_dict()) {
    all.push_back({std::string(kOptimizerPrefix) + name, tensor});
  }
  return all;
}

std::optional<ResumedFrom> TrainCheckpoints::resume() {
  if (!saver_) return std::nullopt;
  resume_called_ = true;
  saver_->reserve({.tensors = tensors()});
  if (!options_.resume) {
    const auto found = list_checkpoints(folder_);
    check<ValueError>(found.empty(), "checkpoints: '", folder_,
                      "' must have no checkpoints where a run does not resume, got ",
                      found.empty() ? "" : found[0].path.filename().string());
    return std::nullopt;
  }
  const auto skipped = [&](const std::string& reason) {
    if (context_.rank() == 0) log(LogLevel::kWarning, "passed over: " + reason);
  };
  auto reader = open_newest_checkpoint(folder_, context_.group(), skipped);
  if (!reader) return std::nullopt;
  const auto step = reader->manifest().step;
  check_same_run(options_, options_.values ? options_.values(step) : decltype(options_.run)(),
                 *reader);
  reader->read_all(tensors());
  saved_ = state_.step = step;
  state_.skipped_steps = skipped_steps_of(*reader);
  return ResumedFrom{reader->folder(), reader->manifest().world_size};
}

void TrainCheckpoints::after_step() {
  if (options_.interval > 0 && state_.step % options_.interval == 0) save();
}

void TrainCheckpoints::save() {
  if (!saver_ || state_.step == saved_) return;
  check(resume_called_,
        "checkpoints: resume() must be called before the first save, also by a run "
        "that is new: the folder may have another run's checkpoints");
  finish();
  auto values = options_.run;
  if (options_.values) values.merge(options_.values(state_.step));
  values[kSkippedSteps] = std::to_string(state_.skipped_steps);
  saver_->save(state_.step, {.tensors = tensors(), .values = std::move(values)});
  saved_ = state_.step;
}

bool TrainCheckpoints::finish() {
  if (!saver_) return true;
  try {
    saver_->wait();
  } catch (const CollectiveError&) {
    throw;  // a rank is gone
  } catch (const Error& error) {
    // The run is worth more than one of its checkpoints; the earlier ones are still there.
    if (context_.rank() == 0) log(LogLevel::kError, error.what());
    failed_ = true;
  }
  return !failed_;
}

}  // namespace moegrad::training
