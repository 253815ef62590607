// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/tensor/gradient_accumulator.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// The sum of the gradients that one backward brings to one leaf.
///
/// Note [The sum of a gradient]
/// The gradient of a weight is one product for each time that it is used, and where each stands in
/// the sum does not depend on when it comes or on which rank multiplied it:
///
///     over numbered uses           use 0 + use 1 + ...: Note [Uses of a tied weight]
///       over micro-batches           along the tree of Note [Tree of successive terms]
///         over parts of its tokens     along that tree
///           over sources                 along that tree
///             over all else                in order of arrival
///
/// A source is the micro-batch of one rank. Under expert parallelism the owner of an expert
/// multiplies the rows of all sources at once, and the gradient must have the bits that it has when
/// each rank multiplies its own rows. So the owner multiplies the rows of each source apart, and
/// sends each product with its place (InputGradientSink). Each node of the tree over sources,
/// leaves included, is rounded to the dtype in which the gradients of the parameter are reduced
/// (fsdp::MixedPrecisionPolicy::reduce_dtype).
///
/// The last product of a weight adds each source to the tree at once, so that log2(S) + 1 partials
/// of S sources are alive. Where a weight is used several times, a sum for each source waits for
/// the last. Gradients that name no source are added beside the tree.
class PlacedSum {
 public:
  /// `node_dtype`, by default that of the gradients, is that of the partials over sources.
  explicit PlacedSum(std::optional<Dtype> node_dtype = std::nullopt) : node_dtype_(node_dtype) {}

  /// ValueError unless 0 <= source < sources, and for another number of sources than before.
  void add(Tensor grad, const GradientPlace& place);
  /// The sums of each use, [uses][micro-batches]; undefined where nothing came. Empties this.
  std::vector<TensorList> take();
  bool empty() const { return sums_.empty(); }

 private:
  struct PartSum {
    Tensor sum;                     // of what names no source
    TensorList by_source;           // what waits for the last use
    TreeSum tree;                   // over sources, in node_dtype_
    Dtype dtype = Dtype::kFloat32;  // of the gradients
  };

  void add_source(PartSum& part, Tensor grad, const GradientPlace& place) const;
  void push_source(PartSum& part) const;
  Tensor take(PartSum& part) const;

  std::optional<Dtype> node_dtype_;
  std::vector<std::vector<std::vector<PartSum>>> sums_;  // [uses][micro-batches][parts]
};

/// Adds a gradient to `sum`, which is, or will be, that of a leaf: nobody else reads its bytes.
void accumulate_gradient(Tensor& sum, Tensor grad);
/// The sum of these along the tree of Note [Tree of successive terms]; the only one itself.
Tensor sum_in_tree(TensorList terms);

/// The gradients that come to one leaf. They are added to `target`, use 0's, in order of arrival;
/// those whose places must be kept apart, or whose sum a hook of the leaf wants, wait for
/// complete().
class GradientArrivals {
 public:
  explicit GradientArrivals(std::optional<Dtype> node_dtype = std::nullopt)
      : waiting_(node_dtype) {}

  void add(const Tensor& leaf, Tensor grad, GradientPlace place, Tensor& target);
  /// The sums that waited, [uses][micro-batches], after the leaf's hooks; empty if none did.
  std::vector<TensorList> complete(const Tensor& leaf);

 private:
  PlacedSum waiting_;
};

/// Adds to grad(): what a leaf without an accumulator gets.
class AddToGrad final : public GradientAccumulator {
 public:
  explicit AddToGrad(Tensor leaf) : leaf_(std::move(leaf)) {}
  void add(Tensor grad, const GradientPlace& place) override;
  void complete() override;

 private:
  Tensor leaf_;
  GradientArrivals arrivals_;
};

void run_post_accumulate_hooks(const Tensor& leaf);

}  // namespace moegrad
