// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/nz.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "framework/tensor/dtype.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {
namespace {

// From this size on, a destination is written past the caches: it would not stay in them, and lines
// that are overwritten completely need not be read first.
constexpr std::int64_t kStreamFrom = std::int64_t{8} << 20;

// Rows that are written to a panel together. Row by row, the writes would visit all panels in turn
// and keep as many memory pages open as there are panels. Eight rows are 512 bytes of each panel.
constexpr std::int64_t kRowsTogether = 8;

// Prefetches the lines of the rows from `row` on, also past the caches, in the order of memory. If
// eight rows at a time were read, as they are written, memory would deliver two thirds of its
// speed.
template <class Source>
struct LinesAhead {
  const Source* row;
  std::int64_t ld, columns;
  std::int64_t column = 0;

  void fetch_next() {
    __builtin_prefetch(row + column, 0, 0);
    column += kNzBlock;
    if (column < columns) return;
    column = 0;
    row += ld;
  }
};

// Sixteen elements, converted.
template <class Source, class T>
void write_line(const Source* from, bool streams, T* to) {
  alignas(64) T line[kNzBlock];
  for (std::int64_t c = 0; c < kNzBlock; ++c) line[c] = static_cast<T>(from[c]);
  for (std::int64_t c = 0; c < kNzBlock; c += Vec<T>::kLanes) {
    const auto lanes = Vec<T>::load(line + c);
    streams ? lanes.stream(to + c) : lanes.store(to + c);
  }
}

// Calls body(row of the source, position of its first element in the NZ tensor) for each row.
template <class Body>
void for_each_row(std::int64_t first_row, std::int64_t num_rows, const NzBlocks& blocks,
                  const Body& body) {
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const auto row = first_row + i;
    body(i, row / blocks.k * nz_numel(blocks.k, blocks.n) + row % blocks.k * kNzBlock);
  }
}

}  // namespace

template <class Source, class T>
void slice_rows_to_nz(const Source* rows, std::int64_t ld, std::int64_t first_row,
                      std::int64_t num_rows, const NzBlocks& blocks, T* out) {
  const auto panel = round_up(blocks.k, kNzBlock) * kNzBlock;
  const auto whole = blocks.n / kNzBlock * kNzBlock;
  const bool streams =
      blocks.numel(dtype_of<T>) * static_cast<std::int64_t>(sizeof(T)) >= kStreamFrom &&
      std::bit_cast<std::uintptr_t>(out) % sizeof(Vec<T>) == 0;
  for (std::int64_t i = 0; i < num_rows;) {
    const auto row = first_row + i;
    const auto together = std::min({kRowsTogether, num_rows - i, blocks.k - row % blocks.k});
    const Source* from = rows + i * ld;
    T* to = out + row / blocks.k * nz_numel(blocks.k, blocks.n) + row % blocks.k * kNzBlock;
    LinesAhead<Source> ahead{from + together * ld, ld, blocks.n};
    for (std::int64_t j = 0; j < whole; j += kNzBlock, to += panel) {
      for (std::int64_t r = 0; r < together; ++r) {
        if (streams) ahead.fetch_next();
        write_line(from + r * ld + j, streams, to + r * kNzBlock);
      }
    }
    for (std::int64_t r = 0; r < together; ++r) {
      for (std::int64_t c = 0; c < blocks.n - whole; ++c) {
        to[r * kNzBlock + c] = static_cast<T>(from[r * ld + whole + c]);
      }
    }
    i += together;
  }
  if (streams) finish_streams();
}

template <class Source, class T>
void slice_columns_to_nz(const Source* columns, std::int64_t first_column, std::int64_t num_columns,
                         const NzBlocks& blocks, T* out) {
  for_each_row(0, blocks.batch * blocks.k, blocks, [&](std::int64_t i, std::int64_t offset) {
    const Source* from = columns + i * num_columns;
    for (std::int64_t j = 0; j < num_columns; ++j) {
      out[offset + nz_offset(0, first_column + j, blocks.k)] = static_cast<T>(from[j]);
    }
  });
}

template <class T>
void rows_from_nz(const T* nz, const NzBlocks& blocks, std::int64_t first_row,
                  std::int64_t num_rows, T* rows, std::int64_t ld) {
  const auto panel = round_up(blocks.k, kNzBlock) * kNzBlock;
  for_each_row(first_row, num_rows, blocks, [&](std::int64_t i, std::int64_t offset) {
    for (std::int64_t j = 0; j < blocks.n; j += kNzBlock) {
      std::copy_n(nz + offset + j / kNzBlock * panel, std::min(kNzBlock, blocks.n - j),
                  rows + i * ld + j);
    }
  });
}

template <class T>
void nz_zero_padding(const NzBlocks& blocks, T* out) {
  const auto k_end = round_up(blocks.k, kNzBlock);
  const auto n_end = round_up(blocks.n, kNzBlock);
  for (std::int64_t b = 0; b < blocks.batch; ++b, out += nz_numel(blocks.k, blocks.n)) {
    for (std::int64_t j = 0; j < n_end; j += kNzBlock) {
      std::fill_n(out + j * k_end + blocks.k * kNzBlock, (k_end - blocks.k) * kNzBlock, T(0));
    }
    if (n_end == blocks.n) continue;
    const auto columns = blocks.n % kNzBlock;
    T* last = out + (n_end - kNzBlock) * k_end;
    for (std::int64_t i = 0; i < blocks.k; ++i) {
      std::fill_n(last + i * kNzBlock + columns, kNzBlock - columns, T(0));
    }
  }
}

template void slice_rows_to_nz<float, float>(const float*, std::int64_t, std::int64_t, std::int64_t,
                                             const NzBlocks&, float*);
template void slice_rows_to_nz<double, double>(const double*, std::int64_t, std::int64_t,
                                               std::int64_t, const NzBlocks&, double*);
template void slice_rows_to_nz<BFloat16, float>(const BFloat16*, std::int64_t, std::int64_t,
                                                std::int64_t, const NzBlocks&, float*);
template void slice_rows_to_nz<BFloat16, double>(const BFloat16*, std::int64_t, std::int64_t,
                                                 std::int64_t, const NzBlocks&, double*);
template void slice_columns_to_nz<float, float>(const float*, std::int64_t, std::int64_t,
                                                const NzBlocks&, float*);
template void slice_columns_to_nz<double, double>(const double*, std::int64_t, std::int64_t,
                                                  const NzBlocks&, double*);
template void slice_columns_to_nz<BFloat16, float>(const BFloat16*, std::int64_t, std::int64_t,
                                                   const NzBlocks&, float*);
template void slice_columns_to_nz<BFloat16, double>(const BFloat16*, std::int64_t, std::int64_t,
                                                    const NzBlocks&, double*);
template void rows_from_nz<float>(const float*, const NzBlocks&, std::int64_t, std::int64_t, float*,
                                  std::int64_t);
template void rows_from_nz<double>(const double*, const NzBlocks&, std::int64_t, std::int64_t,
                                   double*, std::int64_t);
template void nz_zero_padding<float>(const NzBlocks&, float*);
template void nz_zero_padding<double>(const NzBlocks&, double*);

}  // namespace moegrad::kernels
