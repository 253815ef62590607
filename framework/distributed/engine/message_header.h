// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/engine/call_bytes.h"
#include "framework/distributed/engine/transport.h"

namespace moegrad {

/// The longest message of a header: what Open MPI sends at once between processes of one host, less
/// its own header.
inline constexpr std::size_t kHeaderBytes = 4000;

/// The most segments that a header names.
inline constexpr std::size_t kMostSegments = 64;

/// A header as a message: with what it says to one rank alone.
struct MessageHeader : CallHeader {
  std::int64_t sends = 0;    // all_to_all: elements that the sender sends to the receiver
  std::int64_t expects = 0;  // all_to_all: elements that it expects from the receiver
  std::vector<std::int64_t> segments = {};  // of the payload that follows (Transfer), in bytes
};

/// Writes the header, and `payload` if it has at most kInlineBytes, into `message` (kHeaderBytes).
/// Returns the size of the message.
std::size_t encode(const MessageHeader& header, std::span<const std::byte> payload,
                   std::span<std::byte> message);

/// The header in `message`, and the payload, which stays there, aligned for any dtype.
MessageHeader decode(std::span<const std::byte> message, std::span<const std::byte>& payload);

}  // namespace moegrad
