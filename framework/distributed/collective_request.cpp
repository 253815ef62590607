// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/collective_request.h"

#include <cstddef>
#include <span>
#include <sstream>

#include "framework/runtime/crc32c.h"

namespace moegrad {

std::string_view to_string(CollectiveOp op) {
  constexpr std::string_view kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                         "all_to_all", "send",           "recv",       "barrier"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view to_string(CollectiveQueue queue) {
  constexpr std::string_view kNames[] = {"default",     "gather",    "reduce",   "all_reduce",
                                         "same values", "gradients", "odd tiles"};
  return kNames[static_cast<std::size_t>(queue)];
}

bool is_point_to_point(CollectiveOp op) {
  return op == CollectiveOp::kSend || op == CollectiveOp::kRecv;
}

bool is_reduction(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter;
}

std::string signature(const CollectiveRequest& request) {
  std::ostringstream text;
  text << to_string(request.op);
  if (request.op == CollectiveOp::kBarrier) return text.str();
  if (request.op == CollectiveOp::kBroadcast) text << "(root " << request.root << ")";
  if (is_reduction(request.op)) text << (request.reduce == ReduceOp::kSum ? "(sum)" : "(max)");
  text << " of ";
  if (request.op != CollectiveOp::kAllToAll) text << request.count << ' ';
  text << request.dtype;
  return text.str();
}

std::string where(const CollectiveRequest& request) {
  std::ostringstream text;
  text << "group " << request.group;
  if (is_point_to_point(request.op)) {
    text << ", rank " << request.from << " to " << request.to << ", tag " << request.tag;
  }
  if (request.queue != CollectiveQueue::kDefault) {
    text << ", queue " << to_string(request.queue);
  }
  return text.str();
}

std::string describe(const CollectiveRequest& request) {
  std::ostringstream text;
  text << to_string(request.op) << " [" << where(request) << ", sequence " << request.sequence;
  if (!request.label.empty()) text << ", " << request.label;
  text << "]";
  return text.str();
}

std::string header_label(const std::string& label) {
  constexpr std::size_t kLongestLabel = 1024;
  if (label.size() <= kLongestLabel) return label;
  return label.substr(0, kLongestLabel) + "... (" + std::to_string(label.size()) +
         " characters, checksum " + std::to_string(crc32c(std::as_bytes(std::span(label)))) + ")";
}

bool agree(const CollectiveRequest& a, const CollectiveRequest& b) {
  if (is_point_to_point(a.op)) return a.count == b.count && a.dtype == b.dtype;
  // What all_to_all sends differs from rank to rank by design; its counts are compared in pairs.
  const bool counts = a.op == CollectiveOp::kAllToAll || a.count == b.count;
  return a.op == b.op && a.dtype == b.dtype && counts && a.root == b.root && a.reduce == b.reduce &&
         a.label == b.label && a.round == b.round;
}

std::string disagreement(int rank_a, const CollectiveRequest& a, int rank_b,
                         const CollectiveRequest& b) {
  const bool rounds = a.round != b.round;
  const bool labels = rounds || a.label != b.label;
  const auto called = [&](const CollectiveRequest& request) {
    const auto round = rounds ? ", round " + std::to_string(request.round) : "";
    return signature(request) + (labels ? " (" + request.label + round + ")" : "");
  };
  std::ostringstream text;
  text << "rank " << rank_a << " called " << called(a) << ", rank " << rank_b << ' ' << called(b);
  return text.str();
}

std::string name_ranks(std::span<const int> ranks) {
  std::ostringstream text;
  text << (ranks.size() == 1 ? "rank" : "ranks");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text << (i == 0 ? " " : ", ") << ranks[i];
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last < i + 2) continue;
    text << '-' << ranks[last];
    i = last;
  }
  return text.str();
}

}  // namespace moegrad
