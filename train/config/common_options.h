// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "framework/runtime/cpu_kernels.h"
#include "framework/tensor/dtype.h"
#include "train/config/option.h"

namespace moegrad::training {

struct MemoryPlan;

// Options that several programs share, with the same name, bounds and description.

/// --world-size
Option world_size_option(int& value, int most = kMostThreads);
/// The same for a program whose ranks are always threads; it calls check_one_process().
Option thread_ranks_option(int& value, int most);
/// UsageError where mpirun has started the program as several processes.
void check_one_process();
/// --threads-per-rank
Option threads_option(int& value);
/// --kernels
Option kernels_option(std::optional<CpuKernels>& value);
/// --dtype
Option arithmetic_option(Dtype& value);
/// --recompute, --recompute-layers, --offload and --offload-window
void add_memory_plan_options(std::vector<Option>& all, MemoryPlan& plan);
/// --micro-batches
Option micro_batches_option(std::int64_t& value, std::string description);
/// --batch
Option batch_option(std::int64_t& value, std::string description);
/// --seq-len
Option sequence_length_option(std::int64_t& value);
/// --seed
Option seed_option(std::uint64_t& value, std::string description);
/// --lr
Option lr_option(double& value, std::string description);

}  // namespace moegrad::training
