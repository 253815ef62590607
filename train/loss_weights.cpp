// SPDX-License-Identifier: Apache-2.0
#include "train/loss_weights.h"

#include <cmath>
#include <functional>

#include "framework/runtime/error.h"
#include "ops/cross_entropy.h"

namespace moegrad::training {
namespace {

double weight_of(LossWeights weights, std::int64_t targets) {
  const auto n = static_cast<double>(targets);
  switch (weights) {
    case LossWeights::kToken:
      return 1;
    case LossWeights::kSequence:
      return 1 / n;
    case LossWeights::kSqrt:
      return 1 / std::sqrt(n);
  }
  return 1;
}

// Calls visit(begin, end, targets) for each document that has targets.
void for_each_document(
    const MicroBatch& batch,
    const std::function<void(std::int64_t begin, std::int64_t end, std::int64_t targets)>& visit) {
  check<ValueError>(batch.documents.tokens() == batch.targets.numel(),
                    "target_weights: documents must have the ", batch.targets.numel(),
                    " tokens of the targets, got ", batch.documents.tokens());
  const auto& offsets = batch.documents.offsets();
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    const auto begin = offsets[d], end = offsets[d + 1];
    const auto targets = ops::count_targets(Tensor::narrow(batch.targets, 0, begin, end - begin));
    if (targets > 0) visit(begin, end, targets);
  }
}

}  // namespace

Tensor target_weights(LossWeights weights, const MicroBatch& batch, Dtype dtype) {
  Tensor all = Tensor::zeros({batch.targets.numel()}, dtype);
  const auto targets = batch.targets.data<std::int64_t>();
  dispatch_floating(dtype, [&]<class T>() {
    const auto values = all.mutable_data<T>();
    for_each_document(batch, [&](std::int64_t begin, std::int64_t end, std::int64_t n) {
      const auto weight = static_cast<T>(weight_of(weights, n));
      for (auto t = static_cast<std::size_t>(begin); t < static_cast<std::size_t>(end); ++t) {
        if (targets[t] != ops::CrossEntropyOptions().ignore_index) values[t] = weight;
      }
    });
  });
  return all;
}

double sum_of_target_weights(LossWeights weights, const MicroBatch& batch) {
  double sum = 0;
  for_each_document(batch, [&](std::int64_t /*begin*/, std::int64_t /*end*/, std::int64_t n) {
    sum += static_cast<double>(n) * weight_of(weights, n);
  });
  return sum;
}

}  // namespace moegrad::training
