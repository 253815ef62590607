// SPDX-License-Identifier: Apache-2.0
#include "train/run_identity.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/runtime/byte_stream.h"
#include "framework/runtime/parse_number.h"
#include "models/causal_lm/config_json.h"
#include "models/hf_checkpoint.h"
#include "train/config/train_options.h"

namespace moegrad::training {
namespace {

// The line of `text` that has the character at `position`, such as a member of a JSON object.
std::string_view line_at(std::string_view text, std::size_t position) {
  const auto before = position == 0 ? text.npos : text.rfind('\n', position - 1);
  const auto begin = text.find_first_not_of(' ', before == text.npos ? 0 : before + 1);
  if (begin == text.npos) return {};
  const auto line = text.substr(begin, text.find('\n', begin) - begin);
  return line.ends_with(',') ? line.substr(0, line.size() - 1) : line;
}

std::map<std::string, std::string> describe_inputs(const TrainConfig& config,
                                                   const TrainingData& data) {
  auto inputs = compared_options(config);
  inputs["config"] = to_json(config.model_config());
  inputs["data"] = data.source().describe();
  inputs["batches"] = data.describe();
  return inputs;
}

}  // namespace

std::map<std::string, std::string> describe_run(const TrainConfig& config,
                                                const TrainingData& data) {
  auto run = describe_inputs(config, data);
  const auto& weights = config.model.hf_model;
  run[kInitialWeights] = weights.empty() ? kRandomWeights
                                         : "those with CRC-32C " +
                                               std::to_string(models::checkpoint_checksum(weights));
  return run;
}

bool same_first_steps(const TrainConfig::Optim& config, const std::string& steps,
                      std::int64_t step) {
  if (config.schedule == ScheduleKind::kCosine || step > config.steps) return false;
  auto other = config;
  other.warmup = warmup_steps(config);  // it is compared by itself
  other.steps = parse_number<std::int64_t>("steps", steps, {step, kManySteps});
  const auto lr = schedule_of(config), other_lr = schedule_of(other);
  for (std::int64_t i = 0; i < step; ++i) {
    if (lr(i) != other_lr(i)) return false;
  }
  return true;
}

std::map<std::string, std::string> record_run(const TrainConfig& config, const TrainingData& data) {
  auto run = describe_inputs(config, data);
  run.merge(record_options(config));  // contents come before the paths they are read from
  return run;
}

void check_same_run(const std::shared_ptr<ProcessGroup>& group,
                    const std::map<std::string, std::string>& record) {
  ByteWriter writer;
  for (const auto& [name, value] : record) {
    writer(name, value);
  }
  const auto bytes = writer.take();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto texts = all_gather_texts(group, text, {.label = "configuration"});
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    ByteReader first(std::as_bytes(std::span(texts[0])));
    ByteReader other(std::as_bytes(std::span(texts[rank])));
    while (true) {
      std::string name, value_of_0, value;
      first(name, value_of_0);
      other(name, value);  // the names are the program's, which all ranks share
      if (value == value_of_0) continue;
      // Some values have many lines.
      const auto [differs, end] = std::ranges::mismatch(value_of_0, value);
      const auto position = static_cast<std::size_t>(differs - value_of_0.begin());
      throw ValueError("training: all ranks must have the same " + name + ", rank 0 has " +
                       std::string(line_at(value_of_0, position)) + ", rank " +
                       std::to_string(rank) + " has " + std::string(line_at(value, position)));
    }
  }
}

}  // namespace moegrad::training
