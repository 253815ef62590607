// SPDX-License-Identifier: Apache-2.0
#include "ops/products.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

void check_dtypes(std::string_view op, const Tensor& a, const Tensor& b) {
  check_floating(op, "a", a);
  check_same_dtype(op, "a", a, "b", b);
}

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

struct Equation {
  std::string a, b, result;
};

void check_letters(std::string_view equation, const std::string& letters) {
  for (const char letter : letters) {
    check<ValueError>(std::isalpha(static_cast<unsigned char>(letter)) != 0, "einsum: '", equation,
                      "' must have letters alone, got '", letter, "'");
    check<ValueError>(std::ranges::count(letters, letter) == 1, "einsum: '", equation,
                      "' must name a letter once in each of its parts, got '", letter,
                      "' twice in '", letters, "'");
  }
}

Equation parse(std::string_view text) {
  std::string rest;
  std::ranges::copy_if(text, std::back_inserter(rest), [](char c) { return c != ' '; });
  const auto arrow = rest.find("->");
  const auto operands = rest.substr(0, arrow);
  check<ValueError>(std::ranges::count(operands, ',') == 1, "einsum: '", text,
                    "' must have two operands");
  const auto comma = operands.find(',');
  Equation equation{.a = operands.substr(0, comma), .b = operands.substr(comma + 1), .result = {}};
  check_letters(text, equation.a);
  check_letters(text, equation.b);
  if (arrow != std::string::npos) {
    equation.result = rest.substr(arrow + 2);
    check_letters(text, equation.result);
    for (const char letter : equation.result) {
      check<ValueError>(has(equation.a, letter) || has(equation.b, letter), "einsum: '", text,
                        "' must have '", letter, "' in an operand");
    }
    return equation;
  }
  for (const char letter : equation.a + equation.b) {
    if (has(equation.a, letter) != has(equation.b, letter)) equation.result += letter;
  }
  std::ranges::sort(equation.result);
  return equation;
}

void check_sizes(const std::string& letters, std::string_view name, const Tensor& x) {
  check<ShapeError>(std::ssize(letters) == x.ndim(), "einsum: ", name, " must have the ",
                    letters.size(), " dimensions of '", letters, "', got ", x.shape());
}

// The dimensions of `x`, one for each of its `letters`, in the order of `wanted`.
Tensor ordered(const Tensor& x, const std::string& letters, const std::string& wanted) {
  std::vector<std::int64_t> dims;
  for (const char letter : wanted) dims.push_back(static_cast<std::int64_t>(letters.find(letter)));
  return permute(x, dims);
}

// Sums over the letters that stand neither in `other` nor in `result`.
Tensor without_lonely(Tensor x, std::string& letters, const std::string& other,
                      const std::string& result) {
  for (auto i = std::ssize(letters) - 1; i >= 0; --i) {
    const char letter = letters[static_cast<std::size_t>(i)];
    if (has(other, letter) || has(result, letter)) continue;
    x = sum(x, i);
    letters.erase(static_cast<std::size_t>(i), 1);
  }
  return x;
}

std::int64_t size_of_letters(const Tensor& x, const std::string& letters, const std::string& some) {
  std::int64_t size = 1;
  for (const char letter : some) size *= x.dim(static_cast<std::int64_t>(letters.find(letter)));
  return size;
}

}  // namespace

Tensor bmm(const Tensor& a, const Tensor& b) {
  check_operands("bmm", a, b);
  check<ShapeError>(a.ndim() == 3 && b.ndim() == 3 && a.dim(0) == b.dim(0) && a.dim(2) == b.dim(1),
                    "bmm: operands must be [B, M, K] and [B, K, N], got ", a.shape(), " and ",
                    b.shape());
  check_dtypes("bmm", a, b);
  return matmul(a, b);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_operands("outer", a, b);
  check<ShapeError>(a.ndim() == 1 && b.ndim() == 1, "outer: operands must be [N] and [M], got ",
                    a.shape(), " and ", b.shape());
  check_dtypes("outer", a, b);
  return mul(unsqueeze(a, 1), b);
}

// Letters of both operands and the result number the products (B), letters of both alone are
// summed over (K), and those of one operand are its own (M, N).
Tensor einsum(std::string_view equation, const Tensor& a, const Tensor& b) {
  check_operands("einsum", a, b);
  auto [of_a, of_b, result] = parse(equation);
  check_sizes(of_a, "a", a);
  check_sizes(of_b, "b", b);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const auto j = of_b.find(of_a[i]);
    if (j == std::string::npos) continue;
    const auto in_a = a.dim(static_cast<std::int64_t>(i));
    const auto in_b = b.dim(static_cast<std::int64_t>(j));
    check<ShapeError>(in_a == in_b, "einsum: '", of_a[i], "' must have one size, got ", in_a,
                      " in a ", a.shape(), " and ", in_b, " in b ", b.shape());
  }
  check_dtypes("einsum", a, b);
  std::string batch, inner, rows, columns;
  const Tensor left = without_lonely(a, of_a, of_b, result);
  const Tensor right = without_lonely(b, of_b, of_a, result);
  for (const char letter : of_a) {
    const bool in_both = has(of_b, letter);
    (!in_both ? rows : has(result, letter) ? batch : inner) += letter;
  }
  for (const char letter : of_b) {
    if (!has(of_a, letter)) columns += letter;
  }
  const auto b_size = size_of_letters(left, of_a, batch);
  const auto m = size_of_letters(left, of_a, rows), k = size_of_letters(left, of_a, inner);
  const auto n = size_of_letters(right, of_b, columns);
  const Tensor product =
      matmul(reshape(ordered(left, of_a, batch + rows + inner), {b_size, m, k}),
             reshape(ordered(right, of_b, batch + inner + columns), {b_size, k, n}));  // [B, M, N]
  Shape shape;
  const auto letters = batch + rows + columns;
  for (const char letter : letters) {
    const bool in_a = has(of_a, letter);
    shape.push_back(
        (in_a ? left : right).dim(static_cast<std::int64_t>((in_a ? of_a : of_b).find(letter))));
  }
  return contiguous(ordered(reshape(product, shape), letters, result));
}

}  // namespace moegrad::ops
