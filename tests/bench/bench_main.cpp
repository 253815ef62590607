// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bench_main.h"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>

#include "framework/runtime/program.h"
#include "framework/runtime/rank_context.h"
#include "train/config/program_options.h"

namespace moegrad::bench {

namespace {

int parse_and_run(int argc, char** argv, CLI::App& app,
                  const std::function<void()>& register_cases) {
  int threads = 1;
  training::add_number(app, "--threads", threads, {1, 1024}, "");
  benchmark::Initialize(&argc, argv);
  if (const auto exit_code = training::parse_options(app, argc, argv)) return *exit_code;
  RankContext::current().set_threads(threads);
  register_cases();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace

int bench_main(int argc, char** argv, CLI::App& app, const std::function<void()>& register_cases) {
  return run_program(argv[0], [&] { return parse_and_run(argc, argv, app, register_cases); });
}

}  // namespace moegrad::bench
