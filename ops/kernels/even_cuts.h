// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace moegrad::kernels {

/// Cuts `size` into the fewest pieces of at most `limit`, of even lengths: 8 by 6 = 4 + 4.
class EvenCuts {
 public:
  EvenCuts(std::int64_t size, std::int64_t limit)
      : count_((size + limit - 1) / limit),
        length_(count_ == 0 ? 0 : size / count_),
        longer_(size - count_ * length_) {}
  std::int64_t count() const { return count_; }
  std::int64_t begin(std::int64_t piece) const {
    return piece * length_ + std::min(piece, longer_);
  }
  std::int64_t length(std::int64_t piece) const {
    return length_ + static_cast<std::int64_t>(piece < longer_);
  }

 private:
  std::int64_t count_, length_, longer_;  // the first `longer_` pieces have one more
};

}  // namespace moegrad::kernels
