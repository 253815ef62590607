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
  entry.errors = {{.what = "past the end",
                   .call =
                       [] {
                         ops::narrow(randn({2, 3}), 1, 2, 2);
                       },
                   .type = "ShapeError",
                   .message = "narrow: start and length must stay inside dimension 1 of [2, 3], "
                              "got 2 and 2"},
                  {.what = "before the start",
                   .call =
                       [] {
                         ops::narrow(randn({2, 3}), 0, -3, 1);
                       },
                   .type = "ShapeError",
                   .message = "narrow: start and length must stay inside dimension 0 of [2, 3], "
                              "got -3 and 1"},
                  {.what = "a start that overflows",
                   .call =
                       [] {
                         ops::narrow(randn({2, 3}), 0, std::numeric_limits<std::int64_t>::max(), 2);
                       },
                   .type = "ShapeError",
                   .message = "narrow: start and length must stay inside dimension 0 of [2, 3], "
                              "got 9223372036854775807 and 2"},
                  {.what = "a length that overflows",
                   .call =
                       [] {
                         ops::narrow(randn({2, 3}), 0, 2, std::numeric_limits<std::int64_t>::max());
                       },
                   .type = "ShapeError",
                   .message = "narrow: start and length must stay inside dimension 0 of [2, 3], "
                              "got 2 and 9223372036854775807"},
                  {.what = "dimension out of range",
                   .call =
                       [] {
                         ops::narrow(randn({2, 3}), 2, 0, 1);
                       },
                   .type = "ShapeError",
                   .message = "narrow: dimension must be in [-2, 1], got 2"}};
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
  OpEntry entry{.op = "split", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return ops::split(in[0], args["size"], args["dim"]);
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
  entry.errors = {{.what = "no size",
                   .call =
                       [] {
                         ops::split(randn({2, 3}), 0, 0);
                       },
                   .type = "ShapeError",
                   .message = "split: size must be positive, got 0"},
                  {.what = "dimension out of range",
                   .call =
                       [] {
                         ops::split(randn({2, 3}), 1, 2);
                       },
                   .type = "ShapeError",
                   .message = "split: dimension must be in [-2, 1], got 2"}};
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
    return pieces(in[0], dim, in[0].dim(dim) / args["n"].get<std::int64_t>());
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t n,
                         std::int64_t dim) {
    return OpSample{.what = what, .inputs = {{.shape = shape}}, .args = {{"n", n}, {"dim", dim}}};
  };
  entry.samples = {sample("rows", {6, 3}, 2, 0), sample("columns", {3, 9}, 3, -1),
                   sample("one", {3, 5}, 1, 1), sample("all", {3}, 3, 0),
                   sample("pieces of nothing", {0, 4}, 2, 1)};
  entry.errors = {{.what = "unequal pieces",
                   .call =
                       [] {
                         ops::chunk(randn({5, 3}), 2, 0);
                       },
                   .type = "ShapeError",
                   .message = "chunk: 2 equal pieces of dimension 0 of [5, 3] are not possible"},
                  {.what = "pieces of an empty dimension",
                   .call =
                       [] {
                         ops::chunk(Tensor::zeros({0, 3}), 2, 0);
                       },
                   .type = "ShapeError",
                   .message = "chunk: 2 equal pieces of dimension 0 of [0, 3] are not possible"}};
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
  entry.errors = {{.what = "another size",
                   .call =
                       [] {
                         ops::expand(randn({2, 3}), {4, 3});
                       },
                   .type = "ShapeError",
                   .message = "expand: [2, 3] does not expand to [4, 3]"},
                  {.what = "fewer dimensions",
                   .call =
                       [] {
                         ops::expand(randn({1, 3}), {3});
                       },
                   .type = "ShapeError",
                   .message = "expand: [1, 3] does not expand to [3]"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> slice_entries() { return {narrow_op(), split_op(), chunk_op(), expand_op()}; }

}  // namespace moegrad::test
