// SPDX-License-Identifier: Apache-2.0

// Sums that a division of the model cuts, cut by hand: the parts, added pairwise as ranks add them,
// must have the bits of the whole (Note [Sums by halving]).

#include <functional>
#include <numeric>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/runtime/math/elementary.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/grouped_matmul.h"
#include "ops/kernels/row_reduce.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_rope.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::divided_sums_test {
namespace {

using namespace test;

const std::int64_t kDivisible[] = {768, 1408, 1536, 2048, 3072, 6144, 151936};

Tensor pairwise(TensorList parts) {
  for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
    for (std::size_t i = 0; i < parts.size() / 2; ++i) {
      parts[i] = add(parts[2 * i], parts[2 * i + 1]).detach();
    }
  }
  return parts.front();
}

// Part `i` of `parts` of `x` along `dim`, a leaf.
Tensor part_of(const Tensor& x, std::int64_t dim, std::int64_t parts, std::int64_t i) {
  const auto size = x.dim(dim) / parts;
  return clone(Tensor::narrow(x.detach(), dim, i * size, size));
}

using Part = std::function<Tensor(std::int64_t parts, std::int64_t i)>;

::testing::AssertionResult parts_have_the_bits(const Part& part, std::int64_t parts) {
  TensorList sums;
  for (std::int64_t i = 0; i < parts; ++i) sums.push_back(part(parts, i));
  return bitwise_equal(pairwise(std::move(sums)), part(1, 0)) << " in " << parts << " parts";
}

// For a sum over `size` terms at all sizes, and 512 in 8 parts, which are no subtrees.
void expect_divisible(const std::function<Part(std::int64_t size)>& sum_of) {
  for (const auto size : kDivisible) {
    const auto part = sum_of(size);
    for (const std::int64_t parts : {2, 4, 8}) {
      EXPECT_TRUE(parts_have_the_bits(part, parts)) << size << " terms";
    }
  }
  EXPECT_TRUE(parts_have_the_bits(sum_of(512), 4));
  EXPECT_FALSE(parts_have_the_bits(sum_of(512), 8));
}

Tensor grad_of(const Tensor& leaf, const Tensor& y, const Tensor& grad) {
  y.backward(grad);
  return leaf.grad();
}

Tensor floats(const Shape& shape, std::uint64_t seed) {
  return randn(shape, seed, Dtype::kFloat32);
}

Tensor norm_of_heads(const Tensor& x, const Tensor& weight) {
  return rms_norm(x, weight, 1e-6, x.dim(1));
}

TEST(DividedSums, InFeaturesOfALinear) {
  expect_divisible([](std::int64_t size) {
    const Tensor x = floats({9, size}, 1), weight = floats({5, size}, 2);
    return [=](std::int64_t parts, std::int64_t i) {
      return linear(part_of(x, 1, parts, i), part_of(weight, 1, parts, i));
    };
  });
}

TEST(DividedSums, OutFeaturesOfALinearInItsInputGradient) {
  expect_divisible([](std::int64_t size) {
    const Tensor values = floats({3, 17}, 1), weight = floats({size, 17}, 2);
    const Tensor grad = floats({3, size}, 3);
    return [=](std::int64_t parts, std::int64_t i) {
      const Tensor x = clone(values).set_requires_grad(true);
      return grad_of(x, linear(x, part_of(weight, 0, parts, i)), part_of(grad, 1, parts, i));
    };
  });
}

TEST(DividedSums, RowsOfALinearInItsWeightGradient) {
  expect_divisible([](std::int64_t size) {
    const Tensor x = floats({size, 7}, 1), values = floats({6, 7}, 2), grad = floats({size, 6}, 3);
    return [=](std::int64_t parts, std::int64_t i) {
      const Tensor weight = clone(values).set_requires_grad(true);
      return grad_of(weight, linear(part_of(x, 0, parts, i), weight), part_of(grad, 0, parts, i));
    };
  });
}

TEST(DividedSums, InFeaturesOfGroupedProducts) {
  expect_divisible([](std::int64_t size) {
    const Tensor x = floats({12, size}, 1), weight = floats({2, size, 5}, 2);
    return [=](std::int64_t parts, std::int64_t i) {
      return grouped_matmul(part_of(x, 1, parts, i), part_of(weight, 1, parts, i), {0, 3, 12});
    };
  });
}

TEST(DividedSums, RowsOfABias) {
  for (const std::int64_t features : {1, 9}) {
    expect_divisible([&](std::int64_t size) {
      const Tensor grad = floats({size, features}, 1);
      return [=](std::int64_t parts, std::int64_t i) {
        const Tensor bias = Tensor::zeros({features}).set_requires_grad(true);
        const Tensor rows = part_of(grad, 0, parts, i);
        return grad_of(bias, Tensor::zeros(rows.shape()) + bias, rows);
      };
    });
  }
}

TEST(DividedSums, RowsOfNorms) {
  expect_divisible([](std::int64_t size) {
    const Tensor x = floats({size, 20}, 1), grad = floats({size, 20}, 2);
    return [=](std::int64_t parts, std::int64_t i) {
      const Tensor weight = Tensor::ones({20}).set_requires_grad(true);
      return grad_of(weight, rms_norm(part_of(x, 0, parts, i), weight), part_of(grad, 0, parts, i));
    };
  });
  expect_divisible([](std::int64_t size) {
    const Tensor x = floats({size, 20}, 1), grad = floats({size, 20}, 2);
    return [=](std::int64_t parts, std::int64_t i) {
      const Tensor weight = Tensor::ones({20}).set_requires_grad(true);
      return grad_of(weight, layer_norm(part_of(x, 0, parts, i), weight, Tensor()),
                     part_of(grad, 0, parts, i));
    };
  });
}

// Whether fused with the rotation or not.
TEST(DividedSums, HeadsOfAQueryNorm) {
  for (const std::int64_t tokens : {1, 3, 129, 700}) {
    const std::int64_t heads = 16, dim = 8;
    const Tensor x = floats({tokens, heads, dim}, 1), grad = floats({tokens, heads, dim}, 2);
    const Tensor positions = Tensor::empty({tokens}, Dtype::kInt64);
    Tensor numbers = positions;
    std::iota(numbers.mutable_data<std::int64_t>().begin(),
              numbers.mutable_data<std::int64_t>().end(), 0);
    const auto table = rope_table(positions, dim, 10000.0, Dtype::kFloat32);
    for (const std::int64_t parts : {2, 4, 8, 16}) {
      EXPECT_TRUE(parts_have_the_bits(
          [&](std::int64_t n, std::int64_t i) {
            const Tensor weight = floats({dim}, 3).set_requires_grad(true);
            return grad_of(weight, norm_of_heads(part_of(x, 1, n, i), weight),
                           part_of(grad, 1, n, i));
          },
          parts))
          << tokens << " tokens";
      EXPECT_TRUE(parts_have_the_bits(
          [&](std::int64_t n, std::int64_t i) {
            const Tensor weight = floats({dim}, 3).set_requires_grad(true);
            return grad_of(weight, rms_norm_rope(part_of(x, 1, n, i), weight, table),
                           part_of(grad, 1, n, i));
          },
          parts))
          << tokens << " tokens, rotated";
    }
  }
}

// A gradient that is partial over ranks must be whole before micro-batches are added.
TEST(DividedSums, HeadsAreAddedBeforeMicroBatches) {
  constexpr std::int64_t kHeads = 8, kDim = 16, kMicroBatches = 4;
  const auto gradient = [&](std::int64_t micro_batch, std::int64_t parts, std::int64_t i) {
    const auto seed = static_cast<std::uint64_t>(2 * micro_batch);
    const Tensor x = floats({70, kHeads, kDim}, seed), grad = floats({70, kHeads, kDim}, seed + 1);
    const Tensor weight = Tensor::ones({kDim}).set_requires_grad(true);
    return grad_of(weight, norm_of_heads(part_of(x, 1, parts, i), weight),
                   part_of(grad, 1, parts, i));
  };
  for (const std::int64_t parts : {2, 4, 8}) {
    TreeSum whole, parts_first;
    TensorList micro_batches_first;
    for (std::int64_t i = 0; i < parts; ++i) {
      TreeSum own;
      for (std::int64_t m = 0; m < kMicroBatches; ++m) own.push(clone(gradient(m, parts, i)));
      micro_batches_first.push_back(own.take());
    }
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      TensorList shares;
      for (std::int64_t i = 0; i < parts; ++i) shares.push_back(gradient(m, parts, i));
      parts_first.push(clone(pairwise(std::move(shares))));
      whole.push(clone(gradient(m, 1, 0)));
    }
    const Tensor expected = whole.take();
    EXPECT_TRUE(bitwise_equal(parts_first.take(), expected)) << parts << " parts";
    EXPECT_FALSE(bitwise_equal(pairwise(std::move(micro_batches_first)), expected));
  }
}

TEST(DividedSums, PositionsOfAnEmbedding) {
  expect_divisible([](std::int64_t size) {
    const Tensor grad = floats({size, 5}, 1);
    Tensor ids = Tensor::empty({size}, Dtype::kInt64);
    std::int64_t i = 0;
    // One id everywhere, a common one, one of the first positions alone, some in few places.
    for (auto& id : ids.mutable_data<std::int64_t>()) {
      id = i < 40 ? 2 : i % 7 == 3 ? 1 : i % 97 == 5 ? 3 + i % 4 : 0;
      ++i;
    }
    return [=](std::int64_t parts, std::int64_t part) {
      const Tensor weight = Tensor::zeros({9, 5}).set_requires_grad(true);
      return grad_of(weight, embedding(part_of(ids, 0, parts, part), weight),
                     part_of(grad, 0, parts, part));
    };
  });
}

TEST(DividedSums, MatricesOfABatchThatShareAnOperand) {
  for (const std::int64_t batch : {8, 24, 40}) {
    const Tensor many = floats({batch, 6, 150}, 1), values = floats({150, 5}, 2);
    const Tensor grad = floats({batch, 6, 5}, 3);
    const Tensor left = floats({6, 150}, 4), others = floats({batch, 150, 5}, 5);
    for (const std::int64_t parts : {2, 4, 8}) {
      EXPECT_TRUE(parts_have_the_bits(
          [&](std::int64_t n, std::int64_t i) {
            const Tensor shared = clone(left).set_requires_grad(true);
            return grad_of(shared, matmul(shared, part_of(others, 0, n, i)),
                           part_of(grad, 0, n, i));
          },
          parts))
          << batch << " matrices";
      EXPECT_TRUE(parts_have_the_bits(  // [4, B / 4, ...]: all products count
          [&](std::int64_t n, std::int64_t i) {
            const Tensor shared = clone(values).set_requires_grad(true);
            const Tensor own = part_of(many, 0, n, i);
            const auto outer = own.dim(0) % 4 == 0 ? 4 : 1;
            const Shape wide{outer, own.dim(0) / outer, 6, 150},
                out{outer, own.dim(0) / outer, 6, 5};
            return grad_of(shared, matmul(view(own, wide), shared),
                           view(part_of(grad, 0, n, i), out));
          },
          parts))
          << batch << " matrices of four dimensions";
    }
  }
}

// As the gradient of a row weight of swiglu, which goes to the router.
TEST(DividedSums, InnerSizesOfAnExpertsRowWeight) {
  for (const auto size : kDivisible) {
    const Tensor gate_up = floats({3, 2 * size}, 1), grad = floats({3, size}, 2);
    const Tensor weights = Tensor::ones({3}).set_requires_grad(true);
    const Tensor up = Tensor::narrow(gate_up, 1, size, size);
    Tensor pair = clone(gate_up).set_requires_grad(true);
    swiglu(pair, weights).backward(grad);  // d(up) = weight 1 times silu(gate) dy
    const Tensor of_up = clone(Tensor::narrow(pair.grad(), 1, size, size));
    const Tensor factors = clone(up);
    for (const std::int64_t parts : {1, 2, 4, 8}) {
      for (std::int64_t row = 0; row < 3; ++row) {
        std::vector<double> sums;
        for (std::int64_t i = 0; i < parts; ++i) {
          const auto at = row * size + i * size / parts;
          sums.push_back(kernels::halved_row_dot(of_up.data<float>().data() + at,
                                                 factors.data<float>().data() + at, size / parts));
        }
        for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
          for (std::size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
        EXPECT_EQ(weights.grad()[row].item(), static_cast<float>(sums.front()))
            << size << " in " << parts << " parts";
      }
    }
  }
}

// What travels is the sum in double; the maximum is exact and the logarithm comes last.
TEST(DividedSums, TheVocabularyOfALogSumExpAndOfSmoothedLabels) {
  expect_divisible([](std::int64_t size) {
    const Tensor logits = floats({1, size}, 1);
    const auto largest = kernels::row_max(logits.data<float>().data(), size);
    return [=](std::int64_t parts, std::int64_t i) {
      const Tensor own = part_of(logits, 1, parts, i);
      const float* const x = own.data<float>().data();
      const auto exps = kernels::halved_row_sum_of<float>(
          0, own.numel(), [&](std::int64_t j) { return kernels::exp(x[j] - largest); });
      return Tensor::from(std::vector<double>{exps, kernels::halved_row_sum(x, own.numel())}, {2});
    };
  });
  for (const auto size : kDivisible) {
    const Tensor logits = floats({1, size}, 1);
    const float* const x = logits.data<float>().data();
    const auto parts = kernels::row_logsumexp_parts(x, size);
    const auto exps = kernels::halved_row_sum_of<float>(
        0, size, [&](std::int64_t j) { return kernels::exp(x[j] - parts.largest); });
    EXPECT_EQ(parts.log_sum, math::log(static_cast<float>(exps)));
    EXPECT_EQ(sum(logits, 1).item(), static_cast<float>(kernels::halved_row_sum(x, size)));
  }
}

}  // namespace
}  // namespace moegrad::ops::divided_sums_test
