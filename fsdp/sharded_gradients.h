// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/tensor/tensor.h"

namespace moegrad::fsdp {

/// Sums successive reductions into the grad() of sharded parameters.
///
/// Note [Gradients reduced every micro-batch]
/// grad() must contain the sum after each backward, but the sum must still follow the tree of
/// Note [Tree of successive terms]. After 1, 2, 4, ... reductions the tree is one partial. Then
/// grad() is that partial and nothing else is kept: the value of grad() at the next reduction is
/// the sum so far. Clearing grad() begins a new sum and frees the memory. In between there are
/// several partials, and grad() is their sum. If grad() was cleared, replaced or changed meanwhile,
/// its value is the first term of a new sum.
class ShardedGradients {
 public:
  /// Terms have `dtype`, by default the parameters' dtype.
  ShardedGradients(TensorList parameters, std::optional<Dtype> dtype);

  /// Adds one term per parameter, undefined if the reduction had none. When all grad() are set, the
  /// post-accumulate hooks of the parameters with a term run.
  void add(TensorList terms);

 private:
  void resume();
  void begin_again();
  bool untouched() const;
  Tensor as_term(const Tensor& grad) const;

  TensorList parameters_;
  Dtype dtype_;
  std::int64_t size_ = 0;
  std::vector<TreeSum> sums_;
  // The tensor that grad() was set to. If it has been cleared, the tensor may be gone, and then its
  // handle is null, like the handle of a gradient that was never set. So `defined` is kept, too.
  struct PublishedGrad {
    explicit PublishedGrad(const Tensor& grad);
    bool is_still(const Tensor& grad) const;

    bool defined = false;
    std::weak_ptr<TensorImpl> impl = {};
    std::uint64_t version = 0;  // version of its bytes
  };
  std::vector<PublishedGrad> published_;
};

}  // namespace moegrad::fsdp
