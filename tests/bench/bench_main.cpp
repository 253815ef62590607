// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bench_main.h"

#include <benchmark/benchmark.h>

#include <utility>

#include "framework/runtime/program.h"
#include "framework/runtime/rank_context.h"
#include "train/config/command_line.h"

namespace moegrad::bench {

int bench_main(int argc, char** argv, const std::string& description,
               std::vector<training::Option> options, const std::function<void()>& register_cases) {
  const auto parse_and_run = [&] {
    int threads = 1;
    options.push_back(training::number_option("threads", threads, {1, 1024}, ""));
    benchmark::Initialize(&argc, argv);
    training::CommandLine line(description, std::move(options));
    if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
    RankContext::current().set_threads(threads);
    register_cases();
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  };
  return run_program(argv[0], parse_and_run);
}

}  // namespace moegrad::bench
