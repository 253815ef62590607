// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "ops/indexing.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

std::int64_t at(const Array& index, const Shape& i) { return static_cast<std::int64_t>(index[i]); }

Input index_input(const Shape& shape, std::int64_t bound) {
  return {.shape = shape, .draw = Draw::kIndices, .bound = bound, .saved = true};
}

OpSample slices_sample(const std::string& what, const Shape& shape, std::int64_t dim,
                       std::int64_t n, bool large = false) {
  return {.what = what,
          .inputs = {{.shape = shape}, index_input({n}, shape[dim])},
          .args = {{"dim", dim}},
          .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
}

std::vector<OpSample> slices_samples() {
  return {slices_sample("rows, some twice", {5, 3}, 0, 9),
          slices_sample("elements", {4}, 0, 3),
          slices_sample("the middle", {3, 2, 5}, 1, 4),
          slices_sample("columns", {3, 2, 4}, -1, 5),
          slices_sample("one row", {1, 3}, 0, 2),
          slices_sample("no index", {3, 2}, 0, 0),
          slices_sample("rows of nothing", {3, 0}, 0, 2),
          slices_sample("several pieces", {40, 700}, 0, 300, true)};
}

using Call = std::function<void(const Tensor& a, std::int64_t dim, const Tensor& index)>;

// Calls `op` later.
auto later(const Call& op) {
  return [=](const Tensor& a, std::int64_t dim, const Tensor& index) {
    return [=] { op(a, dim, index); };
  };
}

std::vector<OpError> slices_errors(const std::string& op, const Call& run) {
  const auto call = later(run);
  return {{"a dimension out of range", call(randn({2, 3}), 2, indices_of({0})), "ShapeError",
           op + ": dimension must be in [-2, 1], got 2"},
          {"a matrix of indices", call(randn({2}), 0, Tensor::zeros({1, 1}, Dtype::kInt64)),
           "ShapeError", op + ": index must be [n], got [1, 1]"},
          {"indices that are no integers", call(randn({2}), 0, randn({1})), "DtypeError",
           op + ": index must be int64, got float64"},
          {"an index out of range", call(randn({2, 3}), 0, indices_of({1, 2})), "ValueError",
           op + ": index must be in [0, 2), got 2 at position 1"},
          {"a negative index", call(randn({2, 3}), 1, indices_of({-1})), "ValueError",
           op + ": index must be in [0, 3), got -1 at position 0"}};
}

OpEntry index_select_op() {
  OpEntry entry{.op = "index_select", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::index_select(in[0], args["dim"], in[1])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    Shape shape = in[0].shape;
    shape[dim] = in[1].dim(0);
    return Arrays{gather(in[0], shape, [&](Shape i) {
      i[dim] = at(in[1], {i[dim]});
      return i;
    })};
  };
  entry.samples = slices_samples();
  entry.errors = slices_errors("index_select", [](const auto&... in) { ops::index_select(in...); });
  return entry;
}

OpEntry index_add_op() {
  OpEntry entry{.op = "index_add"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::index_add(in[0], args["dim"], in[1], in[2])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    Array y = in[0];
    for_each_index(in[2].shape, [&](Shape i) {
      const double value = in[2][i];
      i[dim] = at(in[1], {i[dim]});
      y[i] += value;
    });
    return Arrays{y};
  };
  for (auto sample : slices_samples()) {
    Shape source = sample.inputs[0].shape;
    source[sample.args["dim"].get<std::int64_t>()] = sample.inputs[1].shape[0];
    sample.inputs.push_back({.shape = source});
    entry.samples.push_back(std::move(sample));
  }
  // Slices that fit, so that the index is what is refused.
  entry.errors =
      slices_errors("index_add", [](const Tensor& a, std::int64_t dim, const Tensor& index) {
        Shape source = a.shape();
        if (dim < a.ndim()) source[dim] = index.numel();
        ops::index_add(a, dim, index, Tensor::zeros(source, Dtype::kFloat64));
      });
  const auto call = [](const Tensor& a, const Tensor& index, const Tensor& source) {
    return [=] { ops::index_add(a, 0, index, source); };
  };
  const Tensor integers = Tensor::zeros({2}, Dtype::kInt64);
  entry.errors.push_back(
      {"a source of another shape", call(randn({2, 3}), indices_of({0, 1, 1}), randn({2, 3})),
       "ShapeError", "index_add: source must be [3, 3] to match [2, 3] and 3 indices, got [2, 3]"});
  entry.errors.push_back({"integers", call(integers, indices_of({0, 1}), integers), "DtypeError",
                          "index_add: a must be float32 or float64, got int64"});
  return entry;
}

OpSample elements_sample(const std::string& what, const Shape& shape, std::int64_t dim,
                         const Shape& index, bool large = false) {
  return {.what = what,
          .inputs = {{.shape = shape}, index_input(index, shape[dim])},
          .args = {{"dim", dim}},
          .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
}

std::vector<OpSample> elements_samples() {
  return {elements_sample("along rows", {3, 5}, 1, {3, 4}),
          elements_sample("more than there are", {3, 2}, -1, {3, 9}),
          elements_sample("down columns, some twice", {3, 5}, 0, {7, 4}),
          elements_sample("the middle", {2, 3, 4}, 1, {2, 5, 3}),
          elements_sample("fewer blocks", {3, 2, 4}, 1, {2, 2, 4}),
          elements_sample("a vector", {4}, 0, {6}),
          elements_sample("size one", {1, 1}, 0, {1, 1}),
          elements_sample("no index", {3, 2}, 0, {0, 2}),
          elements_sample("several pieces", {130, 70}, 1, {130, 65}, true)};
}

std::vector<OpError> elements_errors(const std::string& op, const Call& run) {
  const auto call = later(run);
  const auto index = [](const Shape& shape) { return Tensor::zeros(shape, Dtype::kInt64); };
  return {{"a dimension out of range", call(randn({2, 3}), -3, index({2, 3})), "ShapeError",
           op + ": dimension must be in [-2, 1], got -3"},
          {"an index of another rank", call(randn({2, 3}), 0, index({2})), "ShapeError",
           op + ": index must have the 2 dimensions of [2, 3], got [2]"},
          {"an index that is wider", call(randn({2, 3}), 0, index({1, 4})), "ShapeError",
           op + ": index must fit into [2, 3] but for dimension 0, got [1, 4]"},
          {"indices that are no integers", call(randn({2, 3}), 0, randn({2, 3})), "DtypeError",
           op + ": index must be int64, got float64"},
          {"an index out of range", call(randn({2, 3}), 1, Tensor::full({2, 1}, 3, Dtype::kInt64)),
           "ValueError", op + ": index must be in [0, 3), got 3 at position 0"}};
}

OpEntry gather_op() {
  OpEntry entry{.op = "gather", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::gather(in[0], args["dim"], in[1])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    return Arrays{gather(in[0], in[1].shape, [&](Shape i) {
      i[dim] = at(in[1], i);
      return i;
    })};
  };
  entry.samples = elements_samples();
  entry.errors = elements_errors("gather", [](const auto&... in) { ops::gather(in...); });
  return entry;
}

OpEntry scatter_add_op() {
  OpEntry entry{.op = "scatter_add"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::scatter_add(in[0], args["dim"], in[1], in[2])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    Array y = in[0];
    for_each_index(in[2].shape, [&](Shape i) {
      const double value = in[2][i];
      i[dim] = at(in[1], i);
      y[i] += value;
    });
    return Arrays{y};
  };
  for (auto sample : elements_samples()) {
    sample.inputs.push_back({.shape = sample.inputs[1].shape});
    entry.samples.push_back(std::move(sample));
  }
  entry.errors =
      elements_errors("scatter_add", [](const Tensor& a, std::int64_t dim, const Tensor& index) {
        ops::scatter_add(a, dim, index, Tensor::zeros(index.shape(), Dtype::kFloat64));
      });
  const auto call = [](const Tensor& a, const Tensor& index, const Tensor& source) {
    return [=] { ops::scatter_add(a, 0, index, source); };
  };
  const Tensor row = Tensor::zeros({1, 3}, Dtype::kInt64),
               integers = Tensor::zeros({2}, Dtype::kInt64);
  entry.errors.push_back({"a source of another shape", call(randn({2, 3}), row, randn({2, 3})),
                          "ShapeError", "scatter_add: source must be [1, 3] as index, got [2, 3]"});
  entry.errors.push_back({"integers", call(integers, integers, integers), "DtypeError",
                          "scatter_add: a must be float32 or float64, got int64"});
  return entry;
}

// counts[i] times slice i.
Array repeated(const Array& x, std::int64_t dim, const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> from;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::int64_t n = 0; n < counts[i]; ++n) from.push_back(static_cast<std::int64_t>(i));
  }
  Shape shape = x.shape;
  shape[dim] = std::ssize(from);
  return gather(x, shape, [&](Shape i) {
    i[dim] = from[static_cast<std::size_t>(i[dim])];
    return i;
  });
}

OpEntry repeat_interleave_op() {
  OpEntry entry{
      .op = "repeat_interleave", .parameters = "Tensor, int64, int64", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::repeat_interleave(in[0], args["n"].get<std::int64_t>(), args["dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    return Arrays{repeated(in[0], dim,
                           std::vector<std::int64_t>(static_cast<std::size_t>(in[0].dim(dim)),
                                                     args["n"].get<std::int64_t>()))};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t n,
                         std::int64_t dim) {
    return OpSample{.what = what, .inputs = {{.shape = shape}}, .args = {{"n", n}, {"dim", dim}}};
  };
  entry.samples = {sample("rows", {3, 2}, 2, 0),          sample("columns", {2, 3}, 3, -1),
                   sample("the middle", {2, 3, 2}, 2, 1), sample("once", {2, 3}, 1, 0),
                   sample("never", {2, 3}, 0, 0),         sample("nothing", {0, 3}, 2, 0)};
  entry.errors = {{"a negative number", [] { ops::repeat_interleave(randn({2}), -1, 0); },
                   "ValueError", "repeat_interleave: n must not be negative, got -1"},
                  {"a dimension out of range", [] { ops::repeat_interleave(randn({2}), 1, 1); },
                   "ShapeError", "repeat_interleave: dimension must be in [-1, 0], got 1"}};
  return entry;
}

OpEntry repeat_by_counts_op() {
  OpEntry entry{
      .op = "repeat_interleave", .parameters = "Tensor, Tensor, int64", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::repeat_interleave(in[0], in[1], args["dim"].get<std::int64_t>())};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    return Arrays{repeated(in[0], dim, {in[1].values.begin(), in[1].values.end()})};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = shape}, {.shape = {shape[dim]}, .draw = Draw::kIndices, .bound = 4}},
        .args = {{"dim", dim}}};
  };
  entry.samples = {sample("rows", {5, 2}, 0), sample("columns", {2, 6}, -1),
                   sample("the middle", {2, 4, 2}, 1), sample("nothing", {0, 3}, 0)};
  const auto call = [](const Tensor& a, const Tensor& counts) {
    return [=] { ops::repeat_interleave(a, counts, 0); };
  };
  entry.errors = {{"too few counts", call(randn({3, 2}), indices_of({1, 2})), "ShapeError",
                   "repeat_interleave: counts must be [3] to match dimension 0 of [3, 2], got [2]"},
                  {"counts that are no integers", call(randn({2}), randn({2})), "DtypeError",
                   "repeat_interleave: counts must be int64, got float64"},
                  {"a negative count", call(randn({2}), indices_of({1, -2})), "ValueError",
                   "repeat_interleave: counts must not be negative, got -2"}};
  return entry;
}

OpEntry one_hot_op() {
  OpEntry entry{.op = "one_hot", .dtypes = kAllDtypes, .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::one_hot(in[0], args["num_classes"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    auto classes = args["num_classes"].get<std::int64_t>();
    if (classes == -1) {
      classes = static_cast<std::int64_t>(std::ranges::max(in[0].values)) + 1;
    }
    Shape shape = in[0].shape;
    shape.push_back(classes);
    Array y(shape);
    for_each_index(in[0].shape, [&](const Shape& i) {
      Shape at = i;
      at.push_back(static_cast<std::int64_t>(in[0][i]));
      y[at] = 1;
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t classes) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .draw = Draw::kIndices, .bound = 5}},
                    .args = {{"num_classes", classes}}};
  };
  entry.samples = {sample("a row", {7}, 5), sample("more classes", {2, 3}, 9),
                   sample("as many as there are", {3, 4}, -1), sample("a scalar", {}, 5),
                   sample("nothing", {0, 3}, 2)};
  const auto call = [](const Tensor& index, std::int64_t num_classes = -1) {
    return [=] { ops::one_hot(index, num_classes); };
  };
  entry.errors = {{"an index out of range", call(indices_of({1, 3}), 3), "ValueError",
                   "one_hot: index must be in [0, 3), got 3 at position 1"},
                  {"a negative index", call(indices_of({-1})), "ValueError",
                   "one_hot: index must be in [0, 1), got -1 at position 0"},
                  {"the largest index", call(indices_of({INT64_MAX})), "ValueError",
                   "one_hot: index must be in [0, 9223372036854775807), got 9223372036854775807 at "
                   "position 0"},
                  {"no classes", call(indices_of({0}), 0), "ValueError",
                   "one_hot: num_classes must be at least 1, or -1, got 0"},
                  {"as many as in nothing", call(indices_of({})), "ValueError",
                   "one_hot: needs num_classes where there is no index"},
                  {"indices that are no integers", call(randn({2})), "DtypeError",
                   "one_hot: index must be int64, got float64"}};
  return entry;
}

OpEntry flip_op() {
  OpEntry entry{.op = "flip", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::flip(in[0], integers_from(args["dims"]))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto& x = in[0];
    return Arrays{gather(x, x.shape, [&](Shape i) {
      for (const auto each : integers_from(args["dims"])) {
        const auto dim = from_front(each, x.shape.ndim());
        i[dim] = x.dim(dim) - 1 - i[dim];
      }
      return i;
    })};
  };
  const auto sample = [](const std::string& what, const Shape& shape,
                         const std::vector<std::int64_t>& dims, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}},
                    .args = {{"dims", dims}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {
      sample("rows", {3, 4}, {0}),         sample("columns", {3, 4}, {-1}),
      sample("all", {2, 3, 4}, {2, 0, 1}), sample("the middle", {2, 3, 4}, {1}),
      sample("none", {2, 3}, {}),          sample("a scalar", {}, {}),
      sample("nothing", {0, 3}, {0}),      sample("several pieces", {130, 90}, {0, 1}, true)};
  const auto call = [](const std::vector<std::int64_t>& dims) {
    return [=] { ops::flip(randn({2, 3}), dims); };
  };
  entry.errors = {
      {"a dimension twice", call({1, -1}), "ShapeError", "flip: dimension 1 is named twice"},
      {"a dimension out of range", call({2}), "ShapeError",
       "flip: dimension must be in [-2, 1], got 2"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> index_entries() {
  return {index_select_op(),      index_add_op(),        gather_op(),  scatter_add_op(),
          repeat_interleave_op(), repeat_by_counts_op(), one_hot_op(), flip_op()};
}

}  // namespace moegrad::test
