// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "framework/distributed/collective_request.h"

namespace moegrad::mpi {

/// The longest header message: what Open MPI sends at once between processes of one host, less its
/// own header.
inline constexpr std::size_t kHeaderBytes = 4000;
/// A payload for one peer of at most this size travels in the header.
inline constexpr std::size_t kInlineBytes = 2048;

/// The most segments that a header names.
inline constexpr std::size_t kMostSegments = 64;

/// The fingerprint of a call, which goes ahead of its payload to every other member of the group.
struct CallHeader {
  CollectiveRequest request;       // without group and queue, which the communicator says
  std::int64_t pair_count = 0;     // all_to_all: elements that the sender sends to the receiver
  std::int64_t pair_expected = 0;  // all_to_all: elements that it expects from the receiver
  std::int64_t received = 0;       // all_to_all: bytes that the sender receives from others
  std::int64_t deadline_ms = 0;    // how long the sender waits for the others
  std::int64_t group_id = 0;       // of the group that the sender would make, in make_subgroup()
  std::vector<std::int64_t> segments = {};  // of the payload that follows (Transfer), in bytes
};

/// A label as headers carry and compare it: as it is, or what it begins with and a checksum.
std::string wire_label(const std::string& label);

/// Writes the header, and `payload` if it has at most kInlineBytes, into `message` (kHeaderBytes).
/// Returns the size of the message.
std::size_t encode(const CallHeader& header, std::span<const std::byte> payload,
                   std::span<std::byte> message);

/// The header in `message`, and the payload, which stays there, aligned for any dtype.
CallHeader decode(std::span<const std::byte> message, std::span<const std::byte>& payload);

}  // namespace moegrad::mpi
