// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// How a row of tokens is divided into documents, which are packed one after the other: document d
/// is tokens [offsets[d], offsets[d + 1]). A document may be empty.
class Documents {
 public:
  /// No tokens.
  Documents() = default;
  /// ValueError unless `offsets` begin at 0 and do not decrease.
  explicit Documents(std::vector<std::int64_t> offsets);
  /// One document of so many tokens. ValueError for a negative number.
  static Documents one(std::int64_t tokens) { return of_lengths({tokens}); }
  /// ValueError for a negative length.
  static Documents of_lengths(const std::vector<std::int64_t>& lengths);

  /// [documents + 1], from 0 to the number of tokens; the cu_seqlens of other libraries.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }
  std::int64_t count() const { return std::ssize(offsets_) - 1; }
  std::int64_t tokens() const { return offsets_.back(); }
  /// The position of each token in its document: int64 [tokens].
  Tensor positions() const;

  friend bool operator==(const Documents&, const Documents&) = default;

 private:
  std::vector<std::int64_t> offsets_ = {0};
};

}  // namespace moegrad
