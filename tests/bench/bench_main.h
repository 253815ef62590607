// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/config/option.h"

namespace moegrad::bench {

/// What main() of a benchmark does: reads the options of Google Benchmark, then `--threads N` of
/// the current rank (1 if absent) and `options`; calls `register_cases`; runs them. Returns the
/// exit status, 2 for options that are wrong.
int bench_main(int argc, char** argv, const std::string& description,
               std::vector<training::Option> options, const std::function<void()>& register_cases);

}  // namespace moegrad::bench
