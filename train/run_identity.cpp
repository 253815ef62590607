// SPDX-License-Identifier: Apache-2.0
#include "train/run_identity.h"

#include "models/qwen3_moe/config_json.h"
#include "train/config/train_options.h"

namespace moegrad::training {

std::map<std::string, std::string> describe_run(const TrainConfig& config,
                                                const TrainingData& data) {
  auto run = compared_options(config);
  run["config"] = to_json(config.model_config());
  run["data"] = data.source().describe();
  run["batches"] = data.describe();
  return run;
}

}  // namespace moegrad::training
