// SPDX-License-Identifier: Apache-2.0
// Embedding, head and loss where ranks divide the vocabulary.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear_cross_entropy.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::parallel_vocabulary_test {
namespace {

using namespace test;

constexpr auto kF32 = Dtype::kFloat32, kF64 = Dtype::kFloat64, kBf16 = Dtype::kBFloat16;

Tensor part_of(const Tensor& whole, std::int64_t dim, const ProcessGroup& group) {
  const auto size = whole.dim(dim) / group.size();
  return clone(Tensor::narrow(whole, dim, group.rank() * size, size));
}

// Ids that hit every part, several times, and the first and last id.
Tensor ids_below(std::int64_t vocabulary, std::int64_t n, std::int64_t ignored = -1) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto id = i == 0 ? vocabulary - 1 : i * i * 37 % vocabulary;
    ids.push_back(ignored != -1 && i % 5 == 3 ? ignored : id);
  }
  return indices_of(ids, {n});
}

struct Layout {
  Dtype dtype;
  int ranks;
  bool divided;
};

std::vector<Layout> layouts(std::vector<Dtype> dtypes) {
  std::vector<Layout> all;
  for (const auto dtype : dtypes) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool divided : {false, true}) all.push_back({dtype, ranks, divided});
    }
  }
  return all;
}

std::string to_string(const Layout& layout) {
  return std::string(moegrad::to_string(layout.dtype)) + ", " + std::to_string(layout.ranks) +
         " ranks" + (layout.divided ? ", rows divided" : "");
}

TEST(ParallelVocabulary, EmbeddingHasTheBitsOfOneRank) {
  for (const auto& layout : layouts({kF32, kF64, kBf16})) {
    SCOPED_TRACE(to_string(layout));
    const Tensor ids = ids_below(24, 300);
    Tensor values = randn({24, 7}, 1);
    values.mutable_data<double>()[0] = -0.0;
    const Tensor weight = to_dtype(values, layout.dtype).set_requires_grad(true);
    const Tensor grad = to_dtype(randn({300, 7}, 2), layout.dtype);
    const Tensor y = embedding(ids, weight);
    y.backward(grad);
    launch(layout.ranks, [&](RankContext& context) {
      const auto& group = context.group();
      const auto of_y = [&](const Tensor& t) {
        return layout.divided ? part_of(t, 0, *group) : clone(t.detach());
      };
      const Tensor own = part_of(weight.detach(), 0, *group).set_requires_grad(true);
      const Tensor got = vocabulary_parallel_embedding(group, ids, own, layout.divided);
      EXPECT_TRUE(bitwise_equal(got.detach(), of_y(y.detach())));
      got.backward(of_y(grad));
      EXPECT_TRUE(bitwise_equal(own.grad(), part_of(weight.grad(), 0, *group)));
    });
  }
}

// Gradients come transposed and from two uses, whose sum is not rounded.
TEST(ParallelVocabulary, EmbeddingTakesWideGradientsThatAreNotContiguous) {
  launch(2, [](RankContext& context) {
    const auto& group = context.group();
    for (const bool divided : {false, true}) {
      const Tensor ids = ids_below(8, 6), values = to_dtype(randn({8, 5}, 1), kBf16);
      const Tensor first = to_dtype(randn({6, 5}, 2), kBf16);
      const Tensor second = to_dtype(randn({6, 5}, 3), kBf16);
      const auto backward = [&](const Tensor& y, const auto& of_y) {
        const Tensor by_columns = transpose(y, 0, 1);
        cat({by_columns, by_columns}, 0)
            .backward(cat({contiguous(transpose(of_y(first), 0, 1)),
                           contiguous(transpose(of_y(second), 0, 1))},
                          0));
      };
      const Tensor weight = clone(values).set_requires_grad(true);
      backward(embedding(ids, weight), [](const Tensor& t) { return t; });
      const Tensor own = part_of(values, 0, *group).set_requires_grad(true);
      backward(vocabulary_parallel_embedding(group, ids, own, divided),
               [&](const Tensor& t) { return divided ? part_of(t, 0, *group) : t; });
      EXPECT_TRUE(bitwise_equal(own.grad(), part_of(weight.grad(), 0, *group)));
    }
  });
}

// 1,024 classes, whose halves, quarters and eighths are subtrees. Some logits are large, one row is
// -inf where one rank has it.
Tensor odd_logits(std::int64_t tokens, std::int64_t classes, Dtype dtype) {
  Tensor logits = randn({tokens, classes}, 3, kF64);
  const auto values = logits.mutable_data<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 97 == 0) values[i] *= 30;
    if (i < static_cast<std::size_t>(classes / 2)) values[i] = -HUGE_VAL;
  }
  return to_dtype(logits, dtype);
}

TEST(ParallelVocabulary, CrossEntropyHasTheBitsOfOneRank) {
  for (const auto dtype : {kF32, kF64}) {
    for (const std::int64_t ignored : {-100, 5}) {
      for (const int ranks : {1, 2, 4}) {
        const Tensor targets = ids_below(1024, 33, ignored);
        const Tensor logits = odd_logits(33, 1024, dtype).set_requires_grad(true);
        const Tensor loss = cross_entropy(logits, targets, {.ignore_index = ignored});
        loss.backward(Tensor::full({}, 1.25, dtype));
        launch(ranks, [&](RankContext& context) {
          const auto& group = context.group();
          const Tensor own = part_of(logits.detach(), 1, *group).set_requires_grad(true);
          const Tensor got =
              cross_entropy(own, targets, {.ignore_index = ignored, .vocabulary = group});
          EXPECT_TRUE(bitwise_equal(got.detach(), loss.detach())) << ranks;
          got.backward(Tensor::full({}, 1.25, dtype));
          EXPECT_TRUE(bitwise_equal(own.grad(), part_of(logits.grad(), 1, *group))) << ranks;
        });
      }
    }
  }
}

// Smoothing takes a third sum over the ranks.
TEST(ParallelVocabulary, SmoothedCrossEntropyHasTheBitsOfOneRank) {
  for (const auto dtype : {kF32, kF64}) {
    const Tensor targets = ids_below(1024, 33, -100);
    const Tensor logits = randn({33, 1024}, 3, dtype, true);
    CrossEntropyOptions options{
        .label_smoothing = 0.2, .token_weights = randn({33}, 4, dtype), .z_loss_coef = 0.03};
    options.denominator = 5;
    const Tensor loss = cross_entropy(logits, targets, options);
    loss.backward();
    for (const int ranks : {1, 2, 4}) {
      launch(ranks, [&](RankContext& context) {
        auto own_options = options;
        own_options.vocabulary = context.group();
        const Tensor own = part_of(logits.detach(), 1, *context.group()).set_requires_grad(true);
        const Tensor got = cross_entropy(own, targets, own_options);
        got.backward();
        EXPECT_TRUE(bitwise_equal(got.detach(), loss.detach())) << ranks;
        EXPECT_TRUE(bitwise_equal(own.grad(), part_of(logits.grad(), 1, *context.group())));
      });
    }
  }
}

// With gradients made in forward, too.
TEST(ParallelVocabulary, LinearCrossEntropyHasTheBitsOfOneRank) {
  for (const auto& layout : layouts({kF32, kF64, kBf16})) {
    SCOPED_TRACE(to_string(layout));
    const std::int64_t tokens = 600, classes = layout.dtype == kBf16 ? 2048 : 1024;
    const Tensor targets = ids_below(classes, tokens, -100);
    const Tensor x = to_dtype(randn({tokens, 20}, 1), layout.dtype).set_requires_grad(true);
    const Tensor weight = to_dtype(randn({classes, 20}, 2), layout.dtype).set_requires_grad(true);
    const auto loss_dtype = arithmetic_dtype(layout.dtype);
    CrossEntropyOptions options{.label_smoothing = 0.2,
                                .token_weights = randn({tokens}, 4, loss_dtype)};
    options.denominator = 7;
    const Tensor loss = linear_cross_entropy(x, weight, targets, options);
    const Tensor grad_loss = Tensor::full({}, 0.3, loss_dtype);
    loss.backward(grad_loss);
    launch(layout.ranks, [&](RankContext& context) {
      const auto& group = context.group();
      const auto of_x = [&](const Tensor& t) {
        return layout.divided ? part_of(t, 0, *group) : clone(t.detach());
      };
      auto own_options = options;
      own_options.vocabulary = group;
      for (const std::optional<double> known : {std::optional<double>(), std::optional(0.3)}) {
        own_options.grad_loss = known;
        const Tensor own_x = of_x(x.detach()).set_requires_grad(true);
        const Tensor own = part_of(weight.detach(), 0, *group).set_requires_grad(true);
        const Tensor got = linear_cross_entropy(own_x, own, targets, own_options, layout.divided);
        EXPECT_TRUE(bitwise_equal(got.detach(), loss.detach()));
        EXPECT_EQ(got.grad_fn()->flops() * layout.ranks, loss.grad_fn()->flops());
        got.backward(grad_loss);
        EXPECT_TRUE(bitwise_equal(own_x.grad(), of_x(x.grad())));
        EXPECT_TRUE(bitwise_equal(own.grad(), part_of(weight.grad(), 0, *group)));
      }
    });
  }
}

TEST(ParallelVocabulary, HoldsWithoutTokensAndForAwkwardSizes) {
  launch(3, [](RankContext& context) {
    const auto& group = context.group();
    for (const std::int64_t tokens : {0, 3, 9}) {
      const Tensor targets = ids_below(15, tokens), x = randn({tokens, 4}, 1);
      const Tensor weight = variable({15, 4}, 2);
      const Tensor loss = linear_cross_entropy(x, weight, targets);
      loss.backward();
      const Tensor own = part_of(weight.detach(), 0, *group).set_requires_grad(true);
      const Tensor got = linear_cross_entropy(x, own, targets, {.vocabulary = group});
      got.backward();
      EXPECT_TRUE(all_close(got, loss, 1e-12, 1e-12));
      EXPECT_TRUE(all_close(own.grad(), part_of(weight.grad(), 0, *group), 1e-12, 1e-12));
      EXPECT_TRUE(bitwise_equal(
          vocabulary_parallel_embedding(group, targets, part_of(weight.detach(), 0, *group)),
          embedding(targets, weight.detach())));
    }
  });
}

TEST(ParallelVocabulary, RefusesWhatDoesNotFit) {
  launch(2, [](RankContext& context) {
    const auto& group = context.group();
    const Tensor weight = randn({4, 3}, 1, kF32), logits = randn({3, 4}, 2, kF32);
    const Tensor ids = indices_of({0, 7, 2}, {3});
    EXPECT_EQ(message_of<ValueError>([&] { vocabulary_parallel_embedding(nullptr, ids, weight); }),
              "vocabulary_parallel_embedding: needs a process group, got null");
    EXPECT_EQ(message_of<ValueError>(
                  [&] { vocabulary_parallel_embedding(group, indices_of({8}, {1}), weight); }),
              "vocabulary_parallel_embedding: token id must be in [0, 8), got 8 at position 0");
    EXPECT_EQ(
        message_of<ShapeError>([&] { vocabulary_parallel_embedding(group, ids, weight, true); }),
        "vocabulary_parallel_embedding: the 2 ranks must divide the rows of ids, got [3]");
    EXPECT_EQ(message_of<ShapeError>(
                  [&] { vocabulary_parallel_embedding(group, indices_of({1}, {}), weight, true); }),
              "vocabulary_parallel_embedding: the 2 ranks must divide the rows of ids, got []");
    EXPECT_EQ(message_of<ValueError>([&] {
                cross_entropy(logits, ids,
                              {.class_weights = Tensor::ones({4}, kF32), .vocabulary = group});
              }),
              "cross_entropy: class_weights go with neither token_weights nor z_loss_coef nor "
              "vocabulary");
    EXPECT_EQ(message_of<ValueError>([&] {
                cross_entropy(logits, indices_of({0, 8, 2}, {3}), {.vocabulary = group});
              }),
              "cross_entropy: target must be in [0, 8) or -100, got 8 at position 1");
    EXPECT_EQ(message_of<ValueError>(
                  [&] { cross_entropy(logits, ids, {.class_weights = ids, .vocabulary = group}); }),
              "cross_entropy: class_weights go with neither token_weights nor z_loss_coef nor "
              "vocabulary");
    EXPECT_EQ(message_of<ValueError>([&] {
                linear_cross_entropy(randn({3, 3}, 1, kF32), weight, ids, {}, true);
              }),
              "linear_cross_entropy: rows can be divided only where options.vocabulary is");
    EXPECT_EQ(
        message_of<ShapeError>([&] {
          linear_cross_entropy(randn({3, 3}, 1, kF32), weight, ids, {.vocabulary = group}, true);
        }),
        "linear_cross_entropy: targets must be [6], one per token, got [3]");
  });
}

}  // namespace
}  // namespace moegrad::ops::parallel_vocabulary_test
