// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/bf16/loops_of_pairs.h"

#if defined(__aarch64__)
#include "ops/kernels/bf16/flush_denormals.h"
#include "ops/kernels/bf16/flushed_vector.h"
#endif

namespace moegrad::kernels::bf16 {
namespace {

#if defined(__aarch64__)

/// What the thread's additions and multiplications have met.
class Status {
 public:
  Status() { set(get() & ~kUnderflow); }
  bool has_underflowed() const { return (get() & kUnderflow) != 0; }

 private:
  static constexpr std::uint64_t kUnderflow = 1U << 3U;
  static std::uint64_t get() {
    std::uint64_t status;
    asm volatile("mrs %0, fpsr" : "=r"(status) : : "memory");
    return status;
  }
  static void set(std::uint64_t status) { asm volatile("msr fpsr, %0" : : "r"(status) : "memory"); }
};

// arm64 flushes a result that is below 2^-126 before it is rounded, x86 one that is so afterwards.
// So where a product was flushed, the tile is computed again, slowly. Additions are the same: a sum
// below 2^-126 needs no rounding.
template <class Pair>
struct Checked {
  template <int kRows, int kPanels>
  static void multiply(const std::byte* a, const std::byte* b, std::int64_t b_stride,
                       std::int64_t units, std::int64_t rows, float* c, std::int64_t ldc,
                       bool adds) {
    constexpr std::int64_t kColumns = kPanels * kPanel;
    alignas(64) float sums[kRows * kColumns];
    const Status status;
    tile_loops::multiply<Pair, kRows, kPanels>(a, b, b_stride, units, rows, sums, kColumns, false);
    if (status.has_underflowed()) {
      const KeepDenormals mode;
      tile_loops::multiply<tile_loops::FmaPair<FlushedVector>, kRows, kPanels>(
          a, b, b_stride, units, rows, sums, kColumns, false);
    }
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns; j += Vec<float>::kLanes) {
        const auto sum = Vec<float>::load(sums + i * kColumns + j);
        float* const to = c + i * ldc + j;
        (adds ? Vec<float>::load(to) + sum : sum).store(to);
      }
    }
  }
  template <int kRows, int kPanels>
  static constexpr Tile kTile = &multiply<kRows, kPanels>;
};

template <class Pair>
using Tiles = Checked<Pair>;

#else

template <class Pair>
using Tiles = tile_loops::Plain<Pair>;

#endif

}  // namespace

const Loops* narrow_loops() {
  using Pair = tile_loops::FmaPair<Vec<float>>;
  static constexpr auto kLoops = tile_loops::make_loops<Pair, Tiles<Pair>>();
  return &kLoops;
}

}  // namespace moegrad::kernels::bf16
