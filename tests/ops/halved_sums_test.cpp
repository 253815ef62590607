// SPDX-License-Identifier: Apache-2.0

// Every sum of Note [Sums by halving] against its definition in scalar loops, bit for bit, over
// random sizes.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "framework/runtime/math/elementary.h"
#include "framework/runtime/rank_context.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/grouped_matmul.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/rms_norm_rows.h"
#include "ops/kernels/rotate_pair.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/matmul.h"
#include "ops/nz.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_rope.h"
#include "ops/rope.h"
#include "ops/softmax.h"
#include "ops/views.h"
#include "tests/ops/matmul_reference.h"
#include "tests/testing.h"

namespace moegrad::ops::halved_sums_test {
namespace {

using namespace test;

constexpr std::int64_t kMostTerms = 300000;
constexpr double kMostWork = 3e6;  // multiply-adds of one reference

// Sizes of one case; each draw depends on the case and on what it is for.
class Draw {
 public:
  explicit Draw(std::uint64_t number) : random_(number, "halved sums") {}

  // Uniform in [least, most].
  std::int64_t size(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_.uniform(next_++) *
                                             static_cast<double>(most - least + 1));
  }
  // As likely in [1, 10] as in [10, 100].
  std::int64_t any_size(std::int64_t most) {
    return std::min(most, static_cast<std::int64_t>(
                              std::exp(random_.uniform(next_++) * std::log(double(most) + 1))));
  }
  // The terms of a sum: of `sums` of them together, not too many to compute.
  std::int64_t terms(std::int64_t sums) {
    const auto most = kMostWork / static_cast<double>(std::max<std::int64_t>(1, sums));
    return any_size(std::min(kMostTerms, static_cast<std::int64_t>(most)));
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

template <class T>
const T* data_of(const Tensor& x) {
  return x.data<T>().data();
}

// c[i, j] = sum over p of a[i, p] b[j, p], where rows and steps are strides.
template <class T>
Tensor product(Operand<T> a, Operand<T> b, std::int64_t m, std::int64_t n, std::int64_t k) {
  Tensor c = Tensor::empty({m, n}, dtype_of<T>);
  halved_products<T>(a, b, m, n, k, c.mutable_data<T>().data());
  return c;
}

// The sum of each column of rows [n, d], where row i begins at rows + i * stride.
template <class T>
std::vector<T> column_sums(const T* rows, std::int64_t n, std::int64_t d, std::int64_t stride) {
  std::vector<T> sums;
  for (std::int64_t j = 0; j < d; ++j) {
    sums.push_back(halved_sum<T>(n, [&](std::int64_t i) { return rows[i * stride + j]; }));
  }
  return sums;
}

// The same of [n, heads, d], heads halved down to one.
template <class T>
Tensor head_sums(const std::vector<T>& rows, std::int64_t n, std::int64_t heads, std::int64_t d) {
  std::vector<std::vector<T>> sums;
  for (std::int64_t h = 0; h < heads; ++h) {
    sums.push_back(column_sums(rows.data() + h * d, n, d, heads * d));
  }
  std::vector<T> whole;
  for (std::size_t j = 0; j < static_cast<std::size_t>(d); ++j) {
    whole.push_back(halved(0, heads, 1, 1, [&](std::int64_t h, std::int64_t) {
      return sums[static_cast<std::size_t>(h)][j];
    }));
  }
  return Tensor::from(whole, {d});
}

::testing::AssertionResult all_equal(
    std::initializer_list<std::pair<const Tensor&, const Tensor&>> pairs) {
  std::size_t i = 0;
  for (const auto& [got, expected] : pairs) {
    if (auto equal = bitwise_equal(got, expected); !equal) return equal << ", result " << i;
    ++i;
  }
  return ::testing::AssertionSuccess();
}

template <class T>
::testing::AssertionResult linear_case(Draw& draw) {
  constexpr auto kDtype = dtype_of<T>;
  const auto small = draw.any_size(40);
  std::int64_t m = draw.size(0, 9), in = small, out = draw.any_size(40);
  auto& longest = *std::array{&m, &in, &out}[static_cast<std::size_t>(draw.size(0, 2))];
  longest = 1;
  longest = draw.terms(m * in * out);
  const auto chunk = draw.size(0, 2) == 0 ? draw.any_size(m + 2) : 0;
  const Tensor x = randn({m, in}, 1, kDtype, true), weight = randn({out, in}, 2, kDtype, true);
  const Tensor grad = randn({m, out}, 3, kDtype);
  const Tensor y = linear(x, weight, chunk);
  y.backward(grad);
  const T *px = data_of<T>(x), *pw = data_of<T>(weight), *pg = data_of<T>(grad);
  Tensor grad_weight;
  const auto rows = chunk == 0 ? std::max<std::int64_t>(m, 1) : chunk;
  for (std::int64_t begin = 0; begin == 0 || begin < m; begin += rows) {
    const Tensor term = product<T>({pg + begin * out, 1, out}, {px + begin * in, 1, in}, out, in,
                                   std::min(rows, m - begin));
    grad_weight = grad_weight.defined() ? add(grad_weight, term) : term;
  }
  return all_equal({{y.detach(), product<T>({px, in, 1}, {pw, in, 1}, m, out, in)},
                    {x.grad(), product<T>({pg, out, 1}, {pw, 1, in}, m, in, out)},
                    {weight.grad(), grad_weight}})
         << "; linear of " << m << " rows, in " << in << ", out " << out << ", chunks of " << chunk;
}

template <class T>
::testing::AssertionResult grouped_case(Draw& draw) {
  constexpr auto kDtype = dtype_of<T>;
  std::int64_t k = draw.any_size(40), n = draw.any_size(40);
  std::vector<std::int64_t> counts;
  for (auto experts = draw.size(1, 3); experts > 0; --experts) counts.push_back(draw.size(0, 9));
  const auto which = draw.size(0, 2);
  auto& longest = which == 0 ? k : which == 1 ? n : counts.front();
  longest = 1;
  std::vector<std::int64_t> offsets{0};
  for (const auto count : counts) offsets.push_back(offsets.back() + count);
  const auto terms = draw.terms(k * n * (offsets.back() + 1));
  if (which == 2) {
    for (auto& offset : offsets) offset += offset > 0 || &offset != offsets.data() ? terms - 1 : 0;
  } else {
    longest = terms;
  }
  const auto rows = offsets.back(), experts = std::ssize(counts);
  const auto storage = draw.size(0, 3);  // FRACTAL_NZ or not, [E, K, N] or [E, N, K]
  const bool transposed = storage >= 2;
  const Tensor x = randn({rows, k}, 1, kDtype, true), values = randn({experts, k, n}, 2, kDtype);
  Tensor weight = transposed ? clone(transpose(values, 1, 2)) : clone(values);
  if (storage % 2 == 1) weight = nd_to_nz(weight);
  weight.set_requires_grad(true);
  const Tensor grad = randn({rows, n}, 3, kDtype);
  const Tensor y = grouped_matmul(x, weight, offsets, transposed);
  y.backward(grad);
  const Tensor grad_weight = transposed ? clone(transpose(weight.grad(), 1, 2)) : weight.grad();
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  for (std::int64_t e = 0; e < experts && result; ++e) {
    const auto begin = offsets[static_cast<std::size_t>(e)];
    const auto count = offsets[static_cast<std::size_t>(e) + 1] - begin;
    const T *px = data_of<T>(x) + begin * k, *pw = data_of<T>(values) + e * k * n;
    const T* const pg = data_of<T>(grad) + begin * n;
    result =
        all_equal({{Tensor::narrow(y.detach(), 0, begin, count),
                    product<T>({px, k, 1}, {pw, 1, n}, count, n, k)},
                   {Tensor::narrow(x.grad(), 0, begin, count),
                    product<T>({pg, n, 1}, {pw, n, 1}, count, k, n)},
                   {select(grad_weight, 0, e), product<T>({px, 1, k}, {pg, 1, n}, k, n, count)}});
  }
  return result << "; grouped, " << rows << " rows, k " << k << ", n " << n << ", storage "
                << storage;
}

template <class T>
::testing::AssertionResult matmul_case(Draw& draw) {
  constexpr auto kDtype = dtype_of<T>;
  const auto batch = draw.size(1, 20), m = draw.size(1, 9), n = draw.any_size(40);
  const auto k = draw.terms(batch * m * n);
  const Tensor a = randn({batch, m, k}, 1, kDtype), b = randn({k, n}, 2, kDtype, true);
  const Tensor left = randn({m, k}, 3, kDtype, true), others = randn({batch, k, n}, 4, kDtype);
  const Tensor grad = randn({batch, m, n}, 5, kDtype);
  const Tensor y = matmul(a, b);
  y.backward(grad);
  matmul(left, others).backward(grad);
  const auto over_batch = [&](const auto& of) {
    return halved(0, batch, 1, 1, [&](std::int64_t i, std::int64_t) { return of(i); });
  };
  const T *pa = data_of<T>(a), *pb = data_of<T>(b), *po = data_of<T>(others);
  const T* const pg = data_of<T>(grad);
  return all_equal({{view(y.detach(), {batch * m, n}),
                     product<T>({pa, k, 1}, {pb, 1, n}, batch * m, n, k)},
                    {b.grad(), over_batch([&](std::int64_t i) {
                       return product<T>({pa + i * m * k, 1, k}, {pg + i * m * n, 1, n}, k, n, m);
                     })},
                    {left.grad(), over_batch([&](std::int64_t i) {
                       return product<T>({pg + i * m * n, n, 1}, {po + i * k * n, n, 1}, m, k, n);
                     })}})
         << "; matmul of " << batch << " matrices, m " << m << ", k " << k << ", n " << n;
}

template <class T>
::testing::AssertionResult bias_case(Draw& draw) {
  const auto d = draw.any_size(600), n = draw.terms(d) - draw.size(0, 1);
  const Tensor grad = randn({n, d}, 1, dtype_of<T>);
  const Tensor bias = Tensor::zeros({d}, dtype_of<T>).set_requires_grad(true);
  (Tensor::zeros({n, d}, dtype_of<T>) + bias).backward(grad);
  const Tensor sums = Tensor::from(column_sums(data_of<T>(grad), n, d, d), {d});
  return all_equal({{bias.grad(), sums}, {sum(grad, 0), sums}})
         << "; bias of " << d << " over " << n << " rows";
}

template <class T>
::testing::AssertionResult norm_case(Draw& draw) {
  constexpr auto kDtype = dtype_of<T>;
  const auto d = 2 * draw.any_size(20), heads = draw.size(1, 9);
  const auto n = draw.terms(d * heads) - draw.size(0, 1);
  const Shape shape{n, heads, d}, flat{n * heads, d};
  const Tensor x = randn(shape, 1, kDtype), grad = randn(shape, 2, kDtype);
  const Tensor angles = randn({n, d / 2}, 3, kDtype);
  const RopeTable table{.cos = cos(angles), .sin = sin(angles)};
  const auto weight_of = [&] { return randn({d}, 4, kDtype).set_requires_grad(true); };
  const Tensor by_heads = weight_of(), by_rows = weight_of(), turned = weight_of();
  const Tensor layer = weight_of(), added = weight_of();
  rms_norm(x, by_heads, 1e-6, heads).backward(grad);
  rms_norm(x, by_rows).backward(grad);
  rms_norm_rope(x, turned, table).backward(grad);
  layer_norm(view(x, flat), layer, Tensor()).backward(view(grad, flat));
  const Tensor normed = layer_norm(view(x, flat), Tensor(), Tensor());
  const T *px = data_of<T>(x), *pg = data_of<T>(grad);
  const T *pc = data_of<T>(table.cos), *ps = data_of<T>(table.sin), *pn = data_of<T>(normed);
  std::vector<T> terms, of_turned, of_layer;
  for (std::int64_t r = 0; r < n * heads; ++r) {
    const auto rstd = kernels::row_rstd(px + r * d, d, static_cast<T>(1e-6));
    std::vector<T> back(pg + r * d, pg + (r + 1) * d);
    for (std::int64_t i = 0; i < d / 2; ++i) {
      const auto at = r / heads * (d / 2) + i;
      const auto pair = kernels::rotate_pair(pg[r * d + i], pg[r * d + i + d / 2], pc[at], -ps[at]);
      back[static_cast<std::size_t>(i)] = pair.first;
      back[static_cast<std::size_t>(i + d / 2)] = pair.second;
    }
    for (std::int64_t i = 0; i < d; ++i) {
      const auto at = r * d + i;
      terms.push_back(pg[at] * (px[at] * rstd));
      of_turned.push_back(back[static_cast<std::size_t>(i)] * (px[at] * rstd));
      of_layer.push_back(pg[at] * pn[at]);
    }
  }
  return all_equal({{by_heads.grad(), head_sums(terms, n, heads, d)},
                    {by_rows.grad(), head_sums(terms, n * heads, 1, d)},
                    {turned.grad(), head_sums(of_turned, n, heads, d)},
                    {layer.grad(), head_sums(of_layer, n * heads, 1, d)}})
         << "; norms of " << n << " tokens, " << heads << " heads of " << d;
}

template <class T>
::testing::AssertionResult embedding_case(Draw& draw) {
  const auto d = draw.any_size(300), n = draw.terms(d) - draw.size(0, 1), rows = draw.any_size(50);
  const Tensor grad = randn({n, d}, 1, dtype_of<T>);
  Tensor ids = Tensor::empty({n}, Dtype::kInt64);
  for (auto& id : ids.mutable_data<std::int64_t>()) id = draw.any_size(rows) - 1;
  const Tensor weight = Tensor::zeros({rows, d}, dtype_of<T>).set_requires_grad(true);
  embedding(ids, weight).backward(grad);
  const auto values = integers(ids);
  std::vector<std::vector<std::int64_t>> positions(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < values.size(); ++i) {
    positions[static_cast<std::size_t>(values[i])].push_back(static_cast<std::int64_t>(i));
  }
  // A part without the id is absent: it has no sum.
  struct Sum {
    std::optional<T> value;
    Sum operator+(const Sum& right) const {
      if (!value || !right.value) return value ? *this : right;
      return {*value + *right.value};
    }
  };
  std::vector<T> expected;
  for (const auto& own : positions) {
    for (std::int64_t j = 0; j < d; ++j) {
      const auto sum = halved(0, n, 128, 16, [&](std::int64_t begin, std::int64_t terms) {
        Sum part;
        const auto end = begin + terms;
        for (auto at = std::ranges::lower_bound(own, begin); at != own.end() && *at < end; ++at) {
          part.value = part.value.value_or(0) + data_of<T>(grad)[*at * d + j];
        }
        return part;
      });
      expected.push_back(sum.value.value_or(0));
    }
  }
  return all_equal({{weight.grad(), Tensor::from(expected, {rows, d})}})
         << "; embedding of " << n << " positions, " << rows << " rows of " << d;
}

// A part in sixteen lanes that a tree joins, halves in double.
template <class T, class Term>
double lanes_sum(std::int64_t n, const Term& term) {
  return halved(0, n, 128, 16, [&](std::int64_t begin, std::int64_t terms) {
    std::array<T, 16> lanes{};
    for (std::int64_t i = 0; i < terms; ++i)
      lanes[static_cast<std::size_t>(i % 16)] += term(begin + i);
    for (const std::size_t half : {8, 4, 2, 1}) {
      for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    return static_cast<double>(lanes[0]);
  });
}

template <class T>
::testing::AssertionResult vocabulary_case(Draw& draw) {
  const auto rows = draw.size(1, 5), v = draw.terms(rows);
  const Tensor logits = randn({rows, v}, 1, dtype_of<T>);
  std::vector<T> nll, log_p, sums;
  std::vector<std::int64_t> targets;
  double total = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const x = data_of<T>(logits) + r * v;
    const T largest = *std::max_element(x, x + v);
    const auto exps = lanes_sum<T>(v, [&](std::int64_t i) { return kernels::exp(x[i] - largest); });
    targets.push_back(draw.size(0, v - 1));
    const T log_sum = math::log(static_cast<T>(exps)), own = x[targets.back()] - largest;
    nll.push_back(log_sum - own);
    log_p.push_back(own - log_sum);
    sums.push_back(static_cast<T>(lanes_sum<T>(v, [&](std::int64_t i) { return x[i]; })));
    total += static_cast<double>(nll.back());
  }
  const Tensor loss = cross_entropy(logits, Tensor::from(targets, {rows}), {.denominator = 1.0});
  std::vector<T> got;
  const Tensor all = log_softmax(logits);
  for (std::int64_t r = 0; r < rows; ++r) {
    got.push_back(data_of<T>(all)[r * v + targets[static_cast<std::size_t>(r)]]);
  }
  return all_equal({{loss, Tensor::full({}, total, dtype_of<T>)},
                    {Tensor::from(got, {rows}), Tensor::from(log_p, {rows})},
                    {sum(logits, 1), Tensor::from(sums, {rows})}})
         << "; " << rows << " rows of logits over " << v;
}

template <class T>
::testing::AssertionResult one_case(std::uint64_t number) {
  using Case = ::testing::AssertionResult (*)(Draw&);
  const Case cases[] = {linear_case<T>, grouped_case<T>, grouped_case<T>,   matmul_case<T>,
                        bias_case<T>,   norm_case<T>,    embedding_case<T>, vocabulary_case<T>};
  Draw draw(number);
  return cases[number % std::size(cases)](draw);
}

TEST(HalvedSums, HaveTheBitsOfTheirDefinitionAtRandomSizes) {
  const std::uint64_t count = full_suite() ? 1000 : kSanitized ? 40 : 160;
  for (std::uint64_t number = 0; number < count; ++number) {
    RankContext context({.threads = 1 + static_cast<int>(number / 8 % 3)});
    const RankContextGuard guard(context);
    EXPECT_TRUE(number % 5 == 4 ? one_case<double>(number) : one_case<float>(number))
        << "case " << number;
  }
}

// The logarithm of a sum that is near one shows its last bit; it is taken of the rounded sum.
TEST(HalvedSums, TakeTheLogarithmOfTheRoundedSum) {
  for (std::uint64_t row = 0; row < 64; ++row) {
    for (const std::int64_t v : {5, 3000}) {
      Tensor logits = randn({1, v}, row, Dtype::kFloat32);
      logits.mutable_data<float>()[0] = v == 5 ? 4.0F : 12.0F;
      const float* const x = data_of<float>(logits);
      const auto exps =
          lanes_sum<float>(v, [&](std::int64_t i) { return kernels::exp(x[i] - x[0]); });
      EXPECT_EQ(log_softmax(logits)[0][0].item(), -math::log(static_cast<float>(exps))) << row;
    }
  }
}

// A bias of one dimension over several: neighbours are one sum.
TEST(HalvedSums, TakeNeighbouringDimensionsAsOne) {
  const Tensor grad = randn({3, 200, 5}, 1, Dtype::kFloat32);
  const Tensor bias = Tensor::zeros({5}).set_requires_grad(true);
  (Tensor::zeros({3, 200, 5}) + bias).backward(grad);
  EXPECT_TRUE(
      bitwise_equal(bias.grad(), Tensor::from(column_sums(data_of<float>(grad), 600, 5, 5), {5})));
}

// PyTorch 1.13 on OpenBLAS has 7.9e-7 and 1.4e-6 here.
TEST(HalvedSums, KeepTheDigitsOfAWeightGradientOverManyRows) {
  for (const auto& [rows, most] : {std::pair{65536L, 7.9e-7}, {262144L, 1.4e-6}}) {
    const Random random(7, "uniform rows");
    const auto uniform = [&, rows = rows](std::uint64_t stream, std::int64_t columns) {
      std::vector<float> values(static_cast<std::size_t>(rows * columns));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(random.uniform(stream << 40 | i));
      }
      return Tensor::from(values, {rows, columns});
    };
    const Tensor x = uniform(1, 8), grad = uniform(2, 8);
    const Tensor weight = Tensor::zeros({8, 8}).set_requires_grad(true);
    linear(x, weight).backward(grad);
    double worst = 0;
    for (std::int64_t i = 0; i < 8; ++i) {
      for (std::int64_t j = 0; j < 8; ++j) {
        long double exact = 0;
        for (std::int64_t r = 0; r < rows; ++r) {
          exact += static_cast<long double>(data_of<float>(grad)[r * 8 + i]) *
                   static_cast<long double>(data_of<float>(x)[r * 8 + j]);
        }
        const auto got = static_cast<long double>(data_of<float>(weight.grad())[i * 8 + j]);
        worst = std::max(worst, static_cast<double>(std::abs(got - exact) / exact));
      }
    }
    EXPECT_LE(worst, most) << rows << " rows";
    RecordProperty("worst_error_" + std::to_string(rows), std::to_string(worst));
    std::cout << rows << " rows: worst error " << worst << '\n';
  }
}

TEST(HalvedSums, CountOnesPastTwoToThe24) {
  const std::int64_t rows = test::kSanitized ? (1 << 24) + 2 : 1 << 25;
  const Tensor ones = Tensor::ones({rows, 1});
  const Tensor weight = Tensor::zeros({1, 1}).set_requires_grad(true);
  linear(ones, weight).backward(ones);
  EXPECT_EQ(weight.grad().item(), static_cast<double>(rows));
  const Tensor bias = Tensor::zeros({1}).set_requires_grad(true);
  (ones + bias).backward(ones);
  EXPECT_EQ(bias.grad().item(), static_cast<double>(rows));
}

}  // namespace
}  // namespace moegrad::ops::halved_sums_test
