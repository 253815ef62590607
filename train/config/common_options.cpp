// SPDX-License-Identifier: Apache-2.0
#include "train/config/common_options.h"

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/program.h"
#include "train/config/train_config.h"

namespace moegrad::training {

Option world_size_option(int& value, int most) {
  auto option = number_option("world-size", value, {1, most},
                              "ranks: threads of this process, or the processes of mpirun");
  if (const auto started = mpi_environment()) {
    option.set = [&value, set = option.set, size = started->size](const OptionValue& given) {
      set(given);
      check<UsageError>(value == size, "--world-size: must be ", size, ", the processes that ",
                        "mpirun has started, or left out, got ", value);
    };
  }
  return std::move(option).at_resume_of(AtResume::kRanks);
}

Option thread_ranks_option(int& value, int most) {
  return number_option("world-size", value, {1, most}, "ranks: threads of this process")
      .at_resume_of(AtResume::kRanks);
}

void check_one_process() {
  const auto started = mpi_environment();
  check<UsageError>(!started || started->size == 1,
                    "the ranks of this program are threads of one process, so it must be started "
                    "without mpirun, got ",
                    started ? started->size : 1, " processes");
}

Option threads_option(int& value) {
  return number_option("threads-per-rank", value, {1, kMostThreads}, "compute threads of each rank")
      .at_resume_of(AtResume::kRanks);
}

Option kernels_option(std::optional<CpuKernels>& value) {
  static const auto kChoices = [] {
    std::vector<std::pair<std::string_view, std::optional<CpuKernels>>> choices;
    for (const auto kernels : available_cpu_kernels()) {
      choices.emplace_back(to_string(kernels), kernels);
    }
    return choices;
  }();
  return choice_option<std::optional<CpuKernels>>(
             "kernels", value, kChoices,
             "instructions of products, of those that this CPU has; all give the same "
             "bits; default: the fastest")
      .at_resume_of(AtResume::kRanks);
}

Option arithmetic_option(Dtype& value) {
  static constexpr std::array<std::pair<std::string_view, Dtype>, 3> kArithmetic = {
      {{"bf16", Dtype::kBFloat16}, {"fp32", Dtype::kFloat32}, {"fp64", Dtype::kFloat64}}};
  return choice_option<Dtype>("dtype", value, kArithmetic,
                              "arithmetic; bf16: of products, the parameters are fp32");
}

void add_memory_plan_options(std::vector<Option>& all, MemoryPlan& plan) {
  all.push_back(text_option("recompute", plan.recompute,
                            "what layers make again in backward: none, or light (norms, "
                            "activations, permuted tokens), medium (also the first products of "
                            "experts and MLPs), full (mixtures and MLPs as wholes), adaptive "
                            "(what experts with many rows compute), layernorm, "
                            "core_attn, moe_act, mlp, moe, shared_experts, paths of modules; "
                            "several with commas")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(number_option("recompute-layers", plan.recompute_layers, {0, 1 << 20},
                              "layers that keep only their input and run again in backward")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(text_option("offload", plan.offload,
                            "what waits in another arena, the host's, for backward: none, or "
                            "activations (all that layers save), what these read: attn_norm, "
                            "qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act; "
                            "paths of modules; several with commas")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(number_option("offload-window", plan.offload_window, {1, std::int64_t{1} << 56},
                              "bytes on their way to the host and back that a rank holds at most")
                    .at_resume_of(AtResume::kMemory));
}

Option micro_batches_option(std::int64_t& value, std::string description) {
  return number_option("micro-batches", value, {1, 1 << 20}, std::move(description));
}

Option batch_option(std::int64_t& value, std::string description) {
  return number_option("batch", value, {1, 1 << 20}, std::move(description));
}

Option sequence_length_option(std::int64_t& value) {
  return number_option("seq-len", value, {1, 1 << 24}, "tokens per sequence");
}

Option seed_option(std::uint64_t& value, std::string description) {
  return number_option("seed", value, {0, kMostSeed}, std::move(description));
}

Option lr_option(double& value, std::string description) {
  return number_option("lr", value, {0, 1e30}, std::move(description));
}

}  // namespace moegrad::training
