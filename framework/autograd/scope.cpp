// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/scope.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "framework/runtime/thread_state.h"

namespace moegrad {
namespace {

std::shared_ptr<const Scope>& scope_slot() { return ThreadState::current().scope; }

}  // namespace

std::uint64_t detail::next_sequence(std::uint64_t at_least) {
  auto& entries = ThreadState::current().tape_entries;
  if (entries == nullptr) entries = std::make_shared<std::atomic<std::uint64_t>>();
  auto count = entries->load(std::memory_order_relaxed);
  while (!entries->compare_exchange_weak(count, std::max(count, at_least) + 1,
                                         std::memory_order_relaxed)) {
  }
  return std::max(count, at_least);
}

ScopeGuard::ScopeGuard(std::shared_ptr<const std::string> path, std::function<void()> on_enter,
                       std::function<void()> on_exit, ModuleTree tree) {
  scope_slot() = std::make_shared<Scope>(Scope{.shared_path = std::move(path),
                                               .parent = scope_slot(),
                                               .begin = detail::next_sequence(),
                                               .on_enter = std::move(on_enter),
                                               .on_exit = std::move(on_exit),
                                               .tree = std::move(tree)});
}

ScopeGuard::~ScopeGuard() { scope_slot() = scope_slot()->parent; }

const std::shared_ptr<const Scope>& ScopeGuard::current() { return scope_slot(); }

ScopeRestoreGuard::ScopeRestoreGuard(std::shared_ptr<const Scope> scope)
    : previous_(std::exchange(scope_slot(), std::move(scope))) {}

ScopeRestoreGuard::~ScopeRestoreGuard() { scope_slot() = std::move(previous_); }

}  // namespace moegrad
