// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "framework/runtime/thread_state.h"

namespace moegrad {

/// The tree of modules that a called module belongs to, and the path that its root has: "" unless
/// a module of another tree calls into this one.
struct ModuleTree {
  const void* root = nullptr;            // a module, which nn knows
  std::weak_ptr<const void> alive = {};  // while it exists
  std::string path = {};
};

/// One call of a module, as the tape sees it. Functions remember the innermost scope they were
/// made in, so the tape knows module paths, and a module knows when backward enters and leaves it.
///
/// Note [Pre- and post-backward entries]
/// A scope covers the sequence numbers between its begin and its end. The engine calls on_enter
/// of a scope right before it runs the first Function inside it, outermost scope first, and
/// on_exit once all reachable Functions inside have run: an entry with the scope's first sequence
/// number waits in the engine's heap, and numbers fall. Neither depends on whether the module's
/// inputs require a gradient, nor on how its outputs are packed; a scope that no gradient reaches
/// is never entered. A backward inside a backward (recomputation) does not enter the scopes again
/// that the outer backward is in.
struct Scope {
  std::shared_ptr<const std::string> shared_path;  // which all calls of a module share
  std::shared_ptr<const Scope> parent = {};
  std::uint64_t begin = 0;  // sequence number of the scope's entry on the tape
  std::function<void()> on_enter = {};
  std::function<void()> on_exit = {};
  ModuleTree tree = {};

  /// Such as "model.layers.0.mlp".
  const std::string& path() const { return *shared_path; }
  /// The path as messages show it.
  std::string_view display_path() const {
    return path().empty() ? std::string_view("(root)") : std::string_view(path());
  }
};

namespace detail {
/// The next number on this thread's tape, not below `at_least`: entries of scopes and Functions
/// share one count.
std::uint64_t next_sequence(std::uint64_t at_least = 0);
}  // namespace detail

/// Opens a scope in this thread until the guard goes out of scope.
class [[nodiscard]] ScopeGuard {
 public:
  ScopeGuard(std::shared_ptr<const std::string> path, std::function<void()> on_enter,
             std::function<void()> on_exit, ModuleTree tree = {});
  ScopeGuard(std::string path, std::function<void()> on_enter, std::function<void()> on_exit)
      : ScopeGuard(std::make_shared<const std::string>(std::move(path)), std::move(on_enter),
                   std::move(on_exit)) {}
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

  /// The innermost open scope; null outside any.
  static const std::shared_ptr<const Scope>& current();
};

/// Makes `scope` (null: none) the current scope until the guard goes out of scope. A recomputation
/// belongs to the module call that it repeats.
using ScopeRestoreGuard = ThreadValueGuard<&ThreadState::scope>;

}  // namespace moegrad
