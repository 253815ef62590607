// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/scope.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace moegrad {

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
  ThreadState::current().scope = std::make_shared<Scope>(Scope{.shared_path = std::move(path),
                                                               .parent = current(),
                                                               .begin = detail::next_sequence(),
                                                               .on_enter = std::move(on_enter),
                                                               .on_exit = std::move(on_exit),
                                                               .tree = std::move(tree)});
}

ScopeGuard::~ScopeGuard() { ThreadState::current().scope = current()->parent; }

const std::shared_ptr<const Scope>& ScopeGuard::current() { return ThreadState::current().scope; }

}  // namespace moegrad
