// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/parts_reduction.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <type_traits>

namespace moegrad {
namespace {

// Elements reduced at a time: the tree's intermediate rows (one per level) stay in L2.
constexpr std::int64_t kPiece = 4096;

struct Sum {
  template <std::floating_point T>
  static T combine(T a, T b) {
    return a + b;
  }
  static BFloat16 combine(BFloat16 a, BFloat16 b) {
    return BFloat16(static_cast<float>(a) + static_cast<float>(b));
  }
  template <std::signed_integral T>
  static T combine(T a, T b) {  // wraps: no undefined overflow
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  }
};

struct Max {
  template <class T>
  static T combine(T a, T b) {
    return b > a || b != b ? b : a;  // a NaN on either side wins
  }
  static BFloat16 combine(BFloat16 a, BFloat16 b) {
    return BFloat16(combine(static_cast<float>(a), static_cast<float>(b)));
  }
};

template <class T, class Op>
class Tree {
 public:
  Tree(std::span<const std::byte* const> inputs, std::vector<std::byte>& scratch)
      : inputs_(inputs) {
    const auto levels = static_cast<std::size_t>(std::bit_width(inputs.size()));
    const auto bytes = levels * static_cast<std::size_t>(kPiece) * sizeof(T);
    if (scratch.size() < bytes) scratch.resize(bytes);
    rows_ = reinterpret_cast<T*>(scratch.data());
  }

  void reduce(std::int64_t offset, std::int64_t count, T* output) {
    offset_ = offset;
    count_ = count;
    const auto ranks = inputs_.size();
    const auto middle = split(0, ranks);
    const T* const left = node(0, middle, 0);  // first: it uses the rows above 0 too
    // The output is written last and element by element, so it may be one of the leaves.
    combine(left, node(middle, ranks, 1), output);
  }

 private:
  static std::size_t split(std::size_t lo, std::size_t hi) {
    return lo + std::bit_floor(hi - lo - 1);
  }

  // The sum of ranks [lo, hi). A leaf is read in place; an inner node goes to row `level`.
  const T* node(std::size_t lo, std::size_t hi, std::int64_t level) {
    if (hi - lo == 1) return reinterpret_cast<const T*>(inputs_[lo]) + offset_;
    const auto middle = split(lo, hi);
    T* const row = rows_ + level * kPiece;
    const T* const left = node(lo, middle, level);
    combine(left, node(middle, hi, level + 1), row);
    return row;
  }

  void combine(const T* a, const T* b, T* sum) const {
    for (std::int64_t i = 0; i < count_; ++i) sum[i] = Op::combine(a[i], b[i]);
  }

  std::span<const std::byte* const> inputs_;
  T* rows_;
  std::int64_t offset_ = 0;
  std::int64_t count_ = 0;
};

template <class T, class Op>
void reduce_as(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
               std::vector<std::byte>& scratch) {
  Tree<T, Op> tree(inputs, scratch);
  for (std::int64_t offset = 0; offset < count; offset += kPiece) {
    tree.reduce(offset, std::min(kPiece, count - offset), reinterpret_cast<T*>(output) + offset);
  }
}

template <class Op>
void reduce_with(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
                 Dtype dtype, std::vector<std::byte>& scratch) {
  switch (dtype) {
    case Dtype::kFloat32:
      return reduce_as<float, Op>(inputs, output, count, scratch);
    case Dtype::kFloat64:
      return reduce_as<double, Op>(inputs, output, count, scratch);
    case Dtype::kBFloat16:
      return reduce_as<BFloat16, Op>(inputs, output, count, scratch);
    case Dtype::kInt64:
      return reduce_as<std::int64_t, Op>(inputs, output, count, scratch);
    case Dtype::kInt32:
      return reduce_as<std::int32_t, Op>(inputs, output, count, scratch);
    case Dtype::kInt8:
    case Dtype::kBool:
      break;  // ProcessGroup refuses them
  }
}

// output [count] = reduction of inputs[0..R) [count] along the tree of Note [Reduction order] in
// process_group.h. A bfloat16 node widens both children, combines, and rounds. kMax keeps NaN.
// `output` may be one of the inputs.
void reduce_tree(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
                 Dtype dtype, ReduceOp op, std::vector<std::byte>& scratch) {
  if (count == 0) return;
  if (inputs.size() == 1) {
    if (inputs[0] != output) std::copy_n(inputs[0], count * size_of(dtype), output);
    return;
  }
  if (op == ReduceOp::kSum) return reduce_with<Sum>(inputs, output, count, dtype, scratch);
  reduce_with<Max>(inputs, output, count, dtype, scratch);
}

}  // namespace

// Each piece ends where any input changes to another part.
void reduce_parts(std::span<PartsCursor> inputs, std::byte* output, std::int64_t count, Dtype dtype,
                  ReduceOp op, std::vector<std::byte>& scratch) {
  const auto element = static_cast<std::size_t>(size_of(dtype));
  auto left = static_cast<std::size_t>(count) * element;
  std::vector<const std::byte*> pieces(inputs.size());
  while (left > 0) {
    auto run = left;
    for (const auto& input : inputs) run = std::min(run, input.contiguous());
    std::ranges::transform(inputs, pieces.begin(), &PartsCursor::data);
    reduce_tree(pieces, output, static_cast<std::int64_t>(run / element), dtype, op, scratch);
    for (auto& input : inputs) input.advance(run);
    output += run;
    left -= run;
  }
}

}  // namespace moegrad
