// SPDX-License-Identifier: Apache-2.0
#include "ops/nz.h"

#include "framework/runtime/parallel_for.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/kernels/nz.h"

namespace moegrad::ops {
namespace {

constexpr std::int64_t kRowsPerPiece = 256;

// Fills all of `out` from the stacked rows of `source`.
template <class Source, class T>
void write_blocks(const Source* source, std::int64_t ld, Tensor& out) {
  T* to = out.mutable_nz_data<T>().data();
  const auto& blocks = out.nz_blocks();
  parallel_for(blocks.batch * blocks.k, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    kernels::slice_rows_to_nz(source + begin * ld, ld, begin, end - begin, blocks, to);
  });
  kernels::nz_zero_padding(blocks, to);
  auto& counters = RankContext::current().counters();
  ++counters.nz_conversions;
  counters.converted_bytes += blocks.numel(out.dtype()) * size_of(out.dtype());
}

}  // namespace

Tensor nd_to_nz(const Tensor& a) {
  check_operands("nd_to_nz", a);
  check<ShapeError>(a.ndim() == 2 || a.ndim() == 3, "nd_to_nz: needs [K, N] or [B, K, N], got ",
                    a.shape());
  check<LayoutError>(a.layout() == Layout::kND, "nd_to_nz: needs row-major ND, got FRACTAL_NZ");
  check_floating("nd_to_nz", a);
  const Tensor source = contiguous(a.detach());
  const NzBlocks blocks{a.ndim() == 3 ? a.dim(0) : 1, a.dim(-2), a.dim(-1)};
  Tensor out = Tensor::empty_nz(a.shape(), blocks, a.dtype());
  dispatch_floating(a.dtype(),
                    [&]<class T>() { write_blocks<T, T>(source.data<T>().data(), blocks.n, out); });
  return out;
}

Tensor nz_to_nd(const Tensor& a) {
  check_operands("nz_to_nd", a);
  check<LayoutError>(a.layout() == Layout::kNZ, "nz_to_nd: needs FRACTAL_NZ, got row-major ND");
  check_floating("nz_to_nd", a);
  Tensor out = Tensor::empty(a.shape(), a.dtype());
  const auto& blocks = a.nz_blocks();
  dispatch_floating(a.dtype(), [&]<class T>() {
    const T* from = a.nz_data<T>().data();
    T* to = out.mutable_data<T>().data();
    parallel_for(blocks.batch * blocks.k, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
      kernels::rows_from_nz(from, blocks, begin, end - begin, to + begin * blocks.n, blocks.n);
    });
  });
  return out;
}

void slice_to_nz(const Tensor& in, std::int64_t dim, std::int64_t start, std::int64_t end,
                 Tensor& out) {
  check_operands("slice_to_nz", in, out);
  check<ShapeError>(in.ndim() == 2, "slice_to_nz: in must be [R, C], got ", in.shape());
  check<ValueError>(dim == 0 || dim == 1, "slice_to_nz: dim must be 0 or 1, got ", dim);
  check<ValueError>(0 <= start && start <= end && end <= in.dim(dim),
                    "slice_to_nz: needs 0 <= start <= end <= ", in.dim(dim), " along dimension ",
                    dim, ", got [", start, ", ", end, ")");
  check<LayoutError>(out.layout() == Layout::kNZ,
                     "slice_to_nz: out must be FRACTAL_NZ, got row-major ND");
  Shape slice = in.shape();
  slice[dim] = end - start;
  const auto& blocks = out.nz_blocks();
  check<ShapeError>((slice == Shape{blocks.batch * blocks.k, blocks.n}),
                    "slice_to_nz: blocks of out must stack to the slice ", slice, ", got ",
                    Shape{blocks.batch, blocks.k, blocks.n});
  const bool widens = in.dtype() == Dtype::kBFloat16 && out.dtype() == Dtype::kFloat32;
  check<DtypeError>(widens || in.dtype() == out.dtype(), "slice_to_nz: in is ", in.dtype(),
                    " but out is ", out.dtype());
  const auto ld = in.dim(1);
  const auto first = dim == 0 ? start * ld : start;
  if (widens) {
    write_blocks<BFloat16, float>(in.data<BFloat16>().data() + first, ld, out);
    return;
  }
  dispatch_floating(in.dtype(),
                    [&]<class T>() { write_blocks<T, T>(in.data<T>().data() + first, ld, out); });
}

}  // namespace moegrad::ops
