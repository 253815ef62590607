// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/collective_call.h"

namespace moegrad {

std::int64_t received_from_others(const CollectiveCall& call, std::size_t slot) {
  std::int64_t count = 0;
  for (std::size_t from = 0; from < call.recv_counts.size(); ++from) {
    if (from != slot) count += call.recv_counts[from];
  }
  return count * size_of(call.dtype);
}

std::int64_t wire_bytes(const CollectiveCall& call, std::int64_t ranks,
                        std::int64_t most_received) {
  const auto others = ranks - 1;
  switch (call.op) {
    case CollectiveOp::kAllGather:
      return others * static_cast<std::int64_t>(call.input.size());
    case CollectiveOp::kReduceScatter:
      return others * static_cast<std::int64_t>(call.output.size());
    case CollectiveOp::kAllReduce:  // a reduce-scatter and an all-gather of the parts
      return 2 * others * static_cast<std::int64_t>(call.output.size()) / ranks;
    case CollectiveOp::kAllToAll:
      return most_received;
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kSend:
    case CollectiveOp::kRecv:
      return call.count * size_of(call.dtype);
    case CollectiveOp::kBarrier:
      return 0;
  }
  return 0;
}

}  // namespace moegrad
