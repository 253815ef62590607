// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "framework/runtime/rank_context.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::attention_test {
namespace {

using namespace moegrad::test;

using Lengths = std::vector<std::int64_t>;

struct Inputs {
  Tensor q, k, v, grad_out;
  Documents documents;
  double scale;
};

Inputs make_inputs(const Lengths& lengths, std::int64_t query_heads, std::int64_t kv_heads,
                   std::int64_t dim, Dtype dtype = Dtype::kFloat64) {
  const auto documents = Documents::of_lengths(lengths);
  const auto tokens = documents.tokens();
  return {.q = randn({tokens, query_heads, dim}, 1, dtype, true),
          .k = randn({tokens, kv_heads, dim}, 2, dtype, true),
          .v = randn({tokens, kv_heads, dim}, 3, dtype, true),
          .grad_out = randn({tokens, query_heads, dim}, 4, dtype),
          .documents = documents,
          .scale = 1 / std::sqrt(static_cast<double>(dim))};
}

struct Result {
  Tensor out, grad_q, grad_k, grad_v;
};

Result run(const Inputs& in) {
  for (const auto& leaf : {in.q, in.k, in.v}) leaf.set_grad({});
  const Tensor out = attention(in.q, in.k, in.v, in.documents, in.scale);
  out.backward(in.grad_out);
  return {out.detach(), in.q.grad(), in.k.grad(), in.v.grad()};
}

// Softmax over whole rows, one (document, head, row) after the other, in double. `sizes`, if it is
// not null, becomes the sums of the absolute values of what is added up in the results.
Result reference(const Inputs& in, Result* sizes = nullptr) {
  const Tensor q = to_dtype(in.q, Dtype::kFloat64), k = to_dtype(in.k, Dtype::kFloat64);
  const Tensor v = to_dtype(in.v, Dtype::kFloat64), g = to_dtype(in.grad_out, Dtype::kFloat64);
  Result result{zeros_like(q), zeros_like(q), zeros_like(k), zeros_like(v)};
  const auto heads = q.dim(1), kv_heads = k.dim(1), dim = q.dim(2);
  Result ignored;
  auto& size = sizes == nullptr ? ignored : *sizes;
  size = {zeros_like(q), zeros_like(q), zeros_like(k), zeros_like(v)};
  double* const out_size = size.out.mutable_data<double>().data();
  double* const grad_q_size = size.grad_q.mutable_data<double>().data();
  double* const grad_k_size = size.grad_k.mutable_data<double>().data();
  double* const grad_v_size = size.grad_v.mutable_data<double>().data();
  double* const out = result.out.mutable_data<double>().data();
  double* const grad_q = result.grad_q.mutable_data<double>().data();
  double* const grad_k = result.grad_k.mutable_data<double>().data();
  double* const grad_v = result.grad_v.mutable_data<double>().data();
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
    return sum;
  };
  const auto size_of_dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t d = 0; d < dim; ++d) sum += std::abs(a[d] * b[d]);
    return sum;
  };
  const auto& offsets = in.documents.offsets();
  for (std::size_t doc = 1; doc < offsets.size(); ++doc) {
    const auto begin = offsets[doc - 1];
    for (std::int64_t t = begin; t < offsets[doc]; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto row = (t * heads + h) * dim;
        const auto key = [&](std::int64_t j) {
          return (j * kv_heads + h / (heads / kv_heads)) * dim;
        };
        const double* query = q.data<double>().data() + row;
        const double* grad = g.data<double>().data() + row;
        const double* keys = k.data<double>().data();
        const double* values = v.data<double>().data();
        std::vector<double> p;
        for (auto j = begin; j <= t; ++j) p.push_back(in.scale * dot(query, keys + key(j)));
        const double max = *std::max_element(p.begin(), p.end());
        double sum = 0, mean = 0, mean_size = 0;
        for (auto& x : p) sum += x = std::exp(x - max);
        for (auto& x : p) x /= sum;
        for (auto j = begin; j <= t; ++j) {
          const double weight = p[static_cast<std::size_t>(j - begin)];
          mean += weight * dot(grad, values + key(j));
          mean_size += weight * size_of_dot(grad, values + key(j));
        }
        for (auto j = begin; j <= t; ++j) {
          const double weight = p[static_cast<std::size_t>(j - begin)];
          const double grad_score = in.scale * weight * (dot(grad, values + key(j)) - mean);
          const double score_size =
              std::abs(in.scale) * weight * (size_of_dot(grad, values + key(j)) + mean_size);
          for (std::int64_t d = 0; d < dim; ++d) {
            out[row + d] += weight * values[key(j) + d];
            grad_v[key(j) + d] += weight * grad[d];
            grad_q[row + d] += grad_score * keys[key(j) + d];
            grad_k[key(j) + d] += grad_score * query[d];
            out_size[row + d] += std::abs(weight * values[key(j) + d]);
            grad_v_size[key(j) + d] += std::abs(weight * grad[d]);
            grad_q_size[row + d] += std::abs(score_size * keys[key(j) + d]);
            grad_k_size[key(j) + d] += std::abs(score_size * query[d]);
          }
        }
      }
    }
  }
  return result;
}

void expect_close(const Result& actual, const Result& expected, double tolerance) {
  EXPECT_TRUE(all_close(actual.out, expected.out, tolerance, tolerance));
  EXPECT_TRUE(all_close(actual.grad_q, expected.grad_q, tolerance, tolerance));
  EXPECT_TRUE(all_close(actual.grad_k, expected.grad_k, tolerance, tolerance));
  EXPECT_TRUE(all_close(actual.grad_v, expected.grad_v, tolerance, tolerance));
}

void expect_bitwise_equal(const Result& a, const Result& b) {
  EXPECT_TRUE(bitwise_equal(a.out, b.out));
  EXPECT_TRUE(bitwise_equal(a.grad_q, b.grad_q));
  EXPECT_TRUE(bitwise_equal(a.grad_k, b.grad_k));
  EXPECT_TRUE(bitwise_equal(a.grad_v, b.grad_v));
}

TEST(Attention, EqualsTheQuadraticReferenceForEveryHeadDimension) {
  for (const std::int64_t dim : {1, 5, 8, 16, 64}) {
    const auto in = make_inputs({1, 17, 70, 130}, 4, 2, dim);
    expect_close(run(in), reference(in), 1e-11);
  }
}

TEST(Attention, EqualsTheQuadraticReferenceForEveryGrouping) {
  // query heads, key/value heads: one of each, multi-head, multi-query, grouped in threes and
  // fives, and more query heads than a block has rows.
  const std::vector<std::pair<std::int64_t, std::int64_t>> groupings{{1, 1}, {3, 3}, {4, 1},
                                                                     {6, 2}, {5, 1}, {131, 1}};
  for (const auto& [query_heads, kv_heads] : groupings) {
    const auto in = make_inputs({1, 70, 130, 17}, query_heads, kv_heads, 8);
    expect_close(run(in), reference(in), 1e-11);
  }
}

TEST(Attention, CoversSeveralKeyBlocks) {
  const auto in = make_inputs({3 * kernels::kKeyBlock + 7, kernels::kKeyBlock}, 2, 1, 16);
  expect_close(run(in), reference(in), 1e-11);
}

TEST(Attention, Float32IsCloseToFloat64) {
  const auto in = make_inputs({70, 130, 200}, 4, 2, 64, Dtype::kFloat32);
  expect_close(run(in), reference(in), 2e-5);
}

// |got - want| <= 2^-8 (|want| + sum of |terms|)
void expect_rounded(const Tensor& got, const Tensor& want, const Tensor& terms) {
  const Tensor wide = to_dtype(got, Dtype::kFloat64);
  const auto y = wide.data<double>(), exact = want.data<double>(), size = terms.data<double>();
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_LE(std::abs(y[i] - exact[i]), 0x1p-8 * (std::abs(exact[i]) + size[i])) << i;
  }
}

TEST(Attention, BFloat16IsComputedInFloat32AndRoundedOnce) {
  for (const auto& [query_heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {5, 1}}) {
    for (const std::int64_t dim : {1, 5, 64}) {
      const auto in =
          make_inputs({1, 17, 0, 70, 130}, query_heads, kv_heads, dim, Dtype::kBFloat16);
      const auto got = run(in);
      Result terms;
      const auto want = reference(in, &terms);
      EXPECT_EQ(got.out.dtype(), Dtype::kBFloat16);
      EXPECT_EQ(got.grad_q.dtype(), Dtype::kFloat32);
      expect_rounded(got.out, want.out, terms.out);
      expect_rounded(got.grad_q, want.grad_q, terms.grad_q);
      expect_rounded(got.grad_k, want.grad_k, terms.grad_k);
      expect_rounded(got.grad_v, want.grad_v, terms.grad_v);
      // The forward is that of the widened tensors, rounded. The gradient of v, which does not
      // depend on it, has their bits.
      const auto wide_of = [](const Tensor& x) {
        return to_dtype(x.detach(), Dtype::kFloat32).set_requires_grad(true);
      };
      const auto wide = run({wide_of(in.q), wide_of(in.k), wide_of(in.v),
                             to_dtype(in.grad_out, Dtype::kFloat32), in.documents, in.scale});
      EXPECT_TRUE(bitwise_equal(got.out, to_dtype(wide.out, Dtype::kBFloat16)));
      EXPECT_TRUE(bitwise_equal(got.grad_v, wide.grad_v));
    }
  }
}

TEST(Attention, KeepsBFloat16ForBackwardAndNothingWidened) {
  const auto in = make_inputs({130}, 4, 2, 64, Dtype::kBFloat16);
  const auto& arena = *RankContext::current().arena();
  const auto before = arena.live()[MemoryTag::kActivations];
  const Tensor out = attention(in.q, in.k, in.v, in.documents, in.scale);
  const auto logsumexp_bytes = 130 * 4 * size_of(Dtype::kFloat32);
  EXPECT_EQ(arena.live()[MemoryTag::kActivations] - before, 2 * in.q.numel() + logsumexp_bytes);
}

TEST(Attention, OptionsInBFloat16AreComputedInFloat32) {
  const auto in = make_inputs({9, 0, 6}, 4, 2, 5, Dtype::kBFloat16);
  const AttentionOptions options{.mask = AttentionMask::kSlidingWindow, .window = 3};
  const auto with_options = [&](Dtype dtype) {
    TensorList leaves;
    for (const auto& each : {in.q, in.k, in.v}) {
      leaves.push_back(to_dtype(each.detach(), dtype).set_requires_grad(true));
    }
    const Tensor out = attention(leaves[0], leaves[1], leaves[2], in.documents, in.scale, options);
    out.backward(to_dtype(in.grad_out, dtype));
    return Result{out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  const auto narrow = with_options(Dtype::kBFloat16), wide = with_options(Dtype::kFloat32);
  EXPECT_TRUE(bitwise_equal(narrow.out, to_dtype(wide.out, Dtype::kBFloat16)));
  EXPECT_TRUE(bitwise_equal(narrow.grad_v, wide.grad_v));
  EXPECT_TRUE(all_close(narrow.grad_q, wide.grad_q, 0x1p-6, 0x1p-6));
  EXPECT_TRUE(all_close(narrow.grad_k, wide.grad_k, 0x1p-6, 0x1p-6));
}

TEST(Attention, PackedDocumentsGiveTheBitsOfSeparateOnes) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Lengths lengths{17, 130, 0, 1, 70};
    const auto packed_in = make_inputs(lengths, 4, 2, 16, dtype);
    const auto packed = run(packed_in);
    for (std::size_t doc = 0; doc < lengths.size(); ++doc) {
      const auto piece = [&](const Tensor& tensor) {
        return clone(narrow(tensor.detach(), 0, packed_in.documents.offsets()[doc], lengths[doc]));
      };
      Inputs in{piece(packed_in.q),        piece(packed_in.k),           piece(packed_in.v),
                piece(packed_in.grad_out), Documents::one(lengths[doc]), packed_in.scale};
      for (auto* leaf : {&in.q, &in.k, &in.v}) leaf->set_requires_grad(true);
      expect_bitwise_equal(run(in), {piece(packed.out), piece(packed.grad_q), piece(packed.grad_k),
                                     piece(packed.grad_v)});
    }
  }
}

TEST(Attention, ALaterTokenChangesNothingEarlier) {
  auto in = make_inputs({130}, 4, 2, 16, Dtype::kFloat32);
  const auto before = run(in);
  for (const std::int64_t changed : {1, 23, 24, 95, 96, 129}) {
    auto other = in;
    for (auto* tensor : {&other.q, &other.k, &other.v}) {
      *tensor = clone(tensor->detach());
      const auto row = tensor->dim(1) * tensor->dim(2);
      const auto values = tensor->mutable_data<float>();
      for (auto i = changed * row; i < (changed + 1) * row; ++i) {
        values[static_cast<std::size_t>(i)] = 100;
      }
      tensor->set_requires_grad(true);
    }
    const auto after = run(other);
    const auto earlier = [&](const Tensor& tensor) { return narrow(tensor, 0, 0, changed); };
    EXPECT_TRUE(bitwise_equal(earlier(after.out), earlier(before.out)));
    EXPECT_TRUE(bitwise_equal(earlier(after.grad_q), earlier(before.grad_q)));
    EXPECT_FALSE(bitwise_equal(after.out, before.out));
  }
}

TEST(Attention, ALongerDocumentGivesItsPrefixTheSameBits) {
  const auto longer = make_inputs({230}, 3, 1, 8, Dtype::kFloat32);
  const Tensor whole = attention(longer.q, longer.k, longer.v, Documents::one(230), longer.scale);
  for (const std::int64_t length : {1, 32, 97, 131}) {
    const auto prefix = [&](const Tensor& tensor) { return narrow(tensor, 0, 0, length); };
    const Tensor part = attention(prefix(longer.q), prefix(longer.k), prefix(longer.v),
                                  Documents::one(length), longer.scale);
    EXPECT_TRUE(bitwise_equal(part, prefix(whole)));
  }
}

TEST(Attention, GivesTheSameBitsWithThreeThreads) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const auto in = make_inputs({70, 130, 17, 0, 200}, 4, 2, 16, dtype);
    const auto one = run(in);
    RankContext::current().set_threads(3);
    const auto three = run(in);
    RankContext::current().set_threads(1);
    expect_bitwise_equal(three, one);
  }
}

TEST(Attention, LargeLogitsDoNotOverflow) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    auto in = make_inputs({130}, 2, 1, 8, dtype);
    in.scale = 3e4;
    const auto result = run(in);
    for (const auto& tensor : {result.out, result.grad_q, result.grad_k, result.grad_v}) {
      const Tensor values = to_dtype(tensor, Dtype::kFloat64);
      for (const double value : values.data<double>()) EXPECT_TRUE(std::isfinite(value));
    }
    if (dtype == Dtype::kFloat64) expect_close(result, reference(in), 1e-6);
  }
}

TEST(Attention, VeryNegativeScoresStayInTheirRows) {
  // exp(-logsumexp) overflows here: it must not meet the rows that fill up the last tile, where a
  // full block came before.
  auto in = make_inputs({131}, 1, 1, 8, Dtype::kFloat32);
  for (auto* tensor : {&in.q, &in.k}) {
    *tensor = clone(tensor->detach());
    std::ranges::fill(tensor->mutable_data<float>(), tensor == &in.q ? -10.0F : 10.0F);
    tensor->set_requires_grad(true);
  }
  expect_close(run(in), reference(in), 1e-4);
}

TEST(Attention, ANegativeScaleAndZeroAreScalesToo) {
  for (const double scale : {0.0, -0.7}) {
    auto in = make_inputs({17, 70}, 4, 2, 5);
    in.scale = scale;
    expect_close(run(in), reference(in), 1e-11);
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  const auto documents = Documents::of_lengths({3, 0, 1, 5});
  const auto f = [&](const TensorList& in) {
    return TensorList{attention(in[0], in[1], in[2], documents, 0.4)};
  };
  EXPECT_TRUE(moegrad::gradients_agree(
      f, {variable({9, 4, 3}, 1), variable({9, 2, 3}, 2), variable({9, 2, 3}, 3)}));
}

TEST(Attention, ATokenThatSeesItselfAloneHasNoScoreGradient) {
  // softmax of one score is 1 whatever it is: exactly zero, not rounding.
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const std::int64_t dim : {1, 6, 13, 64}) {
      const auto result = run(make_inputs({1, 1, 1, 1, 1}, 6, 2, dim, dtype));
      for (const Tensor& grad : {result.grad_q, result.grad_k}) {
        EXPECT_TRUE(test::all_close(grad, zeros_like(grad), 0.0, 0.0)) << dim;
      }
    }
  }
}

TEST(Attention, ComputesOnlyTheGradientsThatAreNeeded) {
  const auto in = make_inputs({17, 130}, 4, 2, 8);
  const auto all = run(in);
  const TensorList expected{all.grad_q, all.grad_k, all.grad_v};
  for (std::size_t wanted = 0; wanted < 3; ++wanted) {
    TensorList inputs{clone(in.q.detach()), clone(in.k.detach()), clone(in.v.detach())};
    inputs[wanted].set_requires_grad(true);
    attention(inputs[0], inputs[1], inputs[2], in.documents, in.scale).backward(in.grad_out);
    EXPECT_TRUE(bitwise_equal(inputs[wanted].grad(), expected[wanted]));
  }
}

TEST(Attention, ReadsStridedInputsAndGradients) {
  const auto in = make_inputs({17, 70}, 4, 2, 8);
  const auto expected = run(in);
  const auto strided = [](const Tensor& tensor) {
    Tensor leaf = clone(transpose(tensor.detach(), 0, 1));  // [heads, T, D]
    leaf.set_requires_grad(true);
    return leaf;
  };
  const Tensor q = strided(in.q), k = strided(in.k), v = strided(in.v);
  const Tensor out =
      attention(transpose(q, 0, 1), transpose(k, 0, 1), transpose(v, 0, 1), in.documents, in.scale);
  transpose(out, 0, 1).backward(clone(transpose(in.grad_out, 0, 1)));
  expect_bitwise_equal({out.detach(), clone(transpose(q.grad(), 0, 1)),
                        clone(transpose(k.grad(), 0, 1)), clone(transpose(v.grad(), 0, 1))},
                       expected);
}

TEST(Attention, NoTokensAreLegal) {
  for (const auto& lengths : {Lengths{}, Lengths{0, 0}}) {
    auto in = make_inputs({0}, 4, 2, 8);
    in.documents = Documents::of_lengths(lengths);
    const auto result = run(in);
    EXPECT_EQ(result.out.shape(), (Shape{0, 4, 8}));
    EXPECT_EQ(result.grad_k.shape(), (Shape{0, 2, 8}));
  }
}

std::string shape_error(const Shape& q, const Shape& k, const Shape& v) {
  return message_of<ShapeError>([&] {
    attention(Tensor::zeros(q), Tensor::zeros(k), Tensor::zeros(v), Documents::one(3), 1.0);
  });
}

TEST(Attention, RejectsShapesThatDoNotFitAndNamesThem) {
  EXPECT_EQ(shape_error({3, 4}, {3, 2, 4}, {3, 2, 4}),
            "attention: q must be [T, Nq, D], got [3, 4]");
  EXPECT_EQ(shape_error({3, 2, 4}, {6, 4}, {3, 2, 4}),
            "attention: k must be [T, Nkv, D], got [6, 4]");
  EXPECT_EQ(shape_error({3, 2, 4}, {3, 2, 5}, {3, 2, 5}),
            "attention: k must be [3, Nkv, 4] to match q [3, 2, 4], got [3, 2, 5]");
  EXPECT_EQ(shape_error({3, 2, 4}, {3, 2, 4}, {3, 1, 4}),
            "attention: v must be [3, 2, 4] to match k, got [3, 1, 4]");
  EXPECT_EQ(shape_error({3, 2, 0}, {3, 2, 0}, {3, 2, 0}),
            "attention: head dimension must be at least 1, got q [3, 2, 0]");
  EXPECT_EQ(shape_error({3, 3, 4}, {3, 2, 4}, {3, 2, 4}),
            "attention: query heads must be a multiple of key/value heads, got 3 and 2");
  EXPECT_EQ(shape_error({3, 3, 4}, {3, 0, 4}, {3, 0, 4}),
            "attention: query heads must be a multiple of key/value heads, got 3 and 0");
  EXPECT_EQ(shape_error({3, 0, 4}, {3, 2, 4}, {3, 2, 4}),
            "attention: query heads must be a multiple of key/value heads, got 0 and 2");
}

TEST(Attention, RejectsMixedDtypes) {
  EXPECT_EQ(message_of<DtypeError>([] {
              attention(Tensor::zeros({3, 2, 4}), Tensor::zeros({3, 2, 4}, Dtype::kFloat64),
                        Tensor::zeros({3, 2, 4}), Documents::one(3), 1.0);
            }),
            "attention: q, k and v must be of one dtype, got float32, float64 and float32");
  EXPECT_EQ(message_of<DtypeError>([] {
              const Tensor x = Tensor::zeros({3, 2, 4}, Dtype::kInt64);
              attention(x, x, x, Documents::one(3), 1.0);
            }),
            "attention: q must be float32, float64 or bfloat16, got int64");
}

TEST(Attention, RejectsDocumentsOfOtherTokens) {
  EXPECT_EQ(message_of<ValueError>([] {
              const Tensor x = Tensor::zeros({5, 2, 4});
              attention(x, x, x, Documents::one(4), 1.0);
            }),
            "attention: documents must have the 5 tokens of q, got 4");
}

TEST(Attention, RejectsAWindowWithoutItsMask) {
  const Tensor x = Tensor::zeros({3, 1, 4});
  EXPECT_EQ(
      message_of<ValueError>([&] { attention(x, x, x, Documents::one(3), 1.0, {.window = 2}); }),
      "attention: a window needs the mask kSlidingWindow, got a window of 2 with another "
      "mask");
}

}  // namespace
}  // namespace moegrad::ops::attention_test
