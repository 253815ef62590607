// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace moegrad {

/// Goes through the parts of a buffer from byte `begin` on. The parts must outlive it.
template <class Byte>
class BasicPartsCursor {
 public:
  using Parts = std::vector<std::span<Byte>>;

  BasicPartsCursor(const Parts& parts, std::size_t begin)
      : part_(parts.begin()), end_(parts.end()) {
    advance(begin);
  }

  Byte* data() const { return part_->data() + offset_; }
  /// The bytes left in the part that data() points into; 0 only at the buffer's end.
  std::size_t contiguous() const { return part_ == end_ ? 0 : part_->size() - offset_; }
  void advance(std::size_t bytes) {
    offset_ += bytes;
    while (part_ != end_ && offset_ >= part_->size()) offset_ -= (part_++)->size();
  }

 private:
  typename Parts::const_iterator part_;
  typename Parts::const_iterator end_;
  std::size_t offset_ = 0;
};
using PartsCursor = BasicPartsCursor<const std::byte>;
using MutablePartsCursor = BasicPartsCursor<std::byte>;

/// Bytes [begin, begin + bytes) of a buffer in parts, as parts.
template <class Byte>
std::vector<std::span<Byte>> subparts(const std::vector<std::span<Byte>>& parts, std::size_t begin,
                                      std::size_t bytes) {
  std::vector<std::span<Byte>> result;
  BasicPartsCursor<Byte> cursor(parts, begin);
  while (bytes > 0) {
    const auto run = std::min(bytes, cursor.contiguous());
    result.emplace_back(cursor.data(), run);
    cursor.advance(run);
    bytes -= run;
  }
  return result;
}

/// Copies the next `bytes` bytes and advances both.
inline void copy_parts(PartsCursor& from, MutablePartsCursor& to, std::size_t bytes) {
  while (bytes > 0) {
    const auto run = std::min({bytes, from.contiguous(), to.contiguous()});
    std::copy_n(from.data(), run, to.data());
    from.advance(run);
    to.advance(run);
    bytes -= run;
  }
}

}  // namespace moegrad
