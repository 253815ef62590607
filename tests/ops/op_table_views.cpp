// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "ops/views.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// --- the same elements under another shape

Arrays reshaped(const Arrays& in, const Json& args) {
  Shape shape = shape_from(args["shape"]);
  std::int64_t known = 1;
  for (const auto size : shape) known *= size == -1 ? 1 : size;
  for (std::int64_t i = 0; i < shape.ndim(); ++i) {
    if (shape[i] == -1) shape[i] = std::ssize(in[0].values) / known;
  }
  Array y(shape);
  y.values = in[0].values;
  return {y};
}

std::vector<OpSample> reshape_samples(Strides strides) {
  const auto sample = [&](const std::string& what, const Shape& from, const Json& shape,
                          Nz nz = Nz::kOtherShapeOnly) {
    return OpSample{.what = what,
                    .inputs = {{.shape = from, .strides = strides, .nz = nz}},
                    .args = {{"shape", shape}}};
  };
  return {sample("fewer dimensions", {2, 3, 5}, {6, 5}, Nz::kRead),
          sample("an open size", {3, 4}, {2, -1, 3}),
          sample("the same shape", {3, 4}, {3, 4}, Nz::kRead),
          sample("a scalar", {1, 1}, Json::array()),
          sample("from a scalar", {}, {1, 1, 1}),
          sample("nothing", {0, 3}, {3, 0, 2}),
          sample("many dimensions", {2, 3, 2, 3}, {4, 9})};
}

OpEntry view_op() {
  OpEntry entry{.op = "view", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::view(in[0], shape_from(args["shape"]))};
  };
  entry.reference = reshaped;
  entry.samples = reshape_samples(Strides::kContiguousOnly);
  const auto call = [](const Tensor& a, const Shape& shape) {
    return [=] { ops::view(a, shape); };
  };
  entry.errors = {
      {"another number of elements", call(randn({2, 3}), {4, 2}), "ShapeError",
       "view: shape [4, 2] cannot hold the 6 elements of [2, 3]"},
      {"two open sizes", call(randn({2, 3}), {-1, -1}), "ShapeError",
       "view: sizes must not be negative but for one -1, got [-1, -1]"},
      {"an open size next to none", call(Tensor::zeros({0, 3}), {0, -1}), "ShapeError",
       "view: shape [0, -1] cannot hold the 0 elements of [0, 3]"},
      {"strides", call(ops::transpose(randn({2, 3}), 0, 1), {6}), "LayoutError",
       "view: needs a contiguous tensor, got shape [3, 2] with strides [1, 3]; use reshape"}};
  return entry;
}

OpEntry reshape_op() {
  OpEntry entry{.op = "reshape", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::reshape(in[0], shape_from(args["shape"]))};
  };
  entry.reference = reshaped;
  entry.samples = reshape_samples(Strides::kAny);
  const auto call = [](const Shape& shape) { return [=] { ops::reshape(randn({2, 3}), shape); }; };
  entry.errors = {{"another number of elements", call({-1, 4}), "ShapeError",
                   "reshape: shape [-1, 4] cannot hold the 6 elements of [2, 3]"}};
  return entry;
}

OpEntry flatten_op() {
  OpEntry entry{.op = "flatten", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::flatten(in[0], args["start_dim"], args["end_dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto ndim = in[0].shape.ndim();
    if (ndim == 0) {
      Array y({1});
      y.values = in[0].values;
      return Arrays{y};
    }
    const auto start = from_front(args["start_dim"], ndim), end = from_front(args["end_dim"], ndim);
    Shape shape;
    for (std::int64_t i = 0; i < ndim; ++i) {
      if (i <= start || i > end) {
        shape.push_back(in[0].dim(i));
      } else {
        shape[-1] *= in[0].dim(i);
      }
    }
    Array y(shape);
    y.values = in[0].values;
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t start,
                         std::int64_t end, Nz nz = Nz::kOtherShapeOnly) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .nz = nz}},
                    .args = {{"start_dim", start}, {"end_dim", end}}};
  };
  entry.samples = {sample("all", {3, 5}, 0, -1),
                   sample("the first two", {2, 3, 5}, 0, 1, Nz::kRead),
                   sample("the last two", {2, 3, 5}, -2, -1),
                   sample("one alone", {3, 5}, 1, 1, Nz::kRead),
                   sample("the middle", {2, 3, 1, 5}, 1, 2),
                   sample("a scalar", {}, 0, -1),
                   sample("nothing", {0, 3, 2}, 0, 1, Nz::kRead)};
  const auto call = [](std::int64_t start_dim, std::int64_t end_dim = -1) {
    return [=] { ops::flatten(randn({2, 3}), start_dim, end_dim); };
  };
  entry.errors = {{"an end before the start", call(1, 0), "ShapeError",
                   "flatten: start_dim must not be after end_dim, got 1 and 0"},
                  {"dimension out of range", call(2), "ShapeError",
                   "flatten: dimension must be in [-2, 1], got 2"}};
  return entry;
}

OpEntry unsqueeze_op() {
  OpEntry entry{.op = "unsqueeze", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::unsqueeze(in[0], args["dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim() + 1);
    Shape shape;
    for (std::int64_t i = 0; i <= in[0].shape.ndim(); ++i) {
      if (i == dim) shape.push_back(1);
      if (i < in[0].shape.ndim()) shape.push_back(in[0].dim(i));
    }
    Array y(shape);
    y.values = in[0].values;
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim) {
    return OpSample{
        .what = what, .inputs = {{.shape = shape, .nz = Nz::kRead}}, .args = {{"dim", dim}}};
  };
  entry.samples = {sample("in front", {3, 5}, 0), sample("at the end", {3, 5}, -1),
                   sample("in the middle", {2, 3, 5}, 1), sample("a scalar", {}, 0),
                   sample("nothing", {0, 2}, 1)};
  entry.errors = {{"dimension out of range",
                   [] {
                     ops::unsqueeze(randn({2, 3}), 3);
                   },
                   "ShapeError", "unsqueeze: dimension must be in [-3, 2], got 3"}};
  return entry;
}

OpEntry squeeze_op() {
  OpEntry entry{.op = "squeeze", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::squeeze(in[0], args["dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    Shape shape;
    for (std::int64_t i = 0; i < in[0].shape.ndim(); ++i) {
      if (i != dim) shape.push_back(in[0].dim(i));
    }
    Array y(shape);
    y.values = in[0].values;
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim) {
    return OpSample{
        .what = what, .inputs = {{.shape = shape, .nz = Nz::kRead}}, .args = {{"dim", dim}}};
  };
  entry.samples = {sample("in front", {1, 3, 5}, 0), sample("at the end", {3, 5, 1}, -1),
                   sample("in the middle", {3, 1, 5}, 1), sample("to a scalar", {1}, 0),
                   sample("nothing", {0, 1, 2}, 1)};
  const auto call = [](const Shape& a) { return [=] { ops::squeeze(randn(a), 1); }; };
  entry.errors = {{"a larger dimension", call({2, 3}), "ShapeError",
                   "squeeze: dimension 1 of [2, 3] must be of size 1"},
                  {"dimension out of range", call({1}), "ShapeError",
                   "squeeze: dimension must be in [-1, 0], got 1"}};
  return entry;
}

// --- the same elements in another order

Array permuted(const Array& x, const std::vector<std::int64_t>& dims) {
  Shape shape = x.shape;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    shape[static_cast<std::int64_t>(i)] = x.dim(dims[i]);
  }
  return gather(x, shape, [&](const Shape& i) {
    Shape from = i;
    for (std::size_t d = 0; d < dims.size(); ++d) from[dims[d]] = i[static_cast<std::int64_t>(d)];
    return from;
  });
}

OpEntry transpose_op() {
  OpEntry entry{.op = "transpose", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::transpose(in[0], args["dim0"], args["dim1"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto ndim = in[0].shape.ndim();
    std::vector<std::int64_t> dims;
    for (std::int64_t i = 0; i < ndim; ++i) dims.push_back(i);
    std::swap(dims[static_cast<std::size_t>(from_front(args["dim0"], ndim))],
              dims[static_cast<std::size_t>(from_front(args["dim1"], ndim))]);
    return Arrays{permuted(in[0], dims)};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim0,
                         std::int64_t dim1) {
    return OpSample{
        .what = what, .inputs = {{.shape = shape}}, .args = {{"dim0", dim0}, {"dim1", dim1}}};
  };
  entry.samples = {
      sample("a matrix", {3, 5}, 0, 1),          sample("outer dimensions", {2, 3, 4, 5}, 0, 2),
      sample("from the end", {2, 3, 5}, -1, -2), sample("a dimension with itself", {3, 5}, 1, 1),
      sample("nothing", {0, 3}, 0, 1),           sample("size one", {1, 1}, 0, 1)};
  entry.errors = {{"dimension out of range",
                   [] {
                     ops::transpose(randn({2, 3}), 0, 2);
                   },
                   "ShapeError", "transpose: dimension must be in [-2, 1], got 2"}};
  return entry;
}

OpEntry permute_op() {
  OpEntry entry{.op = "permute", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::permute(in[0], integers_from(args["dims"]))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    auto dims = integers_from(args["dims"]);
    for (auto& dim : dims) dim = from_front(dim, in[0].shape.ndim());
    return Arrays{permuted(in[0], dims)};
  };
  const auto sample = [](const std::string& what, const Shape& shape, const Json& dims) {
    return OpSample{.what = what, .inputs = {{.shape = shape}}, .args = {{"dims", dims}}};
  };
  entry.samples = {
      sample("a cycle", {2, 3, 5}, {1, 2, 0}), sample("from the end", {2, 3, 4, 5}, {-1, 0, -2, 1}),
      sample("the identity", {3, 4}, {0, 1}), sample("no dimensions", {}, Json::array()),
      sample("nothing", {2, 0, 3}, {2, 0, 1})};
  const auto call = [](const std::vector<std::int64_t>& dims) {
    return [=] { ops::permute(randn({2, 3}), dims); };
  };
  entry.errors = {
      {"too few dimensions", call({0}), "ShapeError", "permute: [2, 3] needs 2 dimensions, got 1"},
      {"a dimension twice", call({1, -1}), "ShapeError", "permute: dimension 1 is named twice"},
      {"dimension out of range", call({0, 2}), "ShapeError",
       "permute: dimension must be in [-2, 1], got 2"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> view_entries() {
  return {view_op(),    reshape_op(),   flatten_op(), unsqueeze_op(),
          squeeze_op(), transpose_op(), permute_op()};
}

}  // namespace moegrad::test
