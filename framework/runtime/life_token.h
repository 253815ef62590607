// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace moegrad {

/// Member of an object that others point to: tells them whether the object still exists.
///
/// A token belongs to the place of its object. Copying or moving the object takes nothing along, so
/// an element of a vector that has grown counts as gone from where it was.
class LifeToken {
 public:
  LifeToken() = default;
  LifeToken(const LifeToken& /*other*/) noexcept {}
  LifeToken& operator=(const LifeToken& /*other*/) noexcept { return *this; }
  ~LifeToken() = default;

  /// Expires when the object is destroyed.
  std::weak_ptr<const void> watch() {
    if (!life_) life_ = std::make_shared<char>();
    return life_;
  }

 private:
  std::shared_ptr<const void> life_;  // made for the first who watches
};

}  // namespace moegrad
