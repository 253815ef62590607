// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/rank_context.h"

#include <unistd.h>

#include <utility>

#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"

namespace moegrad {
namespace {

// The main thread of the process, whoever has started the ranks.
bool is_main_thread() { return gettid() == getpid(); }

}  // namespace

RankContext::RankContext() : RankContext(Options{}) {}

RankContext::RankContext(Options options)
    : options_(std::move(options)),
      kernels_(options_.kernels.value_or(fastest_cpu_kernels())),
      arena_(std::make_shared<Arena>()),
      pool_(std::make_unique<ThreadPool>(options_.threads)),
      log_level_(options_.log_level),
      work_(options_.work != nullptr ? options_.work : std::make_shared<WorkTotals>()) {
  check_available("RankContext", kernels_);
}

RankContext::~RankContext() = default;

RankContext* RankContext::find() {
  if (auto* const rank = ThreadState::current().rank) return rank;
  if (!is_main_thread()) return nullptr;
  thread_local RankContext own;
  return &own;
}

RankContext& RankContext::current() {
  auto* const rank = find();
  check(rank != nullptr,
        "RankContext: this thread must belong to a rank; it is neither the main thread nor one of "
        "launch(): carry the ThreadState of a rank's thread over with ThreadStateGuard, or make a "
        "RankContext with a RankContextGuard");
  return *rank;
}

CpuKernels RankContext::current_kernels() {
  const auto& of_pool = ThreadState::current().kernels;
  return of_pool ? *of_pool : current().kernels();
}

void RankContext::set_threads(int threads) {
  pool_ = std::make_unique<ThreadPool>(threads);
  options_.threads = threads;
}

void RankContext::set_kernels(CpuKernels kernels) {
  check_available("set_kernels", kernels);
  kernels_ = kernels;
}

}  // namespace moegrad
