// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

Array narrowed(const Array& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  Shape shape = x.shape;
  shape[dim] = length;
  return gather(x, shape, [&](const Shape& i) {
    Shape from = i;
    from[dim] += start;
    return from;
  });
}

OpEntry narrow_op() {
  OpEntry entry{.op = "narrow", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::narrow(in[0], args["dim"], args["start"], args["length"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    return Arrays{narrowed(in[0], dim, args["start"], args["length"])};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim,
                         std::int64_t start, std::int64_t length) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}},
                    .args = {{"dim", dim}, {"start", start}, {"length", length}}};
  };
  entry.samples = {sample("rows", {5, 3}, 0, 1, 3),
                   sample("columns", {3, 7}, -1, 2, 4),
                   sample("the middle", {2, 5, 3}, 1, 4, 1),
                   sample("all", {3, 4}, 0, 0, 3),
                   sample("nothing of something", {3, 4}, 1, 4, 0),
                   sample("something of nothing", {0, 4}, 1, 1, 2),
                   sample("size one", {1}, 0, 0, 1)};
  const auto call = [](std::int64_t dim, std::int64_t start, std::int64_t length) {
    return [=] { ops::narrow(randn({2, 3}), dim, start, length); };
  };
  constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
  entry.errors = {{"past the end", call(1, 2, 2), "ShapeError",
                   "narrow: start and length must stay inside dimension 1 of [2, 3], "
                   "got 2 and 2"},
                  {"before the start", call(0, -3, 1), "ShapeError",
                   "narrow: start and length must stay inside dimension 0 of [2, 3], "
                   "got -3 and 1"},
                  {"a start that overflows", call(0, kLargest, 2), "ShapeError",
                   "narrow: start and length must stay inside dimension 0 of [2, 3], "
                   "got 9223372036854775807 and 2"},
                  {"a length that overflows", call(0, 2, kLargest), "ShapeError",
                   "narrow: start and length must stay inside dimension 0 of [2, 3], "
                   "got 2 and 9223372036854775807"},
                  {"dimension out of range", call(2, 0, 1), "ShapeError",
                   "narrow: dimension must be in [-2, 1], got 2"}};
  return entry;
}

OpEntry select_op() {
  OpEntry entry{.op = "select", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::select(in[0], args["dim"], args["i"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto& x = in[0];
    const auto dim = from_front(args["dim"], x.shape.ndim());
    Shape shape;
    for (std::int64_t d = 0; d < x.shape.ndim(); ++d) {
      if (d != dim) shape.push_back(x.dim(d));
    }
    Array y(shape);
    y.values = narrowed(x, dim, from_front(args["i"], x.dim(dim)), 1).values;
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim,
                         std::int64_t i) {
    return OpSample{.what = what, .inputs = {{.shape = shape}}, .args = {{"dim", dim}, {"i", i}}};
  };
  entry.samples = {
      sample("a row", {5, 3}, 0, 2),         sample("a column", {3, 7}, -1, 4),
      sample("the middle", {2, 5, 3}, 1, 0), sample("from the end", {3, 5}, 1, -2),
      sample("to a scalar", {3}, 0, 1),      sample("something of nothing", {3, 0}, 0, 1)};
  const auto call = [](const Shape& a, std::int64_t dim, std::int64_t i) {
    return [=] { ops::select(randn(a), dim, i); };
  };
  entry.errors = {
      {"past the end", call({2, 3}, -1, 3), "ShapeError",
       "select: position must be in [-3, 3) for dimension 1 of [2, 3], got 3"},
      {"before the start", call({2, 3}, 0, -3), "ShapeError",
       "select: position must be in [-2, 2) for dimension 0 of [2, 3], got -3"},
      {"a scalar", call({}, 0, 0), "ShapeError", "select: needs at least one dimension, got []"}};
  return entry;
}

Arrays pieces(const Array& x, std::int64_t dim, std::int64_t size) {
  Arrays result;
  std::int64_t start = 0;
  do {
    const auto length = std::min(size, x.dim(dim) - start);
    result.push_back(narrowed(x, dim, start, length));
    start += size;
  } while (start < x.dim(dim));
  return result;
}

OpEntry split_op() {
  OpEntry entry{.op = "split", .parameters = "Tensor, int64, int64", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return ops::split(in[0], args["size"].get<std::int64_t>(), args["dim"]);
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    return pieces(in[0], from_front(args["dim"], in[0].shape.ndim()), args["size"]);
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t size,
                         std::int64_t dim) {
    return OpSample{
        .what = what, .inputs = {{.shape = shape}}, .args = {{"size", size}, {"dim", dim}}};
  };
  entry.samples = {
      sample("a smaller last piece", {7, 3}, 3, 0), sample("equal pieces", {3, 4}, 2, -1),
      sample("the middle", {2, 5, 3}, 2, 1),        sample("one piece", {3, 2}, 9, 0),
      sample("pieces of one", {3}, 1, 0),           sample("nothing", {0, 3}, 2, 0),
      sample("pieces of nothing", {3, 0}, 2, 0)};
  const auto call = [](std::int64_t size, std::int64_t dim) {
    return [=] { ops::split(randn({2, 3}), size, dim); };
  };
  entry.errors = {{"no size", call(0, 0), "ShapeError", "split: size must be positive, got 0"},
                  {"dimension out of range", call(1, 2), "ShapeError",
                   "split: dimension must be in [-2, 1], got 2"}};
  return entry;
}

OpEntry split_sizes_op() {
  OpEntry entry{.op = "split", .parameters = "Tensor, vector<int64>, int64", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return ops::split(in[0], integers_from(args["sizes"]), args["dim"]);
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    Arrays result;
    std::int64_t start = 0;
    for (const auto size : integers_from(args["sizes"])) {
      result.push_back(narrowed(in[0], dim, start, size));
      start += size;
    }
    return result;
  };
  const auto sample = [](const std::string& what, const Shape& shape,
                         const std::vector<std::int64_t>& sizes, std::int64_t dim) {
    return OpSample{
        .what = what, .inputs = {{.shape = shape}}, .args = {{"sizes", sizes}, {"dim", dim}}};
  };
  entry.samples = {
      sample("query, key and value", {3, 8}, {4, 2, 2}, -1),
      sample("the middle", {2, 5, 3}, {1, 4}, 1),
      sample("one of them empty", {5, 2}, {2, 0, 3}, 0),
      sample("one piece", {3}, {3}, 0),
      sample("pieces of nothing", {0, 2}, {0, 0}, 0),
      sample("more than a shape has dimensions", {10, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 0)};
  const auto call = [](const std::vector<std::int64_t>& sizes, std::int64_t dim) {
    return [=] { ops::split(randn({5, 3}), sizes, dim); };
  };
  const auto refused = [&](const std::string& what, const std::vector<std::int64_t>& sizes,
                           const std::string& got) {
    return OpError{what, call(sizes, 0), "ShapeError",
                   "split: sizes must be >= 0 and add up to the 5 of dimension 0 of "
                   "[5, 3], got " +
                       got};
  };
  entry.errors = {refused("too much", {3, 3}, "3, 3"),
                  refused("too little", {1, 3}, "1, 3"),
                  refused("a negative size", {-1, 6}, "-1, 6"),
                  refused("no piece", {}, "none"),
                  refused("a sum that overflows",
                          {std::numeric_limits<std::int64_t>::max(),
                           std::numeric_limits<std::int64_t>::max(), 7},
                          "9223372036854775807, 9223372036854775807, 7"),
                  {"dimension out of range", call({5}, 2), "ShapeError",
                   "split: dimension must be in [-2, 1], got 2"}};
  return entry;
}

OpEntry chunk_op() {
  OpEntry entry{.op = "chunk", .dtypes = kAllDtypes};
  entry.saved_by = "split";
  entry.run = [](const TensorList& in, const Json& args) {
    return ops::chunk(in[0], args["n"], args["dim"]);
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    const std::int64_t n = args["n"];
    if (in[0].dim(dim) == 0) return Arrays(static_cast<std::size_t>(n), in[0]);
    return pieces(in[0], dim, (in[0].dim(dim) + n - 1) / n);
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t n,
                         std::int64_t dim) {
    return OpSample{.what = what, .inputs = {{.shape = shape}}, .args = {{"n", n}, {"dim", dim}}};
  };
  entry.samples = {sample("rows", {6, 3}, 2, 0),
                   sample("columns", {3, 9}, 3, -1),
                   sample("one", {3, 5}, 1, 1),
                   sample("all", {3}, 3, 0),
                   sample("pieces of nothing", {0, 4}, 2, 1),
                   sample("a smaller last piece", {5, 3}, 2, 0),
                   sample("fewer pieces", {4, 2}, 3, 0),
                   sample("more pieces than there are rows", {2, 3}, 7, 0),
                   sample("pieces of an empty dimension", {0, 3}, 2, 0)};
  const auto call = [](std::int64_t pieces, std::int64_t dim) {
    return [=] { ops::chunk(randn({5, 3}), pieces, dim); };
  };
  entry.errors = {{"no pieces", call(0, 0), "ShapeError",
                   "chunk: the number of pieces must be positive, got 0"},
                  {"dimension out of range", call(2, 2), "ShapeError",
                   "chunk: dimension must be in [-2, 1], got 2"}};
  return entry;
}

OpEntry expand_op() {
  OpEntry entry{.op = "expand", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::expand(in[0], shape_from(args["shape"]))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array y(shape_from(args["shape"]));
    for_each_index(y.shape, [&](const Shape& i) { y[i] = broadcast_at(in[0], i); });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& from, const Json& shape) {
    return OpSample{.what = what, .inputs = {{.shape = from}}, .args = {{"shape", shape}}};
  };
  entry.samples = {sample("a size of one", {3, 1}, {3, 5}),
                   sample("leading dimensions", {3}, {2, 4, 3}),
                   sample("first and last", {1, 3, 1}, {2, 3, 5}),
                   sample("a scalar", {}, {2, 3}),
                   sample("as it is", {2, 3}, {2, 3}),
                   sample("zero times", {1, 3}, {0, 3}),
                   sample("nothing", {0, 1}, {2, 0, 4})};
  const auto call = [](const Shape& a, const Shape& shape) {
    return [=] { ops::expand(randn(a), shape); };
  };
  entry.errors = {{"another size", call({2, 3}, {4, 3}), "ShapeError",
                   "expand: [2, 3] does not expand to [4, 3]"},
                  {"fewer dimensions", call({1, 3}, {3}), "ShapeError",
                   "expand: [1, 3] does not expand to [3]"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> slice_entries() {
  return {narrow_op(), select_op(), split_op(), split_sizes_op(), chunk_op(), expand_op()};
}

}  // namespace moegrad::test
