// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "framework/runtime/error.h"
#include "nn/module.h"
#include "nn/router.h"
#include "ops/routing.h"

namespace moegrad::nn {

/// What a kind of dispatcher needs to combine the rows that it has dispatched: it derives its own.
struct DispatchMetadata {
  virtual ~DispatchMetadata() = default;
};

/// The rows that the experts of this rank compute. Each row is a token on its way to one expert;
/// its weight travels with it.
struct DispatchedRows {
  Tensor rows;                                       // [R, H], grouped by expert
  Tensor weights;                                    // [R]
  ops::RowGroups groups;                             // of the experts of this rank
  std::vector<std::int64_t> tokens_per_expert = {};  // [E]: how this rank's tokens chose
  std::shared_ptr<const DispatchMetadata> metadata = {};
};

/// The metadata of `dispatched`. Error, which names the dispatcher, unless they are an M.
template <class M>
const M& metadata_of(const DispatchedRows& dispatched, std::string_view dispatcher) {
  const auto* const metadata = dynamic_cast<const M*>(dispatched.metadata.get());
  check(metadata != nullptr, dispatcher,
        ": must combine rows that it has dispatched, got those of another");
  return *metadata;
}

void for_each_tensor(DispatchedRows& dispatched, const TensorVisitor& visit);

/// Takes tokens to the experts that the router chose, and their results back: the part of a mixture
/// layer that knows where experts are. Calling it dispatches.
class TokenDispatcher : public Callable<TokenDispatcher> {
 public:
  DispatchedRows forward(const Tensor& x, const Router::Output& routed) {
    return dispatch(x, routed);
  }

  /// x [T, H] and the router's choice for its tokens -> the rows of this rank's experts.
  virtual DispatchedRows dispatch(const Tensor& x, const Router::Output& routed) = 0;
  /// The experts' results [R, H], in the order of `dispatched` -> [T, H]: the sum of each token's
  /// rows, in the order of its choices.
  virtual Tensor combine(const Tensor& rows, const DispatchedRows& dispatched) = 0;
};

/// All experts are on this rank. With `token_parts` the gradients of their weights are summed per
/// part of the tokens, and the parts by halving, as where so many ranks have a part each
/// (docs/tensor_parallelism.md).
class LocalTokenDispatcher final : public TokenDispatcher {
 public:
  explicit LocalTokenDispatcher(std::int64_t num_experts, std::int64_t token_parts = 1)
      : num_experts_(num_experts), token_parts_(token_parts) {}
  DispatchedRows dispatch(const Tensor& x, const Router::Output& routed) override;
  Tensor combine(const Tensor& rows, const DispatchedRows& dispatched) override;

 private:
  std::int64_t num_experts_, token_parts_;
};

/// The way back as a module, with hooks of its own.
class Combine final : public Callable<Combine> {
 public:
  Tensor forward(TokenDispatcher& dispatcher, const Tensor& rows,
                 const DispatchedRows& dispatched) {
    return dispatcher.combine(rows, dispatched);
  }
};

}  // namespace moegrad::nn
