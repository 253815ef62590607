// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace moegrad {

/// A member of an object that others point to. It tells them whether the object still exists.
///
/// A token belongs to its object's address. Copying or moving the object does not take the token
/// along. If a vector grows and moves its elements, their old tokens expire.
class LifeToken {
 public:
  LifeToken() = default;
  LifeToken(const LifeToken& /*other*/) noexcept {}
  LifeToken& operator=(const LifeToken& /*other*/) noexcept { return *this; }
  ~LifeToken() = default;

  /// Expires when the object is destroyed.
  std::weak_ptr<const void> watch() const {
    if (!life_) life_ = std::make_shared<char>();
    return life_;
  }

 private:
  mutable std::shared_ptr<const void> life_;  // made by the first watch()
};

}  // namespace moegrad
