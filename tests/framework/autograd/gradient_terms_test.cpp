// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradient_terms.h"

#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/tensor/tensor_impl.h"
#include "tests/testing.h"

namespace moegrad::gradient_terms_test {
namespace {

using namespace test;

const Shape kShape = {4, 3};

Tensor term(std::size_t i) { return randn(kShape, 10 + i, Dtype::kFloat32); }

/// Whose gradient is the sum of `count` terms, whatever arrives.
class ManyTerms final : public Function {
 public:
  explicit ManyTerms(std::size_t count) : count_(count) {}
  std::string_view name() const override { return "many_terms"; }
  Tensor forward(const Tensor& x) { return clone(x); }
  TensorList backward(const TensorList& /*grads*/, InputMask /*needs*/) override {
    GradientTerms terms(*this, 0);
    for (std::size_t i = 0; i < count_; ++i) terms.push(term(i));
    return {terms.take()};
  }

 private:
  std::size_t count_;
};

/// One input or two, of which the first is what it returns.
class First final : public Function {
 public:
  std::string_view name() const override { return "first"; }
  Tensor forward(const Tensor& x) { return clone(x); }
  Tensor forward(const Tensor& x, const Tensor& /*other*/) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    TensorList all = {clone(grads[0])};
    if (edges().size() == 2) all.push_back(Tensor::zeros(kShape));
    return all;
  }
};

Tensor tree_of(std::size_t count, Dtype node) {
  TreeSum sum;
  for (std::size_t i = 0; i < count; ++i) sum.push(to_dtype(term(i), node));
  return to_dtype(sum.take(), Dtype::kFloat32);
}

TEST(GradientTerms, AreAddedAlongTheTreeOfSuccessiveTerms) {
  for (const std::size_t count : {1, 2, 3, 4, 7, 8}) {
    const Tensor leaf = randn(kShape, 1, Dtype::kFloat32, true);
    apply<ManyTerms>(made_with(count), leaf).backward(Tensor::ones(kShape));
    EXPECT_TRUE(bitwise_equal(leaf.grad(), tree_of(count, Dtype::kFloat32))) << count;
    EXPECT_TRUE(leaf.impl()->leaf_state().summed_terms);
  }
}

TEST(GradientTerms, AreRoundedAsTheLeafsReductionRoundsThem) {
  for (const auto node : {Dtype::kBFloat16, Dtype::kFloat64}) {
    const Tensor expected = tree_of(4, node);
    EXPECT_FALSE(bitwise_equal(expected, tree_of(4, Dtype::kFloat32)));
    const Tensor leaf = randn(kShape, 1, Dtype::kFloat32, true);
    leaf.impl()->leaf_state().node_dtype = node;
    apply<ManyTerms>(made_with(std::size_t{4}), leaf).backward(Tensor::ones(kShape));
    EXPECT_TRUE(bitwise_equal(leaf.grad(), expected));

    // The leaf is found behind Functions of one input, such as a view.
    const Tensor behind = randn(kShape, 1, Dtype::kFloat32, true);
    behind.impl()->leaf_state().node_dtype = node;
    apply<ManyTerms>(made_with(std::size_t{4}), apply<First>(behind))
        .backward(Tensor::ones(kShape));
    EXPECT_TRUE(bitwise_equal(behind.grad(), expected));
  }
}

/// As ManyTerms, for the second of its inputs.
class TermsOfTheSecond final : public Function {
 public:
  std::string_view name() const override { return "terms_of_the_second"; }
  Tensor forward(const Tensor& x, const Tensor& /*weight*/) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    GradientTerms terms(*this, 1);
    for (std::size_t i = 0; i < 4; ++i) terms.push(term(i));
    return {clone(grads[0]), terms.take()};
  }
};

TEST(GradientTerms, BelongToTheInputThatIsNamed) {
  const Tensor x = randn(kShape, 1, Dtype::kFloat32, true);
  const Tensor weight = randn(kShape, 2, Dtype::kFloat32, true);
  weight.impl()->leaf_state().node_dtype = Dtype::kBFloat16;
  apply<TermsOfTheSecond>(x, weight).backward(Tensor::ones(kShape));
  EXPECT_TRUE(bitwise_equal(weight.grad(), tree_of(4, Dtype::kBFloat16)));
  EXPECT_TRUE(weight.impl()->leaf_state().summed_terms);
  EXPECT_FALSE(x.impl()->leaf_state().summed_terms);
}

TEST(GradientTerms, OfWhatIsNoLeafAreSummedInItsOwnDtype) {
  const Tensor a = randn(kShape, 1, Dtype::kFloat32, true);
  const Tensor b = randn(kShape, 2, Dtype::kFloat32, true);
  a.impl()->leaf_state().node_dtype = Dtype::kBFloat16;
  apply<ManyTerms>(made_with(std::size_t{4}), apply<First>(a, b)).backward(Tensor::ones(kShape));
  EXPECT_TRUE(bitwise_equal(a.grad(), tree_of(4, Dtype::kFloat32)));
  EXPECT_FALSE(a.impl()->leaf_state().summed_terms);
}

}  // namespace
}  // namespace moegrad::gradient_terms_test
