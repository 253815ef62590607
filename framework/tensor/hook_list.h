// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace moegrad {

/// Removes the hook it was returned for. Dropping the handle leaves the hook in place.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) std::exchange(remove_, nullptr)();
  }

 private:
  std::function<void()> remove_;
};

/// Hooks in order of registration. Handles may outlive the list.
template <class Signature>
class HookList {
 public:
  using Hook = std::function<Signature>;

  HookHandle add(Hook hook) {
    const auto id = next_++;
    (*hooks_)[id] = std::move(hook);
    return HookHandle([hooks = std::weak_ptr(hooks_), id] {
      if (const auto list = hooks.lock()) list->erase(id);
    });
  }
  bool empty() const { return hooks_->empty(); }
  /// A copy, so that a hook may remove itself while it runs.
  std::vector<Hook> snapshot() const {
    std::vector<Hook> hooks;
    for (const auto& [id, hook] : *hooks_) hooks.push_back(hook);
    return hooks;
  }
  /// What they make of a tensor: each is called with it, and a defined result replaces it.
  template <class T>
  T replace(T tensor) const {
    for (const auto& hook : snapshot()) {
      T replaced = hook(tensor);
      if (replaced.defined()) tensor = std::move(replaced);
    }
    return tensor;
  }

 private:
  std::shared_ptr<std::map<std::uint64_t, Hook>> hooks_ =
      std::make_shared<std::map<std::uint64_t, Hook>>();
  std::uint64_t next_ = 0;
};

}  // namespace moegrad
