// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/runtime/arena.h"
#include "tools/report/expert_loads.h"
#include "tools/report/step_bins.h"
#include "train/logs/run_header.h"

namespace moegrad::tools {

/// The highest use of memory of any rank over a run, in bytes.
struct PeakMemory {
  std::array<double, kMemoryTags> tags = {};  // each by itself
  double total = 0;                           // at one moment
};

/// Communication per rank and profiled step.
struct CommunicationRecord {
  struct Lane {
    double seconds = 0;
    double exposed_seconds = 0;  // not under compute
    double bytes = 0;            // received
  };
  double steps = 0;
  double compute_seconds = 0;
  Lane gather = {};
  Lane reduce = {};
  Lane other = {};
};

/// Communication along an axis, or with the host: sums over the steps that have such figures.
struct TrafficRecord {
  double steps = 0;
  double seconds = 0;  // of these steps
  double bytes_sent = 0;
  double bytes_received = 0;
  double wait_seconds = 0;
};

/// How many steps had a gradient norm above their max_grad_norm.
struct Clipping {
  std::int64_t steps = 0;    // steps with a known norm and a max_grad_norm that is not 0
  std::int64_t clipped = 0;  // how many of these were clipped
};

/// A run consists of parts, each from a start or resumption to an end.
struct RunPart {
  std::int64_t first_step = 0;
  training::RunHeader header = {};
};

/// The contents of a metrics file, in a bounded amount of memory plus eight bytes per step. Files
/// of earlier versions lack some of it.
struct RunRecord {
  std::string path = {};
  std::int64_t steps = 0;  // lines of training steps
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  Curve ce = {};
  Curve validation = {};  // over steps done before
  Curve grad_norm = {};
  Curve lr = {};
  Curve tokens_per_second = {};
  Curve data_percent = {};  // of the step's time, making micro-batches
  Curve mfu_percent = {};
  Curve router_entropy = {};             // nats
  Curve exchange_percent = {};           // of the step's time, waiting for tokens of other ranks
  Curve rank_load = {};                  // of the busiest rank of all layers, in means
  double skipped_steps = 0;              // so far, in the last step
  std::vector<double> throughputs = {};  // the finite ones of tokens_per_second, in any order
  Clipping clipping = {};
  double tokens = 0;
  double total_seconds = 0;       // of all steps
  double total_data_seconds = 0;  // part of it: making micro-batches
  std::optional<ExpertLoads> loads = {};
  std::optional<PeakMemory> memory = {};
  std::map<std::string, TrafficRecord> axes = {};         // by name
  std::optional<TrafficRecord> swap = {};                 // to the host and back
  std::optional<CommunicationRecord> communication = {};  // the last one
  std::string configuration = {};                         // the last one
  std::vector<std::int64_t> starts = {};                  // first steps of the run's parts
  std::vector<RunPart> parts = {};                        // the parts that have a header
  std::size_t bytes_left_out = 0;                         // of a last line that was cut short
};

/// Reads a metrics file. Errors as in read_metrics() (metrics_run.h).
RunRecord read_run_record(const std::string& path);

}  // namespace moegrad::tools
