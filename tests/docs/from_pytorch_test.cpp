// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "moegrad.h"
#include "tests/source_dir.h"
#include "tests/testing.h"

// Every expression in the second columns of docs/from_pytorch.md stands here, with its value.

namespace moegrad::from_pytorch_test {
namespace {

std::string text_of(const char* file) {
  std::ifstream stream(test::source_dir() / file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string without_spaces(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s+"), "");
}

void expect_equal(const Tensor& got, const Tensor& wanted) {
  EXPECT_TRUE(ops::equal(got, wanted)) << got << "\nwanted " << wanted;
}

void expect_close(const Tensor& got, double wanted) { EXPECT_NEAR(got.item(), wanted, 1e-6); }

TEST(FromPyTorch, TheExpressionsOfThePageStandHere) {
  const std::string page = text_of("docs/from_pytorch.md");
  const std::string here = without_spaces(text_of("tests/docs/from_pytorch_test.cpp"));
  const std::regex row("\\n\\| (?:[^|]|\\\\\\|)* \\| (.*) \\|(?=\\n)"), code("`([^`]+)`");
  int expressions = 0;
  for (auto line = std::sregex_iterator(page.begin(), page.end(), row);
       line != std::sregex_iterator(); ++line) {
    const std::string cell = (*line)[1];
    for (auto found = std::sregex_iterator(cell.begin(), cell.end(), code);
         found != std::sregex_iterator(); ++found) {
      const std::string expression = (*found)[1];
      if (expression.find_first_of("(.[") == std::string::npos) continue;  // a name alone
      ++expressions;
      EXPECT_NE(here.find(without_spaces(expression)), std::string::npos) << expression;
    }
  }
  EXPECT_GT(expressions, 35);
}

TEST(FromPyTorch, Tensors) {
  const Tensor x = Tensor::of({{1, 2, 3}, {4, 5, 6}});
  const std::int64_t i = 1, n = 2;
  expect_equal(ops::clone(x), x);
  expect_equal(clone(x), x);
  EXPECT_EQ(ops::cast(x, Dtype::kFloat64).dtype(), Dtype::kFloat64);
  expect_equal(ops::select(x, 1, i), Tensor::of({2, 5}));
  expect_equal(x.slice(1, 1, 3), Tensor::of({{2, 3}, {5, 6}}));
  const Tensor mask = ops::gt(x, 4.5);
  const double v = 0;
  expect_equal(ops::masked_fill(x, mask, v), Tensor::of({{1, 2, 3}, {4, 0, 0}}));
  const Tensor wanted = ops::gt(ops::select(x, 1, 0), 3.0);
  expect_equal(ops::index_select(x, 0, ops::squeeze(ops::nonzero(wanted), 1)),
               Tensor::of({{4, 5, 6}}));
  EXPECT_TRUE(ops::equal(x, x));
  EXPECT_TRUE(ops::allclose(x, x));
  const Tensor a = ops::gt(x, 1.5), b = ops::lt(x, 3.5);
  expect_equal(ops::logical_and(a, b),
               ops::logical_not(ops::logical_or(ops::logical_not(a), ops::logical_not(b))));
  expect_equal(ops::logical_or(a, b), ops::ge(x, 0.0));
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{0, 2, 2}, {3});
  expect_equal(ops::cast(ops::cast(ids, Dtype::kFloat64) * 2.0 + 1.0, Dtype::kInt64),
               Tensor::from(std::vector<std::int64_t>{1, 5, 5}, {3}));
  const Random random(1, "from pytorch");
  const Tensor drawn =
      ops::cast(Tensor::uniform({5}, random, Dtype::kFloat64) * 10.0, Dtype::kInt64);
  for (const auto number : drawn.data<std::int64_t>()) EXPECT_TRUE(0 <= number && number < 10);
  expect_equal(ops::cat({x, x}, 0), Tensor::of({{1, 2, 3}, {4, 5, 6}, {1, 2, 3}, {4, 5, 6}}));
  expect_equal(x[1], Tensor::of({4, 5, 6}));
  expect_equal(ops::cat({x.slice(0, n - 1, n), x.slice(0, 0, n - 1)}, 0),
               Tensor::of({{4, 5, 6}, {1, 2, 3}}));
  const Tensor square = Tensor::of({{1, 2}, {3, 4}});
  const Tensor rows = ops::unsqueeze(Tensor::arange(n), 1), columns = Tensor::arange(n);
  expect_equal(ops::where(ops::ge(rows, columns), square, 0.0), Tensor::of({{1, 0}, {3, 4}}));
  expect_equal(ops::sum(ops::cast(ops::one_hot(ids), Dtype::kFloat64), 0),
               Tensor::of({1, 0, 2}, Dtype::kFloat64));

  const Tensor y = Tensor::of({7, 8, 9});
  Tensor row = x[0];
  copy_(row, y);
  expect_equal(x, Tensor::of({{7, 8, 9}, {4, 5, 6}}));
  expect_equal(x[i], Tensor::of({4, 5, 6}));
}

TEST(FromPyTorch, Activations) {
  const Tensor x = Tensor::of({-3, 5});
  expect_equal(ops::where(ops::gt(x, 0.0), x, x * 0.01), Tensor::of({-0.03, 5}));
  const double wanted = -std::log1p(std::exp(3.0)) - std::log1p(std::exp(-5.0));
  expect_close(ops::sum(-ops::softplus(-x)), wanted);
}

TEST(FromPyTorch, Functions) {
  const Tensor x = Tensor::of({1, 2, 4}), y = Tensor::of({1, 4, 3.5});
  expect_close(ops::sqrt(ops::sum(ops::square(x))), std::sqrt(21.0));
  expect_close(ops::exp(ops::sum(ops::log(x))), 8);
  expect_close(ops::mean(ops::abs(x - y)), 2.5 / 3);
  const Tensor d = ops::abs(x - y);
  expect_close(ops::mean(ops::where(ops::lt(d, 1.0), ops::square(d) * 0.5, d - 0.5)),
               (1.5 + 0.125) / 3);
  const Tensor a = Tensor::of({{1, 2}}), b = Tensor::of({{1, 0}, {0, 2}}),
               c = Tensor::of({{3}, {5}});
  expect_close(ops::einsum("ik,kl->il", ops::einsum("ij,jk->ik", a, b), c), 23);
  const Tensor p = Tensor::of({0, 0.75, 0.25});
  int chosen[3] = {};
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Tensor u = Tensor::uniform({3}, {seed, "multinomial"});
    ++chosen[ops::argmax(ops::log(p) - ops::log(-ops::log(u)), -1).item<std::int64_t>()];
  }
  EXPECT_EQ(chosen[0], 0);
  EXPECT_NEAR(chosen[1], 300, 45);  // five standard deviations
}

TEST(FromPyTorch, AutogradAndModules) {
  const nn::Linear::Config config = {.in_features = 2, .out_features = 3};
  nn::Linear model(config);
  nn::init_weights(model, 1, 0.5);
  std::int64_t parameters = 0;
  for (const auto& [name, parameter] : model.named_parameters()) parameters += parameter.numel();
  EXPECT_EQ(parameters, 6);
  std::ostringstream out;
  out << model;  // as std::cout << model
  EXPECT_NE(out.str().find("6 parameters"), std::string::npos) << out.str();

  Tensor kept;
  const Tensor h = model(Tensor::of({{1, 2}}));
  h.register_hook([&](const Tensor& grad) { kept = grad; });
  ops::sum(h).backward();
  expect_equal(kept, Tensor::ones({1, 3}));
  const auto copy = nn::deepcopy(model, config);
  {
    const NoGradGuard no_grad;
    expect_equal((*copy)(Tensor::of({{1, 2}})), h);
  }
  model.compute_in(Dtype::kBFloat16);
  EXPECT_EQ(model(Tensor::of({{1, 2}})).dtype(), Dtype::kBFloat16);
  model.compute_in(std::nullopt);
  NamedTensors state = model.state_dict();
  state.clear();
  EXPECT_EQ(model.load_state_dict(state, /*strict=*/false).missing_keys,
            std::vector<std::string>{"weight"});

  optim::SGD optimizer(model.named_parameters(), {.lr = 1});
  const int step = 60;
  const double lr = 0.5;
  optimizer.scale_lr(std::pow(0.1, step / 30));
  EXPECT_NEAR(*optimizer.groups()[0].lr, 0.01, 1e-15);
  optimizer.set_lr(lr);
  EXPECT_EQ(*optimizer.groups()[0].lr, lr);
  const Documents documents = Documents::one(2);
  const Tensor q = Tensor::ones({2, 1, 4});
  expect_equal(ops::attention(q, q, q, documents, 1.0), q);  // a mean of equal values
  const Tensor allowed = Tensor::full({2, 2}, 1, Dtype::kBool);
  expect_equal(ops::attention(q, q, q, documents, 1.0, {.allowed = allowed}), q);
}

}  // namespace
}  // namespace moegrad::from_pytorch_test
