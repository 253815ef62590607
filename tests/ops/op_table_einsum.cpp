// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "ops/products.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// The definition: for every value of every letter, one product is added.
Array einsum_of(const std::string& equation, const Array& a, const Array& b) {
  const auto comma = equation.find(','), arrow = equation.find("->");
  const auto of_a = equation.substr(0, comma);
  const auto of_b = equation.substr(comma + 1, arrow - comma - 1);
  const auto result = equation.substr(arrow + 2);
  std::map<char, std::int64_t> sizes;
  for (std::size_t i = 0; i < of_a.size(); ++i)
    sizes[of_a[i]] = a.dim(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < of_b.size(); ++i)
    sizes[of_b[i]] = b.dim(static_cast<std::int64_t>(i));
  Shape all;
  std::map<char, std::int64_t> place;
  for (const auto& [letter, size] : sizes) {
    place[letter] = all.ndim();
    all.push_back(size);
  }
  const auto index = [&](const std::string& letters, const Shape& values) {
    Shape own;
    for (const char letter : letters) own.push_back(values[place[letter]]);
    return own;
  };
  Shape shape;
  for (const char letter : result) shape.push_back(sizes[letter]);
  Array y(shape);
  for_each_index(
      all, [&](const Shape& i) { y[index(result, i)] += a[index(of_a, i)] * b[index(of_b, i)]; });
  return y;
}

OpEntry einsum_op() {
  OpEntry entry{.op = "einsum", .saved_by = "matmul"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::einsum(args["equation"].get<std::string>(), in[0], in[1])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    return Arrays{
        einsum_of(args.value("meaning", args["equation"].get<std::string>()), in[0], in[1])};
  };
  // Whether the product reads the operand itself, or a copy in another order.
  const auto sample = [](const std::string& what, const std::string& equation, const Shape& a,
                         const Shape& b, bool a_saved, bool b_saved) {
    return OpSample{.what = what,
                    .inputs = {{.shape = a, .saved = a_saved}, {.shape = b, .saved = b_saved}},
                    .args = {{"equation", equation}}};
  };
  entry.samples = {
      sample("matrices", "ij,jk->ik", {3, 4}, {4, 2}, true, true),
      sample("batches", "bij,bjk->bik", {2, 3, 4}, {2, 4, 2}, true, true),
      sample("scores of attention", "bhqd,bhkd->bhqk", {2, 3, 4, 5}, {2, 3, 2, 5}, true, false),
      sample("heads in the middle", "bqhd,bkhd->bhqk", {2, 4, 3, 5}, {2, 2, 3, 5}, false, false),
      sample("an outer product", "i,j->ij", {3}, {4}, true, true),
      sample("turned round", "i,j->ji", {3}, {4}, true, true),
      sample("an inner product", "i,i->", {5}, {5}, true, true),
      sample("element by element", "ij,ij->ij", {3, 4}, {3, 4}, true, true),
      sample("summed over both alone", "ij,kl->jk", {3, 4}, {2, 5}, false, false),
      sample("a scalar", ",ij->ji", {}, {2, 3}, true, true),
      sample("size one", "ab,bc->ca", {1, 1}, {1, 1}, true, true),
      sample("no reduction", "ij,jk->ik", {2, 0}, {0, 3}, true, true),
      sample("nothing", "ij,jk->ik", {0, 2}, {2, 3}, true, true)};
  auto implied = sample("without a result", "kj, ji", {3, 4}, {4, 2}, true, true);
  implied.args["meaning"] = "kj,ji->ik";
  entry.samples.push_back(implied);
  const auto call = [](const std::string& equation, const Tensor& a, const Tensor& b) {
    return [=] { ops::einsum(equation, a, b); };
  };
  const auto refused = [&](const std::string& what, const std::string& equation,
                           const std::string& message) {
    entry.errors.push_back({what, call(equation, randn({2, 3}), randn({3, 4})), "ValueError",
                            "einsum: '" + equation + "' " + message});
  };
  refused("one operand", "ij->i", "must have two operands");
  refused("three operands", "ij,jk,kl->il", "must have two operands");
  refused("an ellipsis", "...j,jk->...k", "must have letters alone, got '.'");
  refused("a letter twice in an operand", "ii,jk->jk",
          "must name a letter once in each of its parts, got 'i' twice in 'ii'");
  refused("a letter twice in the result", "ij,jk->ii",
          "must name a letter once in each of its parts, got 'i' twice in 'ii'");
  refused("a letter in the result alone", "ij,jk->il", "must have 'l' in an operand");
  entry.errors.push_back({"a letter too few", call("i,jk->ik", randn({2, 3}), randn({3, 4})),
                          "ShapeError", "einsum: a must have the 1 dimensions of 'i', got [2, 3]"});
  entry.errors.push_back({"two sizes of one letter",
                          call("ij,jk->ik", randn({2, 3}), randn({4, 3})), "ShapeError",
                          "einsum: 'j' must have one size, got 3 in a [2, 3] and 4 in b [4, 3]"});
  entry.errors.push_back({"mixed dtypes", call("i,i", randn({2}), randn({2}, 1, Dtype::kFloat32)),
                          "DtypeError", "einsum: a is float64 but b is float32"});
  return entry;
}

OpEntry product_entry(const std::string& op, Tensor (*function)(const Tensor&, const Tensor&),
                      const std::string& meaning, const std::string& saved_by) {
  OpEntry entry{.op = op, .saved_by = saved_by};
  entry.run = [function](const TensorList& in, const Json&) {
    return TensorList{function(in[0], in[1])};
  };
  entry.reference = [meaning](const Arrays& in, const Json&) {
    return Arrays{einsum_of(meaning, in[0], in[1])};
  };
  entry.errors = {{"mixed dtypes",
                   [function, op] {
                     const Shape shape = op == "bmm" ? Shape{1, 2, 2} : Shape{2};
                     function(randn(shape), randn(shape, 1, Dtype::kFloat32));
                   },
                   "DtypeError", op + ": a is float64 but b is float32"}};
  return entry;
}

OpSample pair_of(const std::string& what, const Shape& a, const Shape& b) {
  return {.what = what, .inputs = {{.shape = a, .saved = true}, {.shape = b, .saved = true}}};
}

OpEntry bmm_op() {
  auto entry = product_entry("bmm", ops::bmm, "bmk,bkn->bmn", "matmul");
  entry.samples = {
      pair_of("batches", {2, 3, 4}, {2, 4, 5}), pair_of("size one", {1, 1, 1}, {1, 1, 1}),
      pair_of("no rows", {2, 0, 3}, {2, 3, 2}), pair_of("no batch", {0, 2, 3}, {0, 3, 2})};
  const auto refused = [&](const std::string& what, const Shape& a, const Shape& b,
                           const std::string& got) {
    entry.errors.push_back({what, [=] { ops::bmm(randn(a), randn(b)); }, "ShapeError",
                            "bmm: operands must be [B, M, K] and [B, K, N], got " + got});
  };
  refused("matrices", {2, 3}, {3, 2}, "[2, 3] and [3, 2]");
  refused("other batches", {2, 2, 3}, {1, 3, 2}, "[2, 2, 3] and [1, 3, 2]");
  refused("other inner sizes", {2, 2, 3}, {2, 2, 3}, "[2, 2, 3] and [2, 2, 3]");
  return entry;
}

OpEntry outer_op() {
  auto entry = product_entry("outer", ops::outer, "i,j->ij", "mul");
  entry.samples = {pair_of("vectors", {3}, {4}), pair_of("size one", {1}, {1}),
                   pair_of("nothing", {0}, {3})};
  entry.errors.push_back({"a matrix",
                          [] {
                            ops::outer(randn({2, 2}), randn({2}));
                          },
                          "ShapeError", "outer: operands must be [N] and [M], got [2, 2] and [2]"});
  return entry;
}

}  // namespace

std::vector<OpEntry> einsum_entries() { return {einsum_op(), bmm_op(), outer_op()}; }

}  // namespace moegrad::test
