// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bench_main.h"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>

#include "framework/runtime/rank_context.h"

namespace moegrad::bench {

int bench_main(int argc, char** argv, CLI::App& app, const std::function<void()>& register_cases) {
  int threads = 1;
  app.add_option("--threads", threads)->check(CLI::PositiveNumber)->capture_default_str();
  benchmark::Initialize(&argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  RankContext::current().set_threads(threads);
  register_cases();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace moegrad::bench
