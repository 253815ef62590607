// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/rank_context.h"

#include <utility>

#include "framework/tensor/arena.h"

namespace moegrad {
namespace {

thread_local RankContext* current_context = nullptr;

}  // namespace

RankContext::RankContext() : RankContext(Options{}) {}

RankContext::RankContext(Options options)
    : options_(std::move(options)),
      arena_(std::make_shared<Arena>()),
      pool_(std::make_unique<ThreadPool>(options_.threads)),
      log_level_(options_.log_level),
      work_(options_.work != nullptr ? options_.work : std::make_shared<WorkTotals>()) {}

RankContext::~RankContext() = default;

RankContext& RankContext::current() {
  if (current_context != nullptr) return *current_context;
  thread_local RankContext own;
  return own;
}

void RankContext::set_threads(int threads) {
  pool_ = std::make_unique<ThreadPool>(threads);
  options_.threads = threads;
}

RankContextGuard::RankContextGuard(RankContext& context) : previous_(current_context) {
  current_context = &context;
}

RankContextGuard::~RankContextGuard() { current_context = previous_; }

}  // namespace moegrad
