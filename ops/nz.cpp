// SPDX-License-Identifier: Apache-2.0
#include "ops/nz.h"

#include <string_view>
#include <type_traits>

#include "framework/autograd/function.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/kernels/bf16/blocks.h"
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/nz.h"

namespace moegrad::ops {
namespace {

constexpr std::int64_t kRowsPerPiece = 256;

// Fills all of `out` from the stacked rows of `source`. bfloat16 gets the pairs that this rank's
// kernels read.
template <class Source, class T>
void write_blocks(const Source* source, std::int64_t ld, Tensor& out) {
  T* to = out.mutable_nz_data<T>().data();
  const auto& blocks = out.nz_blocks();
  auto pairs = out.storage().nz_pairs();
  pairs.order = kernels::bf16::loops_of(RankContext::current_kernels()).order;
  parallel_for(blocks.batch * blocks.k, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    const Source* const rows = source + begin * ld;
    if constexpr (std::is_same_v<T, BFloat16>) {
      kernels::bf16::slice_rows_to_pairs(rows, ld, begin, end - begin, blocks, pairs, to);
    } else {
      kernels::slice_rows_to_nz(rows, ld, begin, end - begin, blocks, to);
    }
  });
  if constexpr (std::is_same_v<T, BFloat16>) {
    kernels::bf16::pairs_zero_padding(blocks, pairs, to);
    out.storage().set_nz_pairs(pairs);
  } else {
    kernels::nz_zero_padding(blocks, to);
  }
  auto& counters = RankContext::current().counters();
  ++counters.nz_conversions;
  counters.converted_bytes += blocks.numel(out.dtype()) * size_of(out.dtype());
}

// dL/dweight = dL/dy.
class CastToNz final : public Function {
 public:
  CastToNz(const NzBlocks& blocks, bool transposed) : blocks_(blocks), transposed_(transposed) {}

  std::string_view name() const override { return "cast_to_nz"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& weight) {
    const MemoryTagGuard tag(MemoryTag::kParameters);
    Tensor out = Tensor::empty_nz(weight.shape(), blocks_, Dtype::kBFloat16);
    out.storage().set_nz_pairs({.transposed = transposed_});
    write_blocks<float, BFloat16>(weight.data<float>().data(), blocks_.n, out);
    return out;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {widened(contiguous(grads[0]))};
  }

 private:
  NzBlocks blocks_;
  bool transposed_;
};

}  // namespace

Tensor cast_to_nz(const Tensor& weight, const NzBlocks& blocks, bool transposed) {
  check_operands("cast_to_nz", weight);
  const Shape stacked{blocks.batch, blocks.k, blocks.n}, flat{blocks.batch * blocks.k, blocks.n};
  check<ShapeError>(weight.shape() == stacked || weight.shape() == flat,
                    "cast_to_nz: weight must be ", stacked, " or ", flat, ", got ", weight.shape());
  check<DtypeError>(weight.dtype() == Dtype::kFloat32, "cast_to_nz: weight must be float32, got ",
                    weight.dtype());
  return apply<CastToNz>(made_with(blocks, transposed), contiguous(weight));
}

Tensor nd_to_nz(const Tensor& a) {
  check_operands("nd_to_nz", a);
  check<ShapeError>(a.ndim() == 2 || a.ndim() == 3, "nd_to_nz: needs [K, N] or [B, K, N], got ",
                    a.shape());
  check<LayoutError>(a.layout() == Layout::kND, "nd_to_nz: needs row-major ND, got FRACTAL_NZ");
  check_reals("nd_to_nz", "a", a);
  const Tensor source = contiguous(a.detach());
  const NzBlocks blocks{a.ndim() == 3 ? a.dim(0) : 1, a.dim(-2), a.dim(-1)};
  Tensor out = Tensor::empty_nz(a.shape(), blocks, a.dtype());
  dispatch_reals(a.dtype(),
                 [&]<class T>() { write_blocks<T, T>(source.data<T>().data(), blocks.n, out); });
  return out;
}

Tensor nz_to_nd(const Tensor& a) {
  check_operands("nz_to_nd", a);
  check<LayoutError>(a.layout() == Layout::kNZ, "nz_to_nd: needs FRACTAL_NZ, got row-major ND");
  Tensor out = Tensor::empty(a.shape(), a.dtype());
  const auto& blocks = a.nz_blocks();
  dispatch_reals(a.dtype(), [&]<class T>() {
    const T* from = a.nz_data<T>().data();
    T* to = out.mutable_data<T>().data();
    parallel_for(blocks.batch * blocks.k, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
      T* const rows = to + begin * blocks.n;
      if constexpr (std::is_same_v<T, BFloat16>) {
        kernels::bf16::rows_from_pairs(from, blocks, a.storage().nz_pairs(), begin, end - begin,
                                       rows, blocks.n);
      } else {
        kernels::rows_from_nz(from, blocks, begin, end - begin, rows, blocks.n);
      }
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
  const bool rounds = in.dtype() == Dtype::kFloat32 && out.dtype() == Dtype::kBFloat16;
  check<DtypeError>(widens || rounds || in.dtype() == out.dtype(), "slice_to_nz: in is ",
                    in.dtype(), " but out is ", out.dtype());
  const auto ld = in.dim(1);
  const auto first = dim == 0 ? start * ld : start;
  if (widens) {
    write_blocks<BFloat16, float>(in.data<BFloat16>().data() + first, ld, out);
    return;
  }
  if (rounds) {
    write_blocks<float, BFloat16>(in.data<float>().data() + first, ld, out);
    return;
  }
  dispatch_reals(in.dtype(),
                 [&]<class T>() { write_blocks<T, T>(in.data<T>().data() + first, ld, out); });
}

}  // namespace moegrad::ops
