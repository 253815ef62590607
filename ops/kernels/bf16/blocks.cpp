// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/blocks.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "ops/kernels/bf16/order.h"
#include "ops/kernels/bf16/pack.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels::bf16 {
namespace {

// From this size on, a destination is written past the caches: it would not stay in them, and lines
// that are overwritten completely need not be read first.
constexpr std::int64_t kStreamFrom = std::int64_t{8} << 20;

// Elements of a unit.
constexpr std::int64_t kUnitSize = kUnit * kPanel;

// A rectangle of one matrix.
struct Range {
  std::int64_t row, rows, column, columns;
};

// Calls body(matrix, range, i) for the rows of each matrix, which are rows i, ... of the range.
template <class Body>
void for_each_matrix(std::int64_t first_row, std::int64_t num_rows, const NzBlocks& blocks,
                     const Body& body) {
  for (std::int64_t i = 0; i < num_rows;) {
    const auto matrix = (first_row + i) / blocks.k, row = (first_row + i) % blocks.k;
    const auto rows = std::min(blocks.k - row, num_rows - i);
    body(matrix * nz_numel(blocks.k, blocks.n, Dtype::kBFloat16), Range{row, rows, 0, blocks.n}, i);
    i += rows;
  }
}

// Calls body(part) for each part of the range, which is cut at multiples of `height` and `width`.
template <class Body>
void for_each_tile(const Range& range, std::int64_t height, std::int64_t width, const Body& body) {
  const auto row_end = range.row + range.rows, column_end = range.column + range.columns;
  for (auto r = range.row; r < row_end;) {
    const auto rows = std::min(row_end - r, height - r % height);
    for (auto c = range.column; c < column_end;) {
      const auto columns = std::min(column_end - c, width - c % width);
      body(Range{r, rows, c, columns});
      c += columns;
    }
    r += rows;
  }
}

// Writes to the matrices of `out`.
class Writer {
 public:
  Writer(const NzBlocks& blocks, NzPairs pairs, const BFloat16* out)
      : blocks_(blocks),
        pairs_(pairs),
        streams_(blocks.numel(Dtype::kBFloat16) * std::int64_t{sizeof(BFloat16)} >= kStreamFrom &&
                 std::bit_cast<std::uintptr_t>(out) % sizeof(Vec<float>) == 0) {}
  ~Writer() {
    if (streams_) finish_streams();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Whole units at once, the others by halves of words, whose other halves may be another thread's.
  void write(const BFloat16* from, std::int64_t ld, const Range& range, BFloat16* matrix) const {
    const auto height = pairs_.transposed ? kPanel : kUnit, width = kUnitSize / height;
    for_each_tile(range, height, width, [&](const Range& part) {
      const BFloat16* const at = from + (part.row - range.row) * ld + (part.column - range.column);
      if (part.rows * part.columns == kUnitSize) {
        const auto offset = nz_offset(part.row, part.column, blocks_, pairs_);
        return write_unit(at, ld, matrix + offset / kUnitSize * kUnitSize);
      }
      for (std::int64_t r = 0; r < part.rows; ++r) {
        for (std::int64_t c = 0; c < part.columns; ++c) {
          matrix[nz_offset(part.row + r, part.column + c, blocks_, pairs_)] = at[r * ld + c];
        }
      }
    });
  }

  // Rounds some rows first, few enough that memory is read while lines of the last ones still go to
  // memory, and fetches the lines that will be read a band of rows later.
  void write(const float* from, std::int64_t ld, const Range& range, BFloat16* matrix) const {
    constexpr std::int64_t kSide = kUnit, kLine = 16;
    BFloat16 rounded[kSide * kSide];
    for_each_tile(range, kSide, kSide, [&](const Range& part) {
      const float* row = from + (part.row - range.row) * ld + (part.column - range.column);
      for (std::int64_t r = 0; r < part.rows; ++r, row += ld) {
        __builtin_prefetch(row + kSide * ld);
        __builtin_prefetch(row + kSide * ld + kLine);
        for (std::int64_t c = 0; c < part.columns; ++c) {
          rounded[r * kSide + c] = BFloat16(row[c]);
        }
      }
      write(rounded, kSide, part, matrix);
    });
  }

 private:
  void write_unit(const BFloat16* from, std::int64_t ld, BFloat16* to) const {
    const Lanes lanes{from, pairs_.transposed ? 1 : ld, pairs_.transposed ? ld : 1};
    if (!streams_) {
      return pack_unit(lanes, kUnit, kPanel, pairs_.order, reinterpret_cast<std::byte*>(to));
    }
    alignas(64) std::byte unit[kUnitBytes];
    pack_unit(lanes, kUnit, kPanel, pairs_.order, unit);
    for (std::int64_t i = 0; i < kUnitBytes / 4; i += Vec<float>::kLanes) {
      Vec<float>::load(reinterpret_cast<const float*>(unit) + i)
          .stream(reinterpret_cast<float*>(to) + i);
    }
  }

  const NzBlocks blocks_;
  const NzPairs pairs_;
  const bool streams_;
};

}  // namespace

template <class Source>
void slice_rows_to_pairs(const Source* rows, std::int64_t ld, std::int64_t first_row,
                         std::int64_t num_rows, const NzBlocks& blocks, NzPairs pairs,
                         BFloat16* out) {
  const Writer writer(blocks, pairs, out);
  for_each_matrix(first_row, num_rows, blocks,
                  [&](std::int64_t matrix, const Range& range, std::int64_t i) {
                    writer.write(rows + i * ld, ld, range, out + matrix);
                  });
}

template <class Source>
void slice_columns_to_pairs(const Source* columns, std::int64_t first_column,
                            std::int64_t num_columns, const NzBlocks& blocks, NzPairs pairs,
                            BFloat16* out) {
  const Writer writer(blocks, pairs, out);
  for_each_matrix(0, blocks.batch * blocks.k, blocks,
                  [&](std::int64_t matrix, Range range, std::int64_t i) {
                    range.column = first_column;
                    range.columns = num_columns;
                    writer.write(columns + i * num_columns, num_columns, range, out + matrix);
                  });
}

void rows_from_pairs(const BFloat16* packed, const NzBlocks& blocks, NzPairs pairs,
                     std::int64_t first_row, std::int64_t num_rows, BFloat16* rows,
                     std::int64_t ld) {
  for_each_matrix(
      first_row, num_rows, blocks, [&](std::int64_t matrix, const Range& range, std::int64_t i) {
        for (std::int64_t r = 0; r < range.rows; ++r) {
          for (std::int64_t c = 0; c < range.columns; ++c) {
            rows[(i + r) * ld + c] = packed[matrix + nz_offset(range.row + r, c, blocks, pairs)];
          }
        }
      });
}

void pairs_zero_padding(const NzBlocks& blocks, NzPairs pairs, BFloat16* out) {
  const auto k_end = round_up(blocks.k, kUnit), n_end = round_up(blocks.n, kUnit);
  for (std::int64_t b = 0; b < blocks.batch; ++b) {
    for (std::int64_t k = 0; k < k_end; ++k) {
      for (auto n = k < blocks.k ? blocks.n : 0; n < n_end; ++n) {
        out[nz_offset(k, n, blocks, pairs)] = BFloat16();
      }
    }
    out += nz_numel(blocks.k, blocks.n, Dtype::kBFloat16);
  }
}

template void slice_rows_to_pairs<float>(const float*, std::int64_t, std::int64_t, std::int64_t,
                                         const NzBlocks&, NzPairs, BFloat16*);
template void slice_rows_to_pairs<BFloat16>(const BFloat16*, std::int64_t, std::int64_t,
                                            std::int64_t, const NzBlocks&, NzPairs, BFloat16*);
template void slice_columns_to_pairs<float>(const float*, std::int64_t, std::int64_t,
                                            const NzBlocks&, NzPairs, BFloat16*);
template void slice_columns_to_pairs<BFloat16>(const BFloat16*, std::int64_t, std::int64_t,
                                               const NzBlocks&, NzPairs, BFloat16*);

}  // namespace moegrad::kernels::bf16
