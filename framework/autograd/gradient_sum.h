// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/autograd/use_sums.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Sums gradients of parameters, such as those of successive micro-batches, in a fixed order: along
/// the tree of Note [Tree of successive terms]. A term that leaves a parameter without gradient
/// keeps its position and adds nothing. Each use of a tied weight has a tree of its own, and their
/// sums are added at the end (Note [Uses of a tied weight]).
///
/// A training loop without fully_shard has the bits of a sharded one that reduces every micro-batch
/// with two lines:
///
///     GradientSum sum(parameters);
///     for (const auto& batch : micro_batches) {
///       loss_of(batch).backward();
///       sum.push();
///     }
///     sum.finish();
///     optimizer.step();
///
/// Note [Sums that grad() shows]
/// After add() grad() is the sum so far, but it must still follow the tree. After 1, 2, 4, ...
/// terms the tree is one partial. Then grad() is that partial and nothing else is kept: the value
/// of grad() at the next term is the sum so far. Clearing grad() begins a new sum and frees the
/// memory. Of a tied weight there is one partial for each use, beside grad() (GradientUses), and
/// the same holds of them. In between there are several partials, and grad() is their sum. If
/// grad() was cleared, replaced or changed meanwhile, its value is the first term of a new sum.
class GradientSum {
 public:
  /// Partials are kept, and each node (leaves included) is rounded, in `node_dtype`; by default in
  /// the parameters' own dtype. DtypeError for int64 and bool. Error unless each parameter is a
  /// leaf; ValueError for one that is given twice.
  explicit GradientSum(TensorList parameters, std::optional<Dtype> node_dtype = std::nullopt);

  /// Takes every grad() as the next term, its uses apart, and leaves grad() undefined.
  void push();
  /// Takes one term per parameter, undefined for none; it is use 0's. ValueError for another number
  /// of them.
  void push(TensorList terms);
  /// The same for [parameters][uses].
  void push_uses(std::vector<TensorList> terms);
  /// Sets every grad() to the sum (undefined if there was no term) and empties the tree. Error if a
  /// grad() is defined, since that gradient was not pushed.
  void finish();
  /// Empties the tree and returns the sums in the nodes' dtype (undefined if there was no term).
  TensorList take();
  /// The same, [parameters][uses].
  std::vector<TensorList> take_uses();
  /// Each parameter's sum so far; undefined if there is none. The tree goes on.
  TensorList sums() const;
  /// Forgets the terms of parameter i; they count as absent. ValueError if there is none.
  void drop(std::size_t i);
  /// Terms since the tree was last empty.
  std::int64_t size() const { return size_; }

  /// Takes one term per parameter, too, and sets every grad() that has a sum to the sum so far
  /// (Note [Sums that grad() shows]).
  void add(TensorList terms);
  /// The same for [parameters][uses].
  void add_uses(std::vector<TensorList> terms);

 private:
  void resume();
  void begin_again();
  bool untouched() const;
  void check_one_each(std::size_t terms) const;
  Tensor as_term(std::size_t i, Tensor gradient) const;
  TensorList shown_terms(std::size_t i) const;

  TensorList parameters_;
  std::optional<Dtype> node_dtype_;
  std::int64_t size_ = 0;
  std::vector<UseSums> sums_;  // [parameters]
  std::vector<ShownGradient> shown_;
};

}  // namespace moegrad
