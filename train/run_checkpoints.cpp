// SPDX-License-Identifier: Apache-2.0
#include "train/run_checkpoints.h"

#include <iostream>
#include <sstream>
#include <utility>

#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "models/qwen3_moe/config_json.h"
#include "train/config/option_record.h"

namespace moegrad::training {
namespace {

// Beside what describe_run() says; read by checkpoint_tool.
constexpr const char* kTokens = "tokens";

// The first lines that are not the same, without indentation.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  while (line_a == line_b && (lines_a || lines_b)) {
    std::getline(lines_a >> std::ws, line_a);
    std::getline(lines_b >> std::ws, line_b);
  }
  return {line_a, line_b};
}

void check_same_run(const std::map<std::string, std::string>& run, const CheckpointReader& reader) {
  const auto& saved = reader.manifest().values;
  const auto folder = reader.folder().string();
  for (const auto& [name, value] : run) {
    const auto found = saved.find(name);
    check<ValueError>(found != saved.end(), "--resume: ", folder, " must record ", name,
                      ", got a checkpoint of an earlier version, which did not");
    const auto [wanted, got] = first_difference(found->second, value);
    check<ValueError>(found->second == value, "--resume: ", name, " must be ", wanted, " as in ",
                      folder, ", got ", got);
  }
  for (const auto& [name, value] : saved) {
    check<ValueError>(run.contains(name) || name == kTokens, "--resume: ", folder,
                      " must record what this version knows, got ", in_quotes(name));
  }
}

}  // namespace

std::map<std::string, std::string> describe_run(const TrainOptions& options,
                                                const TrainingData& data) {
  auto run = compared_options(options);
  auto config = options.model_config();
  config.gathered_layout = Layout::kND;  // another one gives the same bits
  run["config"] = to_json(config);
  run["data"] = data.source().describe();
  run["batches"] = data.describe();
  return run;
}

RunCheckpoints::RunCheckpoints(const TrainOptions& options, const TrainingData& data,
                               RankContext& context, models::Qwen3Moe& model,
                               const optim::Optimizer& optimizer, const FolderLock* lock,
                               std::function<void(CheckpointPoint)> observe)
    : options_(options),
      data_(data),
      run_(describe_run(options, data)),
      context_(context),
      model_(model),
      optimizer_(optimizer) {
  if (options.checkpoint_dir.empty()) return;
  saver_.emplace(options.checkpoint_dir, context.group(),
                 CheckpointOptions{
                     .keep = options.checkpoint_keep, .lock = lock, .observe = std::move(observe)});
}

NamedTensors RunCheckpoints::tensors() const {
  model_.restore_parameters();
  NamedTensors all = model_.named_parameters();
  for (const auto& [name, tensor] : optimizer_.state_dict()) {
    all.push_back({std::string(kOptimizerPrefix) + name, tensor});
  }
  return all;
}

std::int64_t RunCheckpoints::resume() {
  if (!saver_) return 0;
  saver_->reserve({.tensors = tensors()});
  const bool speaks = context_.rank() == 0;
  if (!options_.resume) {
    const auto found = list_checkpoints(options_.checkpoint_dir);
    check<ValueError>(found.empty(), "--checkpoint-dir: '", options_.checkpoint_dir,
                      "' must hold no checkpoints unless --resume is given, got ",
                      found.empty() ? "" : found[0].path.filename().string());
    return 0;
  }
  const auto skipped = [&](const std::string& reason) {
    if (speaks) log(LogLevel::kWarning, "passed over: " + reason);
  };
  auto reader = open_newest_checkpoint(options_.checkpoint_dir, context_.group(), skipped);
  if (!reader) {
    if (speaks) std::cout << "no checkpoint yet, from step 0" << std::endl;
    return 0;
  }
  check_same_run(run_, *reader);
  reader->read_all(tensors());
  saved_ = reader->manifest().step;
  if (speaks) {
    std::cout << "resumed from " << reader->folder().string() << ", saved by "
              << reader->manifest().world_size << " ranks" << std::endl;
  }
  return saved_;
}

void RunCheckpoints::after_step(std::int64_t steps, bool last) {
  const bool due = options_.checkpoint_interval > 0 && steps % options_.checkpoint_interval == 0;
  if (saver_ && (due || last) && steps != saved_) save(steps);
}

void RunCheckpoints::save(std::int64_t steps) {
  finish();
  auto values = run_;
  const auto tokens =
      options_.overfit ? steps * data_.tokens_before(1) : data_.tokens_before(steps);
  values[kTokens] = std::to_string(tokens);
  saver_->save(steps, {.tensors = tensors(), .values = std::move(values)});
  saved_ = steps;
}

bool RunCheckpoints::finish() {
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
