// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/collective_call.h"

namespace moegrad {

/// Goes through the parts of a buffer from byte `begin` on. The parts must outlive it.
class PartsCursor {
 public:
  PartsCursor(const ByteParts& parts, std::size_t begin) : part_(parts.begin()), end_(parts.end()) {
    advance(begin);
  }

  const std::byte* data() const { return part_->data() + offset_; }
  /// The bytes left in the part that data() points into; 0 only at the buffer's end.
  std::size_t contiguous() const { return part_ == end_ ? 0 : part_->size() - offset_; }
  void advance(std::size_t bytes) {
    offset_ += bytes;
    while (part_ != end_ && offset_ >= part_->size()) offset_ -= (part_++)->size();
  }

 private:
  ByteParts::const_iterator part_;
  ByteParts::const_iterator end_;
  std::size_t offset_ = 0;
};

/// output [count] = reduction of the next `count` elements of each input, one input per rank, along
/// the tree of Note [Reduction order]. Advances the inputs. `output` may be in an input. `scratch`
/// grows once; reuse it.
void reduce_parts(std::span<PartsCursor> inputs, std::byte* output, std::int64_t count, Dtype dtype,
                  ReduceOp op, std::vector<std::byte>& scratch);

}  // namespace moegrad
