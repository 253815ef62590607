// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, L tokens of one document, Nq query heads.

// Attention with masks, windows and dropout, against whole rows of weights (attention_by_steps.h).

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/autograd/gradcheck.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/attention.h"
#include "ops/kernels/attention_backward.h"
#include "ops/kernels/attention_forward.h"
#include "ops/views.h"
#include "tests/ops/attention_by_steps.h"
#include "tests/testing.h"

namespace moegrad::ops::attention_options_test {
namespace {

using namespace moegrad::test;

using Lengths = std::vector<std::int64_t>;
constexpr auto kInfinity = std::numeric_limits<double>::infinity();

// The size of tiles, and documents around it.
const Lengths kLengths{
    1, 17, 0, kernels::kKeyBlock - 1, kernels::kKeyBlock, 2 * kernels::kKeyBlock + 9};

enum class Allowed { kAll, kSome, kSomeByHead };

// What options are made of, for any number of tokens.
struct Case {
  std::string what;
  AttentionMask mask = AttentionMask::kCausal;
  std::int64_t window = 0;
  Allowed allowed = Allowed::kAll;
  double dropout = 0;
  bool ids = false;

  AttentionOptions options(std::int64_t tokens, std::int64_t heads) const;
};

// Two of three pairs, but for every fifth query only keys after the first tile, and for every
// seventh none.
Tensor some_allowed(const Shape& shape) {
  Tensor allowed = Tensor::empty(shape, Dtype::kBool);
  const auto tokens = shape[-1];
  const Random random(3, "allowed");
  std::int64_t i = 0;
  for (auto& pair : allowed.mutable_data<bool>()) {
    const auto query = i / tokens % tokens, key = i % tokens;
    pair = random.integer(static_cast<std::uint64_t>(i), 3) > 0 && query % 7 != 3 &&
           (query % 5 != 4 || key > 2 * kernels::kKeyBlock);
    ++i;
  }
  return allowed;
}

AttentionOptions Case::options(std::int64_t tokens, std::int64_t heads) const {
  AttentionOptions options{.mask = mask, .window = window};
  if (allowed == Allowed::kSome) options.allowed = some_allowed({tokens, tokens});
  if (allowed == Allowed::kSomeByHead) options.allowed = some_allowed({heads, tokens, tokens});
  if (dropout == 0) return options;
  options.dropout = {.p = dropout, .seed = 7, .purpose = "layers.0.attention"};
  if (!ids) return options;
  Tensor values = Tensor::empty({tokens}, Dtype::kInt64);
  const Random random(4, "ids");
  std::uint64_t t = 0;
  for (auto& id : values.mutable_data<std::int64_t>()) {
    id = random.integer(t++, std::int64_t{1} << 32);
  }
  options.dropout->ids = values;
  return options;
}

std::vector<Case> cases() {
  constexpr auto kFull = AttentionMask::kFull, kWindow = AttentionMask::kSlidingWindow;
  std::vector<Case> all{{.what = "full", .mask = kFull}};
  for (const std::int64_t window : {1, 2, 24, 95, 96, 97, 130, 100'000}) {
    all.push_back(
        {.what = "a window of " + std::to_string(window), .mask = kWindow, .window = window});
  }
  all.push_back({.what = "allowed", .allowed = Allowed::kSome});
  all.push_back({.what = "allowed by head", .allowed = Allowed::kSomeByHead});
  all.push_back({.what = "full, allowed by head", .mask = kFull, .allowed = Allowed::kSomeByHead});
  all.push_back({.what = "dropout", .dropout = 0.3});
  all.push_back({.what = "dropout by ids", .dropout = 0.3, .ids = true});
  all.push_back({.what = "full, dropout", .mask = kFull, .dropout = 0.6});
  all.push_back({.what = "a window, allowed and dropout",
                 .mask = kWindow,
                 .window = 50,
                 .allowed = Allowed::kSome,
                 .dropout = 0.3});
  all.push_back({.what = "full, allowed by head and dropout by ids",
                 .mask = kFull,
                 .allowed = Allowed::kSomeByHead,
                 .dropout = 0.3,
                 .ids = true});
  return all;
}

struct Inputs {
  Inputs(const Lengths& lengths, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t dim,
         Dtype dtype = Dtype::kFloat64)
      : documents(Documents::of_lengths(lengths)),
        q(randn({documents.tokens(), query_heads, dim}, 1, dtype, true)),
        k(randn({documents.tokens(), kv_heads, dim}, 2, dtype, true)),
        v(randn({documents.tokens(), kv_heads, dim}, 3, dtype, true)),
        grad_out(randn({documents.tokens(), query_heads, dim}, 4, dtype)),
        scale(1 / std::sqrt(static_cast<double>(dim))) {}

  AttentionOptions options(const Case& of) const { return of.options(q.dim(0), q.dim(1)); }
  // The tokens of one document alone.
  Inputs document(std::size_t i) const {
    const auto begin = documents.offsets()[i], end = documents.offsets()[i + 1];
    const auto part = [&](const Tensor& x) { return clone(x.detach().slice(0, begin, end)); };
    Inputs alone(*this);
    alone.documents = Documents::one(end - begin);
    alone.q = part(q).set_requires_grad(true);
    alone.k = part(k).set_requires_grad(true);
    alone.v = part(v).set_requires_grad(true);
    alone.grad_out = part(grad_out);
    return alone;
  }

  Documents documents;
  Tensor q, k, v, grad_out;
  double scale;
};

// out and the gradients of q, k and v
using Results = TensorList;

Results run(const Inputs& in, const AttentionOptions& options) {
  for (const auto& leaf : {in.q, in.k, in.v}) leaf.set_grad({});
  const Tensor out = attention(in.q, in.k, in.v, in.documents, in.scale, options);
  out.backward(in.grad_out);
  return {out.detach(), in.q.grad(), in.k.grad(), in.v.grad()};
}

// In float64.
Results by_steps(const Inputs& in, const AttentionOptions& options) {
  const auto wide = [](const Tensor& x) { return clone(to_dtype(x.detach(), Dtype::kFloat64)); };
  TensorList leaves{wide(in.q), wide(in.k), wide(in.v)};
  for (auto& leaf : leaves) leaf.set_requires_grad(true);
  const Tensor out =
      attention_by_steps(leaves[0], leaves[1], leaves[2], in.documents, in.scale, options);
  out.backward(wide(in.grad_out));
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

void expect_close(const Results& actual, const Results& expected, double tolerance,
                  const std::string& what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(all_close(actual[i], expected[i], tolerance, tolerance)) << what << ", " << i;
  }
}

void expect_same_bits(const Results& a, const Results& b, const std::string& what) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(a[i], b[i])) << what << ", " << i;
  }
}

TEST(AttentionOptions, EqualWholeRows) {
  for (const auto& each : cases()) {
    for (const auto& [query_heads, kv_heads, dim] :
         std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {2, 2, 5}, {6, 2, 16}}) {
      const Inputs in(kLengths, query_heads, kv_heads, dim);
      const auto options = in.options(each);
      expect_close(run(in, options), by_steps(in, options), 1e-12, each.what);
    }
  }
}

TEST(AttentionOptions, EqualWholeRowsWithMoreQueryHeadsThanABlockHasRows) {
  for (const auto& each : cases()) {
    const Inputs in({1, 40, 110}, 131, 1, 3);
    const auto options = in.options(each);
    expect_close(run(in, options), by_steps(in, options), 1e-12, each.what);
  }
}

TEST(AttentionOptions, Float32IsCloseToFloat64) {
  for (const auto& each : cases()) {
    const Inputs in(kLengths, 4, 2, 64, Dtype::kFloat32);
    const auto options = in.options(each);
    expect_close(run(in, options), by_steps(in, options), 2e-5, each.what);
  }
}

TEST(AttentionOptions, BFloat16IsComputedInFloat32AndRoundedOnce) {
  for (const auto& each : cases()) {
    const Inputs in({1, 70, 130}, 4, 2, 16, Dtype::kBFloat16);
    Inputs wide(in);
    for (auto* x : {&wide.q, &wide.k, &wide.v}) {
      *x = to_dtype(x->detach(), Dtype::kFloat32).set_requires_grad(true);
    }
    wide.grad_out = to_dtype(wide.grad_out, Dtype::kFloat32);
    const auto options = in.options(each);
    const auto got = run(in, options), expected = run(wide, options);
    EXPECT_TRUE(bitwise_equal(got[0], to_dtype(expected[0], Dtype::kBFloat16))) << each.what;
    // The scores' gradients depend on the rounded result.
    EXPECT_TRUE(all_close(got[1], expected[1], 0x1p-6, 0x1p-6)) << each.what;
    EXPECT_TRUE(all_close(got[2], expected[2], 0x1p-6, 0x1p-6)) << each.what;
    EXPECT_TRUE(bitwise_equal(got[3], expected[3])) << each.what;
  }
}

TEST(AttentionOptions, GradientsMatchFiniteDifferences) {
  for (const auto& each : cases()) {
    // Every element of a few tokens, and a projection of the Jacobian of several tiles.
    for (const bool few : {true, false}) {
      const Inputs in(few ? Lengths{3, 0, 1, 5} : Lengths{7, 100}, 4, 2, 3);
      auto options = in.options(each);
      if (few && each.window > 1) options.window = 3;
      const auto f = [&](const TensorList& x) {
        return TensorList{attention(x[0], x[1], x[2], in.documents, 0.4, options)};
      };
      EXPECT_TRUE(gradients_agree(f, {in.q, in.k, in.v}, {.fast_mode = !few})) << each.what;
    }
  }
}

TEST(AttentionOptions, ComputeOnlyTheGradientsThatAreNeeded) {
  for (const auto& each : cases()) {
    const Inputs in({17, 130}, 4, 2, 8);
    const auto options = in.options(each);
    const auto all = run(in, options);
    for (std::size_t wanted = 0; wanted < 3; ++wanted) {
      TensorList inputs{clone(in.q.detach()), clone(in.k.detach()), clone(in.v.detach())};
      inputs[wanted].set_requires_grad(true);
      attention(inputs[0], inputs[1], inputs[2], in.documents, in.scale, options)
          .backward(in.grad_out);
      EXPECT_TRUE(bitwise_equal(inputs[wanted].grad(), all[wanted + 1])) << each.what;
    }
  }
}

TEST(AttentionOptions, PackedDocumentsGiveTheBitsOfSeparateOnes) {
  for (const auto& each : cases()) {
    if (each.dropout > 0 && !each.ids) continue;  // the numbers of tokens are their ids
    const Inputs packed(kLengths, 4, 2, 8, Dtype::kFloat32);
    const auto options = packed.options(each);
    const auto results = run(packed, options);
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      const auto begin = packed.documents.offsets()[i], end = packed.documents.offsets()[i + 1];
      auto own = options;
      if (options.allowed.defined()) {
        own.allowed = options.allowed.slice(-2, begin, end).slice(-1, begin, end);
      }
      if (options.dropout) own.dropout->ids = options.dropout->ids.slice(0, begin, end);
      Results part;
      for (const auto& x : results) part.push_back(clone(x.slice(0, begin, end)));
      expect_same_bits(run(packed.document(i), own), part, each.what);
    }
  }
}

TEST(AttentionOptions, GiveTheSameBitsWithThreeThreads) {
  for (const auto& each : cases()) {
    const Inputs in(kLengths, 4, 2, 8, Dtype::kFloat32);
    const auto options = in.options(each);
    const auto one = run(in, options);
    RankContext::current().set_threads(3);
    const auto three = run(in, options);
    RankContext::current().set_threads(1);
    expect_same_bits(three, one, each.what);
  }
}

TEST(AttentionOptions, ThatHideNothingGiveTheBitsOfNone) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Inputs in({17, 230}, 4, 2, 8, dtype);
    const auto plain = run(in, {});
    constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
    for (const auto window : {std::int64_t{230}, std::int64_t{247}, std::int64_t{248}, kLargest}) {
      expect_same_bits(run(in, {.mask = AttentionMask::kSlidingWindow, .window = window}), plain,
                       "a window of " + std::to_string(window));
    }
    const Tensor all = Tensor::from(std::vector<bool>(247UL * 247, true), {247, 247});
    expect_same_bits(run(in, {.allowed = all}), plain, "all allowed");
    expect_same_bits(run(in, {.dropout = {{.p = 0}}}), plain, "nothing dropped");
  }
}

TEST(AttentionOptions, AllowedMayBeStrided) {
  const Inputs in({5, 120}, 2, 1, 4);
  const Tensor allowed = some_allowed({125, 125});
  const auto expected = run(in, {.allowed = clone(transpose(allowed, 0, 1))});
  expect_same_bits(run(in, {.allowed = transpose(allowed, 0, 1)}), expected, "transposed");
}

// Whether the rows of each token from `begin` to `end` are zeros, to the bit.
bool zeros(const Tensor& x, std::int64_t begin, std::int64_t end) {
  const Tensor part = clone(x.detach().slice(0, begin, end));
  return bitwise_equal(part, zeros_like(part));
}

TEST(AttentionOptions, ATokenThatAttendsToNoneGetsZerosAndGivesNoGradient) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto mask : {AttentionMask::kCausal, AttentionMask::kFull}) {
      const Inputs in({130}, 4, 2, 8, dtype);
      Tensor allowed = Tensor::empty({130, 130}, Dtype::kBool);
      std::int64_t i = 0;
      for (auto& pair : allowed.mutable_data<bool>()) {
        const auto query = i / 130, key = i % 130;
        pair = (query < 20 || query >= 125) && key < 100;
        ++i;
      }
      for (const double p : {0.0, 0.5}) {
        const auto results = run(in, {.mask = mask, .allowed = allowed, .dropout = {{.p = p}}});
        for (std::size_t result : {0U, 1U}) {
          EXPECT_TRUE(zeros(results[result], 20, 125)) << result;
          EXPECT_FALSE(zeros(results[result], 124, 126)) << result;
        }
        for (std::size_t result : {2U, 3U}) {
          EXPECT_TRUE(zeros(results[result], 100, 130)) << result;
          EXPECT_FALSE(zeros(results[result], 99, 101)) << result;
        }
      }
    }
  }
}

TEST(AttentionOptions, ScoresThatOverflowAreNoneThatAreHidden) {
  Inputs in({3}, 1, 1, 1);
  in.q = Tensor::from(std::vector<double>{1e200, 1, 1}, {3, 1, 1});
  in.k = Tensor::from(std::vector<double>{-1e200, 1, 1}, {3, 1, 1});
  const Tensor allowed = Tensor::from(
      std::vector<bool>{true, false, false, false, false, false, true, true, true}, {3, 3});
  const Tensor out = attention(in.q, in.k, in.v, in.documents, 1.0, {.allowed = allowed});
  EXPECT_TRUE(std::isnan(out.data<double>()[0]));
  EXPECT_EQ(out.data<double>()[1], 0);
  EXPECT_TRUE(std::isfinite(out.data<double>()[2]));
}

TEST(AttentionOptions, TilesOutsideOfTheWindowAreNotRead) {
  const std::int64_t tokens = 10 * kernels::kKeyBlock, window = 20;
  const Inputs in({tokens}, 4, 2, 8, Dtype::kFloat32);
  const AttentionOptions options{.mask = AttentionMask::kSlidingWindow, .window = window};
  const auto expected = run(in, options);
  // Within two tiles, a number that is none meets the zero weights of masked pairs.
  const auto begin = 4 * kernels::kKeyBlock, end = 5 * kernels::kKeyBlock;
  const auto before = begin - 2 * kernels::kKeyBlock, after = end + 2 * kernels::kKeyBlock;
  Inputs spoilt(in);
  for (auto* x : {&spoilt.q, &spoilt.k, &spoilt.v}) {
    *x = clone(x->detach());
    Tensor part = x->slice(0, begin, end);
    fill_(part, std::numeric_limits<double>::quiet_NaN());
    x->set_requires_grad(true);
  }
  const auto got = run(spoilt, options);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(std::isnan(got[i][begin][0][0].item())) << i;
    for (const auto& [from, to] :
         {std::pair<std::int64_t, std::int64_t>{0, before}, {after, tokens}}) {
      EXPECT_TRUE(
          bitwise_equal(clone(got[i].slice(0, from, to)), clone(expected[i].slice(0, from, to))))
          << i;
    }
  }
}

// float64 rows [T, 64] in pages of their own, of which only rows begin ... end - 1 can be read.
class RowsInPages {
 public:
  RowsInPages(const Tensor& rows, std::int64_t begin, std::int64_t end)
      : size_(static_cast<std::size_t>(rows.numel()) * sizeof(double)),
        pages_(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    check(pages_ != MAP_FAILED, "no pages");
    std::ranges::copy(rows.data<double>(), static_cast<double*>(pages_));
    const auto page = static_cast<std::size_t>(getpagesize());
    const auto before = static_cast<std::size_t>(begin) * 64 * sizeof(double) / page * page;
    const auto to_end = static_cast<std::size_t>(end) * 64 * sizeof(double) + page - 1;
    const auto after = std::min(size_, to_end / page * page);
    check(mprotect(pages_, before, PROT_NONE) == 0, "not protected");
    check(mprotect(static_cast<char*>(pages_) + after, size_ - after, PROT_NONE) == 0,
          "not protected");
  }
  ~RowsInPages() { munmap(pages_, size_); }
  RowsInPages(const RowsInPages&) = delete;
  RowsInPages& operator=(const RowsInPages&) = delete;

  const double* data() const { return static_cast<const double*>(pages_); }

 private:
  std::size_t size_;
  void* pages_;
};

TEST(AttentionOptions, AQueryBlockReadsTheTilesOfItsWindowsAndNothingThatScratchHeld) {
  const std::int64_t tokens = 10 * kernels::kKeyBlock, window = 20, query_block = 4;
  const Inputs in({tokens}, 1, 1, 64);
  const Tensor expected = attention(in.q, in.k, in.v, in.documents, in.scale,
                                    {.mask = AttentionMask::kSlidingWindow, .window = window});
  const kernels::AttentionSizes sizes{
      .tokens = tokens, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
  const auto begin = query_block * sizes.query_block(), end = begin + sizes.query_block();
  const auto tile = (begin + 1 - window) / kernels::kKeyBlock * kernels::kKeyBlock;
  ASSERT_GT(tile, 2 * kernels::kKeyBlock);
  ASSERT_GT(end - window, tile + kernels::kKeyBlock);  // some rows see nothing of the first tile
  const RowsInPages k(in.k, tile, end), v(in.v, tile, end);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  Tensor scratch =
      Tensor::full({kernels::attention_forward_scratch<double>(sizes)}, nan, Dtype::kFloat64);
  Tensor out = Tensor::full({tokens, 1, 64}, nan, Dtype::kFloat64);
  std::vector<double> logsumexp(static_cast<std::size_t>(tokens), nan);
  kernels::attention_forward<double>(
      sizes, {.causal = true, .window = window}, in.q.data<double>().data(), k.data(), v.data(),
      in.scale, {.begin = 0, .end = tokens}, 0, query_block, out.mutable_data<double>().data(),
      logsumexp.data(), scratch.mutable_data<double>().data());
  const auto rows = [&](const Tensor& x) { return clone(x.detach().slice(0, begin, end)); };
  EXPECT_TRUE(bitwise_equal(rows(out), rows(expected)));
}

// Bytes that the op takes for each part of its work, all of the arena.
struct Bytes {
  std::int64_t forward, kept, backward;
  bool operator==(const Bytes&) const = default;
};

Bytes bytes_of(const Inputs& in, const AttentionOptions& options) {
  auto& arena = *RankContext::current().arena();
  const auto before = arena.live().total();
  arena.reset_peak();
  const Tensor out = attention(in.q, in.k, in.v, in.documents, in.scale, options);
  const auto forward = arena.peak().total() - before;
  const auto kept = arena.live().total() - before;
  arena.reset_peak();
  const auto grads = out.grad_fn()->backward({in.grad_out}, InputMask(7));
  return {forward, kept, arena.peak().total() - before - kept};
}

TEST(AttentionOptions, TakeTheResultsAndTheScratchOfOneThread) {
  for (const auto& each : cases()) {
    for (const std::int64_t tokens : {200, 400}) {
      const Inputs in({tokens / 2, tokens / 2}, 4, 2, 8, Dtype::kFloat32);
      const kernels::AttentionSizes sizes{
          .tokens = tokens, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
      const auto queries = tokens * 4 * 8 * 4, keys = tokens * 2 * 8 * 4;  // bytes
      const auto logsumexp = tokens * 4 * 4;
      const bool own_ids = each.dropout > 0 && !each.ids;
      const auto kept = queries + logsumexp + (own_ids ? tokens * 8 : 0);
      const Bytes expected{
          kept + 4 * kernels::attention_forward_scratch<float>(sizes), kept,
          queries + 2 * keys + 4 * kernels::attention_backward_scratch<float>(sizes)};
      const auto options = in.options(each);
      EXPECT_TRUE(bytes_of(in, options) == expected) << each.what;
    }
  }
}

TEST(AttentionOptions, SixtyFiveThousandTokensFitWhereNoMatrixDoes) {
  constexpr std::int64_t kTokens = 65'536;
  auto& arena = *RankContext::current().arena();
  const Inputs in({kTokens}, 1, 1, 4, Dtype::kFloat32);
  arena.set_budget(arena.live().total() + 64 * kTokens + 1'000'000);
  const AttentionOptions options{
      .mask = AttentionMask::kSlidingWindow, .window = 64, .dropout = {{.p = 0.1}}};
  const auto results = run(in, options);
  arena.set_budget(0);
  // The last tokens see what they see alone.
  const std::int64_t last = 300;
  Inputs end = in.document(0);
  for (auto* x : {&end.q, &end.k, &end.v}) {
    *x = clone(x->detach().slice(0, kTokens - last, kTokens)).set_requires_grad(true);
  }
  end.grad_out = clone(end.grad_out.slice(0, kTokens - last, kTokens));
  end.documents = Documents::one(last);
  auto own = options;
  own.dropout->ids = Tensor::arange(kTokens - last, kTokens);
  const auto expected = by_steps(end, own);
  const auto tail = [](const Tensor& x) { return clone(x.slice(0, x.dim(0) - 100, x.dim(0))); };
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(all_close(tail(results[i]), tail(expected[i]), 2e-5, 2e-5)) << i;
  }
}

TEST(AttentionOptions, CountTheProductsOfPairsThatAreSeen) {
  const Inputs in({3, 0, 5}, 4, 2, 8);
  const auto pairs = [&](const AttentionOptions& options) {
    const auto function = attention(in.q, in.k, in.v, in.documents, 1.0, options).grad_fn();
    return function->flops() / (4.0 * 4 * 8);
  };
  EXPECT_EQ(pairs({}), 6 + 15);
  EXPECT_EQ(pairs({.mask = AttentionMask::kFull}), 9 + 25);
  EXPECT_EQ(pairs({.mask = AttentionMask::kSlidingWindow, .window = 1}), 8);
  EXPECT_EQ(pairs({.mask = AttentionMask::kSlidingWindow, .window = 4}), 6 + 14);
}

}  // namespace
}  // namespace moegrad::ops::attention_options_test
