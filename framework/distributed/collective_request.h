// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "framework/tensor/dtype.h"

namespace moegrad {

enum class CollectiveOp : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier
};

enum class ReduceOp : std::uint8_t { kSum, kMax };

/// The ordered queues of a group. Calls of one queue run in the order of issue, which must be the
/// same on every rank. Different queues do not wait for each other. There is a fixed number of
/// them, because a backend may need a channel of its own for each.
enum class CollectiveQueue : std::uint8_t {
  kDefault,
  kGather,      // fully_shard's all-gathers
  kReduce,      // its reduce-scatters
  kAllReduce,   // its sums over replicas
  kSameValues,  // comparisons between ranks
  kGradients,   // what the backward of ops::send and ops::recv sends
  kOddTiles     // every other tile of an op in tiles
};

std::string_view to_string(CollectiveOp op);
std::string_view to_string(CollectiveQueue queue);

/// Whether the operation is between two ranks: send and recv.
bool is_point_to_point(CollectiveOp op);
/// Whether the operation sums or compares elements: all_reduce and reduce_scatter.
bool is_reduction(CollectiveOp op);

/// What a rank asked for, as messages show it. What the ranks of a call must agree on is in it, too
/// (agree() below).
struct CollectiveRequest {
  CollectiveOp op = CollectiveOp::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t count = 0;  // elements of the input, or of the output if there is no input
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  std::string label = {};
  std::int64_t round = 0;

  // Where: the queue of a group, and, for send and recv, two ranks of the world and a tag.
  std::string group = {};
  CollectiveQueue queue = CollectiveQueue::kDefault;
  int from = -1;
  int to = -1;
  int tag = 0;
  std::int64_t sequence = 0;  // its number there
};

/// "all_gather of 64 float32".
std::string signature(const CollectiveRequest& request);
/// "group world", "group world, queue gather", "group world, rank 0 to 1, tag 7"; the default queue
/// is not mentioned.
std::string where(const CollectiveRequest& request);
/// "all_gather [group world, sequence 3, layers.1]".
std::string describe(const CollectiveRequest& request);

/// A label as headers carry and compare it: as it is, or what it begins with and a checksum.
std::string header_label(const std::string& label);

/// Whether two sides of one call agree.
bool agree(const CollectiveRequest& a, const CollectiveRequest& b);
/// "rank 0 called all_gather of 64 float32, rank 1 barrier": how they do not.
std::string disagreement(int rank_a, const CollectiveRequest& a, int rank_b,
                         const CollectiveRequest& b);

/// "rank 1", "ranks 1, 2", "ranks 0-2, 5": ascending ranks, three or more in a row as a range.
std::string name_ranks(std::span<const int> ranks);

}  // namespace moegrad
