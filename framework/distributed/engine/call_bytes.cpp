// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/call_bytes.h"

#include <cstdint>
#include <numeric>

namespace moegrad {
namespace {

std::size_t bytes_of(const CollectiveCall& call, std::int64_t count) {
  return static_cast<std::size_t>(count * size_of(call.dtype));
}

ByteRange segment(const CollectiveCall& call, const std::vector<std::int64_t>& counts,
                  std::size_t slot) {
  const auto at = counts.begin() + static_cast<std::ptrdiff_t>(slot);
  return {.begin = bytes_of(call, std::accumulate(counts.begin(), at, std::int64_t{0})),
          .size = bytes_of(call, *at)};
}

}  // namespace

bool sums_at_once(const CollectiveCall& call) {
  return call.op == CollectiveOp::kAllReduce && bytes_of(call, call.count) <= kInlineBytes;
}

ByteRange share(const CollectiveCall& call, std::size_t slot, std::size_t ranks) {
  const auto cut = [&](std::size_t part) {
    return bytes_of(
        call, call.count * static_cast<std::int64_t>(part) / static_cast<std::int64_t>(ranks));
  };
  if (sums_at_once(call)) return {.size = bytes_of(call, call.count)};
  return {.begin = cut(slot), .size = cut(slot + 1) - cut(slot)};
}

ByteRange outgoing(const CollectiveCall& call, std::size_t from, std::size_t to,
                   std::size_t ranks) {
  switch (call.op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kSend:
      return {.size = call.input.size()};
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllReduce:
      return share(call, to, ranks);
    case CollectiveOp::kBroadcast:
      return {.size = static_cast<std::size_t>(call.root) == from ? call.input.size() : 0};
    case CollectiveOp::kAllToAll:
      return segment(call, call.send_counts, to);
    case CollectiveOp::kRecv:
    case CollectiveOp::kBarrier:
      return {};
  }
  return {};
}

ByteRange incoming(const CollectiveCall& call, std::size_t from, std::size_t to,
                   std::size_t ranks) {
  switch (call.op) {
    case CollectiveOp::kAllGather:
      return {.begin = from * call.input.size(), .size = call.input.size()};
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllReduce:
      return {.size = share(call, to, ranks).size};
    case CollectiveOp::kBroadcast:
      return {.size = static_cast<std::size_t>(call.root) == from ? call.output.size() : 0};
    case CollectiveOp::kAllToAll:
      return segment(call, call.recv_counts, from);
    case CollectiveOp::kRecv:
      return {.size = from == 0 ? call.output.size() : 0};
    case CollectiveOp::kSend:
    case CollectiveOp::kBarrier:
      return {};
  }
  return {};
}

MovedBytes moved_bytes(const CollectiveCall& call, std::size_t own, std::size_t ranks) {
  const bool hands_out = call.op == CollectiveOp::kAllReduce && !sums_at_once(call);
  std::size_t sent = 0, received = 0;
  for (std::size_t slot = 0; slot < ranks; ++slot) {
    if (slot == own) continue;
    sent += outgoing(call, own, slot, ranks).size;
    received += incoming(call, slot, own, ranks).size;
    if (!hands_out) continue;
    sent += share(call, own, ranks).size;
    received += share(call, slot, ranks).size;
  }
  return {.sent = static_cast<std::int64_t>(sent), .received = static_cast<std::int64_t>(received)};
}

bool is_read(const CollectiveCall& call, std::size_t owner) {
  if (call.op == CollectiveOp::kBroadcast) return owner == static_cast<std::size_t>(call.root);
  if (is_point_to_point(call.op)) return owner == 0;
  return call.op != CollectiveOp::kBarrier && !sums_at_once(call);
}

const ByteParts& parts_of(const CollectiveCall& call, ByteParts& whole) {
  if (is_reduction(call.op) || call.op == CollectiveOp::kAllToAll) return call.parts;
  return whole = {call.input};
}

}  // namespace moegrad
