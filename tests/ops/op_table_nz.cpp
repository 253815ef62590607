// SPDX-License-Identifier: Apache-2.0
#include "ops/nz.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// The bytes as they are stored, padding included.
Tensor stored_elements(const Tensor& nz) {
  return dispatch_floating(nz.dtype(), [&]<class T>() {
    return Tensor::from(nz.nz_data<T>(), {nz.nz_blocks().numel(dtype_of<T>)});
  });
}

// Note [FRACTAL_NZ] for `x` seen as matrices [batch, k, n].
Array stored(const Array& x, std::int64_t batch, std::int64_t k, std::int64_t n) {
  const auto k16 = (k + 15) / 16 * 16, n16 = (n + 15) / 16 * 16;
  Array y({batch * k16 * n16});
  std::size_t from = 0;
  for_each_index({batch, k, n}, [&](const Shape& i) {
    y[{i[0] * k16 * n16 + i[2] / 16 * k16 * 16 + i[1] * 16 + i[2] % 16}] = x.values[from++];
  });
  return y;
}

std::vector<OpSample> matrix_samples(Nz nz) {
  const auto sample = [nz](const std::string& what, const Shape& shape) {
    return OpSample{.what = what, .inputs = {{.shape = shape, .nz = nz}}};
  };
  return {sample("one block", {3, 5}),      sample("several blocks", {17, 33}),
          sample("whole blocks", {32, 16}), sample("a batch", {3, 5, 18}),
          sample("size one", {1, 1}),       sample("no rows", {0, 4}),
          sample("no columns", {2, 3, 0}),  sample("several pieces", {600, 20})};
}

OpEntry nd_to_nz_op() {
  OpEntry entry{.op = "nd_to_nz", .differentiable = false};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{stored_elements(ops::nd_to_nz(in[0]))};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    const auto& x = in[0];
    return Arrays{stored(x, x.shape.ndim() == 3 ? x.dim(0) : 1, x.dim(-2), x.dim(-1))};
  };
  entry.samples = matrix_samples(Nz::kRefused);
  const auto call = [](const Tensor& nd) { return [=] { ops::nd_to_nz(nd); }; };
  entry.errors = {
      {"a vector", call(randn({4})), "ShapeError", "nd_to_nz: needs [K, N] or [B, K, N], got [4]"},
      {"blocks", call(as_nz(randn({4, 2}))), "LayoutError",
       "nd_to_nz: needs row-major ND, got FRACTAL_NZ"},
      {"integers", call(Tensor::zeros({4, 2}, Dtype::kInt64)), "DtypeError",
       "nd_to_nz: a must be float32, float64 or bfloat16, got int64"}};
  return entry;
}

OpEntry nz_to_nd_op() {
  OpEntry entry{.op = "nz_to_nd", .differentiable = false};
  entry.run = [](const TensorList& in, const Json&) {
    const bool is_nd = in[0].defined() && in[0].layout() == Layout::kND;
    return TensorList{ops::nz_to_nd(is_nd ? as_nz(in[0]) : in[0])};
  };
  entry.reference = [](const Arrays& in, const Json&) { return in; };
  entry.samples = matrix_samples(Nz::kRead);
  entry.errors = {{"row-major elements",
                   [] {
                     ops::nz_to_nd(randn({4, 2}));
                   },
                   "LayoutError", "nz_to_nd: needs FRACTAL_NZ, got row-major ND"}};
  return entry;
}

OpEntry slice_to_nz_op() {
  OpEntry entry{.op = "slice_to_nz",
                .dtypes = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16},
                .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto given = in[0].defined() ? in[0].dtype() : Dtype::kFloat32;
    const auto dtype = given == Dtype::kBFloat16 ? Dtype::kFloat32 : given;
    const auto blocks = integers_from(args["blocks"]);
    Tensor out = Tensor::empty_nz({blocks[0] * blocks[1], blocks[2]},
                                  {blocks[0], blocks[1], blocks[2]}, dtype);
    ops::slice_to_nz(in[0], args["dim"], args["start"], args["end"], out);
    return TensorList{stored_elements(out)};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const std::int64_t dim = args["dim"], start = args["start"], end = args["end"];
    Shape shape = in[0].shape;
    shape[dim] = end - start;
    Array slice(shape);
    for_each_index(shape, [&](const Shape& i) {
      Shape from = i;
      from[dim] += start;
      slice[i] = in[0][from];
    });
    const auto blocks = integers_from(args["blocks"]);
    return Arrays{stored(slice, blocks[0], blocks[1], blocks[2])};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim,
                         std::int64_t start, std::int64_t end, const Json& blocks) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .strides = Strides::kContiguousOnly}},
                    .args = {{"dim", dim}, {"start", start}, {"end", end}, {"blocks", blocks}}};
  };
  entry.samples = {sample("rows", {7, 5}, 0, 2, 6, {1, 4, 5}),
                   sample("columns", {6, 40}, 1, 3, 37, {2, 3, 34}),
                   sample("rows of experts", {24, 17}, 0, 6, 24, {3, 6, 17}),
                   sample("all", {16, 16}, 0, 0, 16, {1, 16, 16}),
                   sample("one element", {3, 3}, 1, 2, 3, {3, 1, 1}),
                   sample("nothing", {3, 3}, 0, 1, 1, {1, 0, 3}),
                   sample("of nothing", {0, 3}, 1, 1, 3, {1, 0, 2}),
                   sample("several pieces", {600, 20}, 1, 1, 19, {2, 300, 18})};
  const auto slice = [](const Tensor& in, std::int64_t dim, std::int64_t start, std::int64_t end,
                        const Tensor& out) {
    return [=, out = out]() mutable { ops::slice_to_nz(in, dim, start, end, out); };
  };
  const Tensor blocks = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat64);
  entry.errors = {{"three dimensions", slice(randn({1, 2, 3}), 0, 0, 1, blocks), "ShapeError",
                   "slice_to_nz: in must be [R, C], got [1, 2, 3]"},
                  {"another dimension", slice(randn({2, 3}), 2, 0, 2, blocks), "ValueError",
                   "slice_to_nz: dim must be 0 or 1, got 2"},
                  {"past the end", slice(randn({2, 3}), 0, 1, 3, blocks), "ValueError",
                   "slice_to_nz: needs 0 <= start <= end <= 2 along dimension 0, got [1, 3)"},
                  {"into row-major elements", slice(randn({2, 3}), 0, 0, 2, randn({2, 3})),
                   "LayoutError", "slice_to_nz: out must be FRACTAL_NZ, got row-major ND"},
                  {"into other blocks", slice(randn({4, 3}), 0, 0, 3, blocks), "ShapeError",
                   "slice_to_nz: blocks of out must stack to the slice [3, 3], got [1, 2, 3]"},
                  {"another dtype", slice(randn({2, 3}, 1, Dtype::kFloat32), 0, 0, 2, blocks),
                   "DtypeError", "slice_to_nz: in is float32 but out is float64"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> nz_entries() { return {nd_to_nz_op(), nz_to_nd_op(), slice_to_nz_op()}; }

}  // namespace moegrad::test
