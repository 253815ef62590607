// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/distributed/collective_request.h"

namespace moegrad {

/// One buffer in several parts, which are read one after the other. Each part contains whole
/// elements. Ranks may cut their buffers differently.
using ByteParts = std::vector<std::span<const std::byte>>;
/// The same, to be filled.
using MutableByteParts = std::vector<std::span<std::byte>>;

/// What a rank receives, readable while the consumer runs: of an all-gather each rank's input, in
/// rank order; of an all-to-all the bytes that come, in rank order, in any number of parts of whole
/// elements, which may be empty.
using PeerSpans = std::span<const std::span<const std::byte>>;
using GatherConsumer = std::function<void(PeerSpans)>;

/// One rank's side of one collective, checked: what a backend executes (ProcessGroup::issue).
struct CollectiveCall : CollectiveRequest {
  std::span<const std::byte> input = {};  // empty for recv, and where there are parts
  ByteParts parts = {};                   // the input of a reduction, and of all_to_all
  std::span<std::byte> output = {};    // the same memory as the input for all_reduce and broadcast
  MutableByteParts output_parts = {};  // of all_to_all; if it is one, it is the output as well
  std::vector<std::int64_t> send_counts = {};  // all_to_all only, as recv_counts
  std::vector<std::int64_t> recv_counts = {};
  // In place of the output, for all_gather and all_to_all. Whoever waits for the call takes it away
  // at the end.
  GatherConsumer consume = {};
  bool has_consumer = false;

  /// After which time the call fails, if not the backend's.
  std::optional<std::chrono::milliseconds> deadline = {};
  /// Why the call must fail on all ranks, if it must: a NaN in the input.
  std::string fault = {};
};

}  // namespace moegrad
