// SPDX-License-Identifier: Apache-2.0

#include <bit>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/autograd/grad.h"
#include "framework/autograd/leaf_gradients.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/tensor_impl.h"
#include "tests/testing.h"

namespace moegrad::placed_sum_test {
namespace {

using namespace test;

const Shape kShape = {4, 3};
constexpr std::int64_t kBytes = 12 * 4;

/// What use `u` of a weight brings from source `s`.
Tensor term(int u, int s) {
  return randn(kShape, static_cast<std::uint64_t>(100 * u + s), Dtype::kFloat32);
}

/// The canonical sum of these uses, in order of arrival, of `sources` sources.
Tensor expected_sum(const std::vector<int>& uses, int sources, Dtype node = Dtype::kFloat32) {
  TreeSum tree;
  for (int s = 0; s < sources; ++s) {
    Tensor sum = term(uses.front(), s);
    for (std::size_t u = 1; u < uses.size(); ++u) add_(sum, term(uses[u], s));
    tree.push(to_dtype(sum, node));
  }
  return to_dtype(tree.take(), Dtype::kFloat32);
}

/// Use `use` of a weight, whose rows come from `sources` sources. `order`, if given, swaps their
/// places.
class Use final : public Function {
 public:
  Use(int use, int sources, std::vector<int> order = {})
      : use_(use), sources_(sources), order_(std::move(order)) {}
  std::string_view name() const override { return "use"; }
  Tensor forward(const Tensor& x, const Tensor& /*weight*/) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const bool apart = keeps_sources(*this, 1);
    TreeSum sum;
    for (int s = 0; s < sources_; ++s) {
      if (!apart) {
        sum.push(term(use_, s));
        continue;
      }
      const int place = order_.empty() ? s : order_[static_cast<std::size_t>(s)];
      InputGradientSink(*this, 1)(term(use_, s), {.source = place, .sources = sources_});
    }
    return {clone(grads[0]), sum.take()};
  }

 private:
  int use_, sources_;
  std::vector<int> order_;
};

Tensor weight() { return randn(kShape, 1, Dtype::kFloat32, true); }
Tensor input() { return randn(kShape, 2, Dtype::kFloat32, true); }

Tensor use(const Tensor& x, const Tensor& w, int number, int sources,
           const std::vector<int>& order = {}) {
  return apply<Use>(made_with(number, sources, order), x, w);
}

TEST(PlacedSum, IsATreeOverSources) {
  for (const int sources : {1, 2, 3, 4, 7, 8}) {
    const Tensor w = weight();
    use(input(), w, 0, sources).backward(Tensor::ones(kShape));
    EXPECT_TRUE(bitwise_equal(w.grad(), expected_sum({0}, sources))) << sources;
  }
}

// As where a rank multiplies its own rows: its uses are added before they meet those of others.
TEST(PlacedSum, OfAWeightThatIsUsedThreeTimesAddsTheUsesOfEachSourceFirst) {
  for (const int sources : {2, 3, 4}) {
    const Tensor w = weight();
    use(use(use(input(), w, 0, sources), w, 1, sources), w, 2, sources)
        .backward(Tensor::ones(kShape));
    const Tensor expected = expected_sum({2, 1, 0}, sources);
    EXPECT_TRUE(bitwise_equal(w.grad(), expected)) << sources;
    EXPECT_FALSE(bitwise_equal(expected_sum({0, 1, 2}, sources), expected)) << sources;

    const Tensor swapped = weight();
    std::vector<int> order;
    for (int s = 0; s < sources; ++s) order.push_back(s);
    std::swap(order[0], order[1]);
    use(use(use(input(), swapped, 0, sources), swapped, 1, sources, order), swapped, 2, sources)
        .backward(Tensor::ones(kShape));
    EXPECT_FALSE(bitwise_equal(swapped.grad(), expected)) << sources;
  }
}

TEST(PlacedSum, IsTheSameWhereItIsRecomputed) {
  for (const bool as_input : {false, true}) {
    for (const bool two_calls : {false, true}) {
      const Tensor w = weight(), x = input();
      const auto body = [&](const TensorList& in) {
        const Tensor& own = as_input ? in[1] : w;
        return TensorList{use(use(in[0], own, 0, 4), own, 1, 4)};
      };
      const Tensor out = checkpoint(body, as_input ? TensorList{x, w} : TensorList{x})[0];
      const Tensor y = use(out, w, 2, 4);
      if (two_calls) {
        backward_to_inputs({y}, {Tensor::ones(kShape)}, {x}).run();
      } else {
        y.backward(Tensor::ones(kShape));
      }
      EXPECT_TRUE(bitwise_equal(w.grad(), expected_sum({2, 1, 0}, 4))) << as_input << two_calls;
    }
  }
}

// An input of a body has no accumulator that would round what it gets.
TEST(PlacedSum, OfAViewOfAnInputOfABodyIsATreeOfItsOwn) {
  const Tensor w = weight();
  const auto body = [](const TensorList& in) {
    return TensorList{use(in[0], in[1].slice(0, 0, 4), 0, 4)};
  };
  checkpoint(body, {input(), w})[0].backward(Tensor::ones(kShape));
  EXPECT_TRUE(bitwise_equal(w.grad(), expected_sum({0}, 4)));
}

TEST(PlacedSum, IsWhatGradAndAHookGet) {
  const Tensor w = weight(), x = input();
  Tensor seen;
  const auto hook = w.register_hook([&](const Tensor& grad) {
    seen = clone(grad);
    return Tensor();
  });
  const auto out = [&] { return use(use(x, w, 0, 4), w, 1, 4); };
  out().backward(Tensor::ones(kShape));
  const Tensor expected = expected_sum({1, 0}, 4);
  EXPECT_TRUE(bitwise_equal(seen, expected));
  EXPECT_TRUE(bitwise_equal(w.grad(), expected));
  EXPECT_TRUE(bitwise_equal(autograd::grad({out()}, {w}, {Tensor::ones(kShape)})[0], expected));
}

// What names no source, such as a penalty on the weight, stays outside the tree.
TEST(PlacedSum, AddsWhatNamesNoSourceBesideTheTree) {
  const Tensor w = weight();
  use(use(input(), w, 0, 4), w, 1, 1).backward(Tensor::ones(kShape));
  Tensor expected = term(1, 0);
  add_(expected, expected_sum({0}, 4));
  EXPECT_TRUE(bitwise_equal(w.grad(), expected));
}

TEST(PlacedSum, OfWhatIsNoLeafIsATreeOfItsOwn) {
  const Tensor w = weight();
  use(use(input(), w.slice(0, 0, 4), 0, 4), w.slice(0, 0, 4), 1, 4).backward(Tensor::ones(kShape));
  Tensor expected = expected_sum({1}, 4);
  add_(expected, expected_sum({0}, 4));
  EXPECT_TRUE(bitwise_equal(w.grad(), expected));
}

/// An accumulator that rounds its nodes, as a reduction does.
class Rounding final : public GradientAccumulator {
 public:
  Rounding(const Tensor& leaf, Dtype node) : leaf_(leaf), arrivals_(node) {
    leaf_.impl()->leaf_state().accumulator = this;
  }
  ~Rounding() override { leaf_.impl()->leaf_state().accumulator = nullptr; }
  void add(Tensor grad, const GradientPlace& place) override {
    arrivals_.add(leaf_, std::move(grad), place, sum);
  }
  void complete() override { sum = sum_in_tree(arrivals_.complete(leaf_).at(0)); }
  Tensor sum;

 private:
  Tensor leaf_;
  GradientArrivals arrivals_;
};

TEST(PlacedSum, RoundsEachNodeAsTheReductionDoes) {
  for (const auto node : {Dtype::kBFloat16, Dtype::kFloat64}) {
    const Tensor w = weight();
    const Rounding rounding(w, node);
    use(use(input(), w, 0, 4), w, 1, 4).backward(Tensor::ones(kShape));
    const Tensor expected = expected_sum({1, 0}, 4, node);
    EXPECT_TRUE(bitwise_equal(rounding.sum, expected));
    EXPECT_FALSE(bitwise_equal(expected, expected_sum({1, 0}, 4)));
    EXPECT_FALSE(w.grad().defined());
  }
}

TEST(PlacedSum, WhoseNodesAreRoundedMustKnowOfSources) {
  const Tensor w = weight();
  const Rounding rounding(w, Dtype::kBFloat16);
  const Tensor out = use(input(), w.slice(0, 0, 4), 0, 4);
  w.storage().set_name("w");
  EXPECT_EQ(message_of<Error>([&] { out.backward(Tensor::ones(kShape)); }),
            "use: input 1 must be the parameter 'w' itself, whose rows have several sources, got "
            "the result of slice");
}

// The last use adds each source to the tree at once; the others wait.
TEST(PlacedSum, KeepsFewPartialsOfTheLastUse) {
  const auto live = [] { return RankContext::current().arena()->live()[MemoryTag::kGradients]; };
  const auto before = live();
  const auto brought = [](int use, int source) {
    const MemoryTagGuard tag(MemoryTag::kGradients);
    return term(use, source);
  };
  PlacedSum sum;
  for (int s = 0; s < 8; ++s) {
    sum.add(brought(0, s), {.source = s, .sources = 8, .last_use = false});
    EXPECT_EQ(live() - before, (s + 1) * kBytes);
  }
  std::int64_t partials = 8;
  for (int s = 0; s < 8; ++s) {
    sum.add(brought(1, s), {.source = s, .sources = 8});
    partials = 7 - s + std::popcount(static_cast<unsigned>(s + 1));
    EXPECT_EQ(live() - before, partials * kBytes) << s;
  }
  EXPECT_TRUE(bitwise_equal(sum.take().at(0).at(0), expected_sum({0, 1}, 8)));
  EXPECT_TRUE(sum.empty());
}

TEST(PlacedSum, LosesNothingThatComesAfterTheLastUse) {
  PlacedSum sum;
  for (const int u : {0, 1}) {
    for (int s = 0; s < 3; ++s) sum.add(term(u, s), {.source = s, .sources = 3});
  }
  Tensor expected = expected_sum({0}, 3);
  add_(expected, expected_sum({1}, 3));
  EXPECT_TRUE(bitwise_equal(sum.take().at(0).at(0), expected));
}

TEST(PlacedSum, RefusesPlacesThatDoNotFit) {
  PlacedSum sum;
  const auto message = [&](int source, int sources) {
    return message_of<ValueError>(
        [&] { sum.add(term(0, 0), {.source = source, .sources = sources}); });
  };
  EXPECT_EQ(message(2, 2), "gradient place: source must be in [0, 2), got 2");
  EXPECT_EQ(message(-1, 2), "gradient place: source must be in [0, 2), got -1");
  sum.add(term(0, 0), {.source = 0, .sources = 2, .last_use = false});
  EXPECT_EQ(message(0, 3), "gradient place: sources must be 2 as before, got 3");
}

}  // namespace
}  // namespace moegrad::placed_sum_test
