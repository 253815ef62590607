// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "nn/module.h"

namespace moegrad::nn {

/// Modules of type M, or derived from it, named "0", "1", and so on. Who has the list calls them:
///
///     ModuleList<Block> blocks_;                         // a member, registered as "blocks"
///     blocks_.emplace_back({.dim = 8});                  // "blocks.0"
///     for (auto& block : blocks_) x = block(x);
///
/// It owns its modules, which stay at their addresses. It is never called itself, so fully_shard
/// and recompute take its elements. Add modules before fully_shard.
///
/// Reference: PyTorch, torch.nn.ModuleList
template <class M>
class ModuleList final : public Module {
 public:
  class Iterator {
   public:
    using value_type = M;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(typename std::vector<std::shared_ptr<M>>::const_iterator at) : at_(at) {}
    M& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) {
      auto before = *this;
      ++at_;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    typename std::vector<std::shared_ptr<M>>::const_iterator at_;
  };

  /// Appends a module; takes a std::unique_ptr, too. ValueError for null, and if the module is in
  /// this tree of modules already.
  M& push_back(std::shared_ptr<M> module) {
    check<ValueError>(module != nullptr, "ModuleList: must be given a module, got null");
    register_module(std::to_string(size()), *module);
    return *modules_.emplace_back(std::move(module));
  }
  /// Makes an M, from the arguments or from its configuration in braces, and appends it.
  template <class... Arguments>
  M& emplace_back(Arguments&&... arguments) {
    return push_back(std::make_shared<M>(std::forward<Arguments>(arguments)...));
  }
  template <class N = M, class Config = typename N::Config>
  M& emplace_back(Config config) {
    return push_back(std::make_shared<M>(std::move(config)));
  }

  std::int64_t size() const { return std::ssize(modules_); }
  /// Module i. ValueError unless i is in [0, size()).
  M& operator[](std::int64_t i) const {
    check<ValueError>(0 <= i && i < size(), "ModuleList: index must be in [0, ", size(), "), got ",
                      i);
    return *modules_[static_cast<std::size_t>(i)];
  }
  Iterator begin() const { return Iterator(modules_.begin()); }
  Iterator end() const { return Iterator(modules_.end()); }

  bool is_callable() const override { return false; }

 private:
  std::vector<std::shared_ptr<M>> modules_;
};

}  // namespace moegrad::nn
