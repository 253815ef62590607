// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace moegrad {

/// How often a rank moved data that a perfect layout would not move, and how many bytes. The code
/// that calls the kernels counts; tests and programs read the figures.
struct Counters {
  std::atomic<std::int64_t> materialized_transposes{0};  // whole tensors copied in another order
  std::atomic<std::int64_t> packed_panels{0};            // row-major operand copied into panels
  std::atomic<std::int64_t> transposed_packs{0};         // operand transposed while being packed
  std::atomic<std::int64_t> nz_conversions{0};           // ND -> NZ outside the copy-out
  std::atomic<std::int64_t> nz_copy_outs{0};             // ND -> NZ inside the copy-out

  // Bytes that these copies write.
  std::atomic<std::int64_t> copied_out_bytes{0};  // gathered parameters, by the copy-outs
  std::atomic<std::int64_t> converted_bytes{0};   // whole tensors, transposed or converted to NZ
  std::atomic<std::int64_t> packed_bytes{0};      // operands of products, into panels
};

}  // namespace moegrad
