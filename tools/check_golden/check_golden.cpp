// SPDX-License-Identifier: Apache-2.0

// Golden folders contain what Hugging Face's Qwen3-MoE or Qwen3 computes, or a mixture block of its
// DeepSeek-V3, or what PyTorch's optimizers and Hugging Face's schedules do. This program runs
// everything in them, models along three paths in two precisions, and compares:
//
//     build/release/tools/check_golden [--world-size N] [--expert-parallel N] DIR...
//
// It prints one line per quantity. Exits with 1 if one exceeds its limit or is missing, with 2 if a
// folder is malformed or of no kind that it knows (Note [Golden folders]).

#include <exception>
#include <filesystem>
#include <iomanip>
#include <iostream>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "tools/check_golden/golden_block.h"
#include "tools/check_golden/golden_checks.h"
#include "tools/check_golden/golden_kind.h"
#include "tools/check_golden/golden_optim.h"
#include "tools/check_golden/golden_pretrained.h"
#include "tools/check_golden/golden_runs.h"
#include "tools/tool_main.h"
#include "train/config/common_options.h"

namespace moegrad::tools {

using namespace training;

namespace {

constexpr int kMaxRanks = 64;

struct GoldenOptions {
  std::vector<std::string> folders;
  int world_size = 2, expert_parallel = 1, tensor_parallel = 1;  // of the sharded path
};

struct Tally {
  std::size_t quantities = 0;
  std::size_t folders = 0;
  std::size_t bad_folders = 0;
  std::size_t missing = 0;
  std::vector<std::string> failures;
};

std::string line_of(const std::string& folder, GoldenPath path, Dtype dtype,
                    const GoldenCheck& check) {
  std::ostringstream line;
  line << folder << " | " << std::left << std::setw(9) << to_string(path) << " | "
       << (dtype == Dtype::kFloat32 ? "fp32" : "fp64") << " | " << std::setw(60) << check.quantity
       << " | " << std::scientific << std::setprecision(1) << check.error << " <= " << check.limit
       << " | " << (check.holds() ? "ok" : "FAIL");
  if (!check.worst.empty()) line << " (" << check.worst << ')';
  return line.str();
}

void report_checks(const std::string& folder, GoldenPath path, Dtype dtype,
                   const std::vector<GoldenCheck>& checks, Tally& tally) {
  for (const auto& check : checks) {
    const auto line = line_of(folder, path, dtype, check);
    std::cout << line << std::endl;
    ++tally.quantities;
    if (!check.holds()) tally.failures.push_back(line);
  }
}

void report_missing(const std::string& folder, const std::vector<std::string>& missing,
                    Tally& tally) {
  for (const auto& what : missing) std::cout << folder << " | missing | " << what << '\n';
  tally.missing += missing.size();
}

/// Prints the results of a path in one dtype.
void report(const GoldenCase& golden, GoldenPath path, Dtype dtype, const GoldenResults& results,
            Tally& tally) {
  const auto report_replayed = [&](bool replayed, const std::string& what) {
    if (!replayed) return;
    std::cout << golden.name << " | " << to_string(path) << " | " << what
              << ": a choice of experts is rounding; run with those of fp64\n";
  };
  report_replayed(results.batch.replayed, "batch");
  report_replayed(results.packed && results.packed->replayed, "packed");
  for (const auto& alone : results.alone) report_replayed(alone.replayed, "packed sequence alone");
  for (std::size_t i = 0; i < results.variants.size(); ++i) {
    const auto& trained = results.variants[i];
    report_replayed(trained.replayed || trained.final_eval.replayed, golden.variants[i].name);
  }
  report_checks(golden.name, path, dtype, check_golden(golden, results, dtype), tally);
}

/// Checks a folder of optimizers and schedules.
void check_optim_folder(const std::string& folder, Tally& tally) {
  const auto name = std::filesystem::weakly_canonical(folder).filename().string();
  const auto [checks, missing] = check_golden_optim(folder);
  report_missing(name, missing, tally);
  report_checks(name, GoldenPath::kPlain, Dtype::kFloat64, checks, tally);
}

/// Checks a folder of a mixture block.
void check_block_folder(const std::string& folder, const ParallelDims& ranks, Tally& tally) {
  const auto name = std::filesystem::weakly_canonical(folder).filename().string();
  for (const auto path : {GoldenPath::kPlain, GoldenPath::kOptimised, GoldenPath::kSharded}) {
    const auto [checks, missing] = check_golden_block(folder, path, ranks);
    if (path == GoldenPath::kPlain) report_missing(name, missing, tally);
    report_checks(name, path, Dtype::kFloat64, checks, tally);
  }
}

void check_model(const GoldenCase& golden, const ParallelDims& ranks, Tally& tally) {
  report_missing(golden.name, golden.missing, tally);
  for (const auto path : {GoldenPath::kPlain, GoldenPath::kOptimised, GoldenPath::kSharded}) {
    const auto fp64 = run_golden(golden, path, Dtype::kFloat64, ranks);
    report(golden, path, Dtype::kFloat64, fp64, tally);
    const auto fp32 = run_golden(golden, path, Dtype::kFloat32, ranks, &fp64);
    report(golden, path, Dtype::kFloat32, fp32, tally);
  }
}

// A block alone has nothing that it divides.
ParallelDims without_tensor_parallelism(ParallelDims ranks) {
  if (ranks.tp > 1) ranks.tp = ranks.ep = 1;
  return ranks;
}

void check_folder(const std::string& folder, const ParallelDims& ranks, Tally& tally) {
  switch (golden_kind(folder)) {
    case GoldenKind::kTraining:
      return check_model(read_golden_case(folder), ranks, tally);
    case GoldenKind::kPretrained:
      return check_model(read_golden_pretrained(folder), ranks, tally);
    case GoldenKind::kBlock:
      return check_block_folder(folder, without_tensor_parallelism(ranks), tally);
    case GoldenKind::kOptim:
      return check_optim_folder(folder, tally);
  }
}

int run(const GoldenOptions& options) {
  check_one_process();
  const auto& [folders, world_size, expert_parallel, tensor_parallel] = options;
  check<UsageError>(world_size % expert_parallel == 0 || expert_parallel == tensor_parallel,
                    "--expert-parallel: must divide the ranks (--world-size), ", world_size,
                    ", got ", expert_parallel);
  const ParallelDims ranks = {.dp_shard = world_size, .tp = tensor_parallel, .ep = expert_parallel};
  resolved(ranks, world_size * tensor_parallel);  // says what does not fit
  Tally tally;
  for (const auto& folder : folders) {
    ++tally.folders;
    try {
      check_folder(folder, ranks, tally);
    } catch (const std::exception& error) {  // an Error, or one of the file system or of memory
      ++tally.bad_folders;
      std::cerr << "check_golden: " << folder << ": " << error.what() << std::endl;
    }
  }
  std::cout << '\n'
            << tally.folders << " folders, " << tally.missing << " expectations missing, "
            << tally.quantities << " quantities, " << tally.failures.size()
            << " past their limits\n";
  for (const auto& line : tally.failures) std::cout << line << '\n';
  if (tally.bad_folders > 0) return 2;
  return tally.failures.empty() && tally.missing == 0 ? 0 : 1;
}

CommandLine command_line(GoldenOptions& options) {
  return {"Compares the model with what Hugging Face's computes, as golden folders hold it.",
          {texts_option("folders", options.folders, "golden folders").as_argument(),
           thread_ranks_option(options.world_size, kMaxRanks),
           number_option("expert-parallel", options.expert_parallel, {1, kMaxRanks},
                         "ranks that have the experts of a layer between them; divides the ranks"),
           number_option("tensor-parallel", options.tensor_parallel, {1, kMaxRanks},
                         "ranks, for each of --world-size, that share the work on its tokens")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program, "check_golden", command_line, run, argc, argv);
}
