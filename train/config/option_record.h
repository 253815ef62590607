// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>

#include "train/config/train_options.h"

namespace moegrad::training {

/// Why an option may change when a run is resumed.
enum class Uncompared : std::uint8_t {
  kRanks,    // how many ranks and threads there are
  kMemory,   // what a rank keeps, for how long, and in which layout: the same bits
  kOutput,   // what a run shows and keeps of itself
  kContents  // names of what is read: its contents are compared instead (describe_run)
};

struct UncomparedOption {
  std::string_view name;
  Uncompared why;
};

/// The only options that may change when a run is resumed. Every other one is compared.
inline constexpr std::array kUncomparedOptions = {
    UncomparedOption{"world_size", Uncompared::kRanks},
    UncomparedOption{"threads_per_rank", Uncompared::kRanks},
    UncomparedOption{"collective_deadline", Uncompared::kRanks},
    UncomparedOption{"grouped_matmul_nz_transpose", Uncompared::kMemory},
    UncomparedOption{"layout", Uncompared::kMemory},
    UncomparedOption{"linear_only_shard", Uncompared::kMemory},
    UncomparedOption{"reshard", Uncompared::kMemory},
    UncomparedOption{"prefetch", Uncompared::kMemory},
    UncomparedOption{"recompute_layers", Uncompared::kMemory},
    UncomparedOption{"linear_cross_entropy", Uncompared::kMemory},
    UncomparedOption{"dry_run", Uncompared::kOutput},
    UncomparedOption{"export_hf", Uncompared::kOutput},
    UncomparedOption{"checkpoint_dir", Uncompared::kOutput},
    UncomparedOption{"checkpoint_interval", Uncompared::kOutput},
    UncomparedOption{"checkpoint_keep", Uncompared::kOutput},
    UncomparedOption{"resume", Uncompared::kOutput},
    UncomparedOption{"metrics", Uncompared::kOutput},
    UncomparedOption{"validation_interval", Uncompared::kOutput},
    UncomparedOption{"tensorboard", Uncompared::kOutput},
    UncomparedOption{"profile_steps", Uncompared::kOutput},
    UncomparedOption{"profile", Uncompared::kOutput},
    UncomparedOption{"prompt", Uncompared::kOutput},
    UncomparedOption{"sample_bytes", Uncompared::kOutput},
    UncomparedOption{"temperature", Uncompared::kOutput},
    UncomparedOption{"log_every", Uncompared::kOutput},
    UncomparedOption{"log_level", Uncompared::kOutput},
    UncomparedOption{"text", Uncompared::kContents},
    UncomparedOption{"data", Uncompared::kContents},
    UncomparedOption{"data_dtype", Uncompared::kContents},
    UncomparedOption{"end_of_document", Uncompared::kContents},
    UncomparedOption{"preset", Uncompared::kContents},
    UncomparedOption{"config", Uncompared::kContents},
    UncomparedOption{"hf_model", Uncompared::kContents},
};

/// Every option by its name, with underscores, and its value as it will be used, in full. A member
/// that is added to TrainOptions does not compile until it is named here.
std::map<std::string, std::string> record_options(const TrainOptions& options);

/// Those of record_options() that are compared.
std::map<std::string, std::string> compared_options(const TrainOptions& options);

}  // namespace moegrad::training
