// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moegrad::tools {

struct AblationOptions {
  int ranks = 2;
  int threads = 1;          // per rank
  std::int64_t rounds = 3;  // measured, after one that is not
};

/// The data that one rank moved per step (framework/runtime/counters.h).
struct DataMovement {
  double materialized_transposes = 0;
  double transposed_packs = 0;
  double packed_panels = 0;
  double nz_conversions = 0;
  double nz_copy_outs = 0;
  double copied_out_bytes = 0;
  double converted_bytes = 0;
  double packed_bytes = 0;

  double bytes() const { return copied_out_bytes + converted_bytes + packed_bytes; }
};

struct RungRun {
  std::string name = {};
  std::vector<double> seconds = {};  // of each measured step
  std::vector<double> loss = {};     // of every step, nats per token
  DataMovement moved = {};
};

struct Ladder {
  std::string title = {};
  AblationOptions options = {};
  std::int64_t tokens = 0;  // per rank and step
  std::vector<RungRun> rungs = {};
  std::vector<std::size_t> baselines = {0};  // rungs that the others are compared with
};

/// Trains one model per rung of nz_ladder() under fully_shard, all from the same weights on the
/// same tokens. These are the tokens of the preset, but at least one sequence per rank. The rungs
/// take their steps in turn, round after round, so that other load of the machine affects all of
/// them alike. ValueError unless the ranks divide the sequences.
Ladder run_ladder(const std::string& preset, const AblationOptions& options);

/// The same for one mixture layer, with forward passes without the tape: the layer has the preset's
/// sizes, but 128 experts, and runs on 8 ranks of one thread each. Tokens are the preset's. The sum
/// of the layer's outputs takes the place of the loss.
Ladder run_layer_ladder(const std::string& preset, std::int64_t rounds);

/// Measures ways_to_nz() with that layer.
Ladder run_ways_to_nz(const std::string& preset, std::int64_t rounds);

}  // namespace moegrad::tools
