// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace moegrad {

/// How often a rank moved data that a perfect layout would not move, and how many bytes; and what
/// it exchanged with other ranks. The code that moves the data counts; tests and programs read the
/// figures.
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

  std::atomic<std::int64_t> recomputed_ops{0};  // ops whose results backward has made again

  // What has gone to a SwapSpace's host and come back, and nanoseconds that threads of the
  // rank have waited for it.
  std::atomic<std::int64_t> swapped_out_bytes{0}, swapped_in_bytes{0}, swap_wait{0};

  // Tokens that go to experts on other ranks, and come from there to experts here. The bytes are
  // those of the ops that bring them there and back, in forward and backward, and of all_to_all;
  // in two levels a row counts in each.
  std::atomic<std::int64_t> rows_sent{0}, rows_received{0};
  std::atomic<std::int64_t> exchanged_bytes_sent{0}, exchanged_bytes_received{0};
  std::atomic<std::int64_t> exchange_wait{0};  // nanoseconds that threads of the rank waited

  // What collectives of the rank have sent to ranks on other hosts: messages, with those in which
  // ranks agree on the call, and bytes of the payloads.
  std::atomic<std::int64_t> messages_to_hosts{0}, bytes_to_hosts{0};
};

}  // namespace moegrad
