// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "ops/copies.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

OpEntry contiguous_op() {
  OpEntry entry{.op = "contiguous", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    const bool transposed = args["transposed"];
    return TensorList{ops::contiguous(transposed ? ops::transpose(in[0], 0, -1) : in[0])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    if (!args["transposed"].get<bool>()) return in;
    Shape shape = in[0].shape;
    std::swap(shape[0], shape[-1]);
    return Arrays{gather(in[0], shape, [](Shape i) {
      std::swap(i[0], i[-1]);
      return i;
    })};
  };
  const auto sample = [](const std::string& what, const Shape& shape, bool transposed) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .nz = transposed ? Nz::kRefused : Nz::kRead}},
                    .args = {{"transposed", transposed}}};
  };
  entry.samples = {sample("as it is", {3, 5}, false), sample("a matrix", {3, 5}, true),
                   sample("three dimensions", {2, 3, 5}, true), sample("a scalar", {}, false),
                   sample("nothing", {0, 3}, true)};
  entry.errors = {{"an undefined tensor", [] { ops::contiguous({}); }, "Error",
                   "contiguous: input 0 must be a defined tensor, got an undefined one"}};
  return entry;
}

OpEntry clone_op() {
  OpEntry entry{.op = "clone", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json&) { return TensorList{ops::clone(in[0])}; };
  entry.reference = [](const Arrays& in, const Json&) { return in; };
  const auto sample = [](const std::string& what, const Shape& shape) {
    return OpSample{.what = what, .inputs = {{.shape = shape, .nz = Nz::kRead}}};
  };
  entry.samples = {sample("a matrix", {3, 5}), sample("three dimensions", {2, 3, 5}),
                   sample("a scalar", {}), sample("nothing", {0, 3})};
  entry.errors = {{"an undefined tensor", [] { ops::clone({}); }, "Error",
                   "clone: input 0 must be a defined tensor, got an undefined one"}};
  return entry;
}

OpSample joined(const std::string& what, const std::vector<Shape>& shapes, std::int64_t dim) {
  OpSample sample{.what = what, .args = {{"dim", dim}}};
  for (const auto& shape : shapes) sample.inputs.push_back({.shape = shape});
  return sample;
}

// Array `piece` of `in`, put into `y` from `start` along `dim`.
void put(const Array& piece, std::int64_t dim, std::int64_t start, Array& y) {
  for_each_index(piece.shape, [&](const Shape& i) {
    Shape to = i;
    to[dim] += start;
    y[to] = piece[i];
  });
}

OpEntry cat_op() {
  OpEntry entry{.op = "cat", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::cat(in, args["dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Shape shape = in[0].shape;
    const auto dim = from_front(args["dim"], shape.ndim());
    shape[dim] = 0;
    for (const auto& each : in) shape[dim] += each.dim(dim);
    Array y(shape);
    std::int64_t start = 0;
    for (const auto& each : in) {
      put(each, dim, start, y);
      start += each.dim(dim);
    }
    return Arrays{y};
  };
  entry.samples = {joined("rows", {{2, 3}, {1, 3}, {4, 3}}, 0),
                   joined("columns", {{2, 3}, {2, 1}}, -1),
                   joined("the middle", {{2, 1, 3}, {2, 2, 3}, {2, 1, 3}}, 1),
                   joined("one", {{3, 2}}, 0),
                   joined("an empty one among others", {{2, 3}, {0, 3}}, 0),
                   joined("nothing", {{0, 3}, {0, 2}}, 1)};
  const auto call = [](const TensorList& list, std::int64_t dim = 0) {
    return [=] { ops::cat(list, dim); };
  };
  entry.errors = {{"no tensor", call({}), "ShapeError", "cat: needs at least one tensor"},
                  {"other sizes", call({randn({2, 3}), randn({2, 4})}), "ShapeError",
                   "cat: shapes must agree but for dimension 0, got [2, 3] and [2, 4]"},
                  {"another rank", call({randn({2, 3}), randn({3})}), "ShapeError",
                   "cat: shapes must agree but for dimension 0, got [2, 3] and [3]"},
                  {"mixed dtypes", call({randn({2}), randn({2}, 1, Dtype::kFloat32)}), "DtypeError",
                   "cat: dtypes must agree, got float64 and float32"},
                  {"dimension out of range", call({randn({2})}, 1), "ShapeError",
                   "cat: dimension must be in [-1, 0], got 1"}};
  return entry;
}

OpEntry stack_op() {
  OpEntry entry{.op = "stack", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::stack(in, args["dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim() + 1);
    Shape one;
    for (std::int64_t i = 0; i <= in[0].shape.ndim(); ++i) {
      if (i == dim) one.push_back(1);
      if (i < in[0].shape.ndim()) one.push_back(in[0].dim(i));
    }
    Shape shape = one;
    shape[dim] = std::ssize(in);
    Array y(shape);
    for (std::size_t n = 0; n < in.size(); ++n) {
      Array piece(one);
      piece.values = in[n].values;
      put(piece, dim, static_cast<std::int64_t>(n), y);
    }
    return Arrays{y};
  };
  entry.samples = {joined("in front", {{2, 3}, {2, 3}, {2, 3}}, 0),
                   joined("at the end", {{2, 3}, {2, 3}}, -1),
                   joined("in the middle", {{2, 3}, {2, 3}}, 1),
                   joined("scalars", {{}, {}, {}}, 0),
                   joined("one", {{3, 2}}, 1),
                   joined("nothing", {{0, 2}, {0, 2}}, 1)};
  const auto call = [](const TensorList& list) { return [=] { ops::stack(list, 0); }; };
  entry.errors = {{"no tensor", call({}), "ShapeError", "stack: needs at least one tensor"},
                  {"other shapes", call({randn({2, 3}), randn({2, 1})}), "ShapeError",
                   "stack: shapes must agree, got [2, 3] and [2, 1]"}};
  return entry;
}

// Finite differences need a float64 result; what passes through float32 on the way is therefore
// made of elements and steps that float32 holds exactly.
OpEntry cast_op() {
  OpEntry entry{.op = "cast", .dtypes = kAllDtypes};
  const auto dtype_of_name = [](const Json& name) {
    return name == "float32" ? Dtype::kFloat32 : Dtype::kFloat64;
  };
  entry.run = [=](const TensorList& in, const Json& args) {
    Tensor x = in[0];
    for (const auto& name : args["dtypes"]) x = ops::cast(x, dtype_of_name(name));
    return TensorList{x};
  };
  entry.reference = [=](const Arrays& in, const Json& args) {
    Array y = in[0];
    for (const auto& name : args["dtypes"]) {
      if (dtype_of_name(name) == Dtype::kFloat64) continue;
      for (auto& value : y.values) value = static_cast<double>(static_cast<float>(value));
    }
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Input& input, const Json& dtypes) {
    return OpSample{
        .what = what, .inputs = {input}, .args = {{"dtypes", dtypes}}, .gradcheck_eps = 0x1p-10};
  };
  const auto narrow = Draw::kSixtyFourths;
  entry.samples = {
      sample("there and back", {.shape = {3, 5}, .draw = narrow}, {"float32", "float64"}),
      sample("there and back twice", {.shape = {2, 1, 3}, .draw = narrow},
             {"float32", "float64", "float32", "float64"}),
      sample("to float64", {.shape = {3, 5}, .nz = Nz::kRead}, Json::array({"float64"})),
      sample("a scalar", {.shape = {}, .draw = narrow}, {"float32", "float64"}),
      sample("nothing", {.shape = {2, 0}}, {"float32", "float64"})};
  entry.errors = {{"an undefined tensor", [] { ops::cast({}, Dtype::kFloat32); }, "Error",
                   "cast: input 0 must be a defined tensor, got an undefined one"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> copy_entries() {
  return {contiguous_op(), clone_op(), cat_op(), stack_op(), cast_op()};
}

}  // namespace moegrad::test
