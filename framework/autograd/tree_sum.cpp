// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/tree_sum.h"

#include <bit>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"

namespace moegrad {

Tensor add_terms(Tensor earlier, const Tensor& later) {
  if (!earlier.defined()) return later;
  if (!later.defined()) return earlier;
  if (earlier.dtype() != Dtype::kBFloat16) {
    add_(earlier, later);
    return earlier;
  }
  const auto sum = earlier.mutable_data<BFloat16>();
  const auto term = later.data<BFloat16>();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = BFloat16(static_cast<float>(sum[i]) + static_cast<float>(term[i]));
  }
  return earlier;
}

TreeSum::TreeSum(Tensor sum, std::int64_t size) : size_(size) {
  check<ValueError>(size >= 1 && std::has_single_bit(static_cast<std::uint64_t>(size)),
                    "tree_sum: size must be a power of two, got ", size);
  partials_.push_back(std::move(sum));
}

void TreeSum::push(Tensor term) {
  // Each trailing set bit of the counter is a finished subtree as large as `term`: carry.
  for (auto carry = size_; (carry & 1) != 0; carry >>= 1) {
    term = add_terms(std::move(partials_.back()), term);
    partials_.pop_back();
  }
  partials_.push_back(std::move(term));
  ++size_;
}

Tensor TreeSum::sum() const {
  Tensor sum;
  bool own = false;
  for (auto partial = partials_.rbegin(); partial != partials_.rend(); ++partial) {
    if (!partial->defined()) continue;
    if (sum.defined() && !own) sum = clone(sum);
    own = sum.defined();
    sum = add_terms(std::move(sum), *partial);  // addition commutes, bit for bit
  }
  return sum;
}

Tensor TreeSum::take() {
  while (partials_.size() > 1) {
    const Tensor later = std::move(partials_.back());
    partials_.pop_back();
    partials_.back() = add_terms(std::move(partials_.back()), later);
  }
  Tensor sum = partials_.empty() ? Tensor() : std::move(partials_.back());
  partials_.clear();
  size_ = 0;
  return sum;
}

TreeSum absent_terms(std::int64_t size) {
  TreeSum tree;
  for (std::int64_t i = 0; i < size; ++i) tree.push(Tensor());
  return tree;
}

}  // namespace moegrad
