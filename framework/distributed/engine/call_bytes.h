// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which bytes of a call go where, whatever moves them.

#include <cstddef>
#include <cstdint>

#include "framework/distributed/collective_call.h"

namespace moegrad {

/// Bytes [begin, begin + size) of a buffer.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t size = 0;
};

/// What one rank has for one peer and is at most so long travels with the header of the call.
inline constexpr std::size_t kInlineBytes = 2048;

/// Whether each rank sums all of all inputs, which travel with the headers.
bool sums_at_once(const CollectiveCall& call);

/// What rank `slot` of `ranks` sums of a reduction's input.
ByteRange share(const CollectiveCall& call, std::size_t slot, std::size_t ranks);

/// The part of the input of slot `from`, whose call it is, that slot `to` of `ranks` gets.
ByteRange outgoing(const CollectiveCall& call, std::size_t from, std::size_t to, std::size_t ranks);

/// What slot `from` sends to slot `to`, whose call it is, as the place in the output where it goes.
ByteRange incoming(const CollectiveCall& call, std::size_t from, std::size_t to, std::size_t ranks);

/// What a slot sends to others and receives from them, after the headers or with them.
struct MovedBytes {
  std::int64_t sent = 0;
  std::int64_t received = 0;
};
MovedBytes moved_bytes(const CollectiveCall& call, std::size_t own, std::size_t ranks);

/// Whether others read the input of slot `owner` where it lies, or send for it, after the headers.
bool is_read(const CollectiveCall& call, std::size_t owner);

/// The input in parts: the call's or, where it has none, `whole`, which is then set.
const ByteParts& parts_of(const CollectiveCall& call, ByteParts& whole);

}  // namespace moegrad
