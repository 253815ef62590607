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
/// grad() must hold the sum after each backward, and the sum must follow the tree of
/// Note [Tree of successive terms] all the same. After a power of two of reductions the tree is one
/// partial, and grad() is that partial: nothing else is kept, whatever stands there when the next
/// reduction comes is the sum so far, and clearing it begins a new sum and frees the memory. In
/// between there are several partials, and grad() is their sum for whoever looks. If somebody has
/// cleared, replaced or changed it meanwhile, what he left is the first term of a new sum.
class ShardedGradients {
 public:
  /// Terms are of `dtype`, by default the parameters' own.
  ShardedGradients(TensorList parameters, std::optional<Dtype> dtype);

  /// One term per parameter, undefined where the reduction had none; post-accumulate hooks of the
  /// others run when all grad() are set.
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
  // What grad() was set to. A tensor that somebody has cleared may be gone by the time we look, and
  // then its handle is as null as that of a gradient that was never there.
  struct Shown {
    explicit Shown(const Tensor& grad);
    bool is_still(const Tensor& grad) const;

    bool defined = false;
    std::weak_ptr<TensorImpl> impl = {};
    std::uint64_t version = 0;  // of its bytes
  };
  std::vector<Shown> shown_;
};

}  // namespace moegrad::fsdp
