// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/indexing.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::embedding_test {
namespace {

using namespace test;

TEST(Embedding, LooksRowsUp) {
  const Tensor weight = Tensor::from<double>({0, 1, 10, 11, 20, 21}, {3, 2});
  EXPECT_TRUE(bitwise_equal(embedding(indices_of({2, 0, 2, 1}, {2, 2}), weight),
                            Tensor::from<double>({20, 21, 0, 1, 20, 21, 10, 11}, {2, 2, 2})));
  EXPECT_EQ(embedding(indices_of({1}, {}), weight).shape(), Shape{2});
  EXPECT_EQ(embedding(indices_of({}, {0}), weight).shape(), (Shape{0, 2}));
  EXPECT_EQ(embedding(indices_of({1}, {1}), Tensor::ones({3, 0})).shape(), (Shape{1, 0}));
}

TEST(Embedding, GradientsMatchFiniteDifferences) {
  for (const Tensor& ids :
       {indices_of({2, 0, 2, 2}, {2, 2}), indices_of({1}, {1}), indices_of({}, {0})}) {
    EXPECT_TRUE(
        gradients_agree([&](const TensorList& in) -> TensorList { return {embedding(ids, in[0])}; },
                        {variable({3, 5})}));
  }
}

TEST(Embedding, GradientAddsTokensInAscendingOrderWithAnyNumberOfThreads) {
  const std::int64_t tokens = 50, width = 700;
  std::vector<std::int64_t> ids(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) ids[static_cast<std::size_t>(i)] = i * i % 7;
  const Tensor grad = randn({tokens, width}, 2, Dtype::kFloat32);
  Tensor expected = Tensor::zeros({7, width});
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      expected.mutable_data<float>()[static_cast<std::size_t>(
          ids[static_cast<std::size_t>(i)] * width + j)] +=
          grad.data<float>()[static_cast<std::size_t>(i * width + j)];
    }
  }
  for (const int threads : {1, 3}) {
    RankContext::current().set_threads(threads);
    const Tensor weight = randn({7, width}, 1, Dtype::kFloat32, true);
    embedding(indices_of(ids, {tokens}), weight).backward(grad);
    EXPECT_TRUE(bitwise_equal(weight.grad(), expected)) << threads;
  }
  RankContext::current().set_threads(1);
}

TEST(Embedding, SumsTheGradientOfABFloat16WeightInFloat32) {
  const std::int64_t tokens = 300, width = 300;
  std::vector<std::int64_t> ids(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) ids[static_cast<std::size_t>(i)] = i * i % 7;
  const Tensor positions = indices_of(ids, {tokens});
  const auto gradient = [&](const Tensor& weight, const Tensor& grad) {
    const Tensor y = embedding(positions, weight);
    const Tensor expected = index_select(weight.detach(), 0, positions);
    EXPECT_TRUE(bitwise_equal(y, expected));
    (grad.dtype() == y.dtype() ? y : cast(y, grad.dtype())).backward(grad);
    return weight.grad();
  };
  const Tensor narrow = randn({7, width}, 1, Dtype::kBFloat16, true);
  const Tensor wide = to_dtype(narrow.detach(), Dtype::kFloat32).set_requires_grad(true);
  for (const auto dtype : {Dtype::kBFloat16, Dtype::kFloat32}) {
    for (const auto& weight : {narrow, wide}) weight.set_grad({});
    const Tensor grad = randn({tokens, width}, 2, dtype);
    const Tensor expected = gradient(wide, to_dtype(grad, Dtype::kFloat32));
    EXPECT_TRUE(bitwise_equal(gradient(narrow, grad), expected)) << dtype;
  }
}

TEST(Embedding, ReadsStridedInputs) {
  const Tensor ids = transpose(indices_of({0, 1, 2, 2, 1, 0}, {2, 3}), 0, 1);
  const Tensor weight = transpose(randn({4, 3}), 0, 1);
  EXPECT_TRUE(
      bitwise_equal(embedding(ids, weight), embedding(contiguous(ids), contiguous(weight))));
}

TEST(Embedding, RejectsBadInputs) {
  const Tensor weight = randn({3, 2});
  EXPECT_EQ(message_of<ShapeError>([&] { embedding(indices_of({0}, {1}), randn({3})); }),
            "embedding: weight must be [V, H], got [3]");
  EXPECT_EQ(message_of<DtypeError>([&] { embedding(weight, weight); }),
            "embedding: ids must be int64, got float64");
  EXPECT_EQ(message_of<DtypeError>([&] {
              embedding(indices_of({0}, {1}), Tensor::zeros({3, 2}, Dtype::kInt64));
            }),
            "embedding: weight must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<ValueError>([&] {
              embedding(indices_of({0, 2, 3}, {3}), weight);
            }),
            "embedding: token id must be in [0, 3), got 3 at position 2");
  EXPECT_EQ(message_of<ValueError>([&] {
              embedding(indices_of({0, -1}, {2}), weight);
            }),
            "embedding: token id must be in [0, 3), got -1 at position 1");
}

}  // namespace
}  // namespace moegrad::ops::embedding_test
