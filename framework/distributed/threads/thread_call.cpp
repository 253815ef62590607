// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "framework/distributed/parts_cursor.h"
#include "framework/distributed/parts_reduction.h"

namespace moegrad {
namespace {

using Sides = std::span<ThreadCall* const>;

void copy(std::span<const std::byte> from, std::byte* to) {
  if (from.data() != to) std::copy(from.begin(), from.end(), to);
}

// output = reduction over the ranks of elements [begin, begin + count) of their inputs.
void reduce(Sides sides, ThreadCall& call, std::int64_t begin, std::int64_t count,
            std::byte* output, std::vector<std::byte>& scratch) {
  std::vector<PartsCursor> inputs;
  inputs.reserve(sides.size());
  for (const auto* side : sides) {
    inputs.emplace_back(side->parts, static_cast<std::size_t>(begin * size_of(call.dtype)));
  }
  reduce_parts(inputs, output, count, call.dtype, call.reduce, scratch);
}

// Step 0: each rank reduces its own part of the buffers, which no other rank reads, into its own
// buffer. Step 1: each rank copies the other parts from their owners.
void all_reduce(Sides sides, std::size_t slot, int step, std::vector<std::byte>& scratch) {
  ThreadCall& call = *sides[slot];
  const auto ranks = static_cast<std::int64_t>(sides.size());
  const auto bytes = size_of(call.dtype);
  const auto part_begin = [&](std::size_t part) {
    return call.count * static_cast<std::int64_t>(part) / ranks;
  };
  if (step == 0) {
    const auto begin = part_begin(slot);
    reduce(sides, call, begin, part_begin(slot + 1) - begin, call.output.data() + begin * bytes,
           scratch);
    return;
  }
  for (std::size_t owner = 0; owner < sides.size(); ++owner) {
    if (owner == slot) continue;
    const auto begin = static_cast<std::size_t>(part_begin(owner) * bytes);
    const auto end = static_cast<std::size_t>(part_begin(owner + 1) * bytes);
    copy(sides[owner]->output.subspan(begin, end - begin), call.output.data() + begin);
  }
}

// What `from` sends to the side `slot`, as a range of its input.
std::pair<std::size_t, std::size_t> range_sent(const ThreadCall& from, std::size_t slot) {
  const auto mine = from.send_counts.begin() + static_cast<std::ptrdiff_t>(slot);
  const auto before = std::accumulate(from.send_counts.begin(), mine, std::int64_t{0});
  const auto element = size_of(from.dtype);
  return {static_cast<std::size_t>(before * element), static_cast<std::size_t>(*mine * element)};
}

void all_to_all(Sides sides, std::size_t slot) {
  MutablePartsCursor output(sides[slot]->output_parts, 0);
  for (const auto* side : sides) {
    const auto [begin, bytes] = range_sent(*side, slot);
    PartsCursor input(side->parts, begin);
    copy_parts(input, output, bytes);
  }
}

}  // namespace

int num_steps(CollectiveOp op) {
  if (op == CollectiveOp::kBarrier) return 0;
  return op == CollectiveOp::kAllReduce ? 2 : 1;
}

ByteParts inputs_of(Sides sides, std::size_t slot) {
  ByteParts inputs;
  for (const auto* side : sides) {
    if (side->op == CollectiveOp::kAllGather) {
      inputs.push_back(side->input);
      continue;
    }
    const auto [begin, bytes] = range_sent(*side, slot);
    const auto parts = subparts(side->parts, begin, bytes);
    inputs.insert(inputs.end(), parts.begin(), parts.end());
  }
  return inputs;
}

void run_step(Sides sides, std::size_t slot, int step, std::vector<std::byte>& scratch) {
  ThreadCall& call = *sides[slot];
  switch (call.op) {
    case CollectiveOp::kReduceScatter: {
      const auto count = call.count / static_cast<std::int64_t>(sides.size());
      return reduce(sides, call, count * static_cast<std::int64_t>(slot), count, call.output.data(),
                    scratch);
    }
    case CollectiveOp::kAllReduce:
      return all_reduce(sides, slot, step, scratch);
    case CollectiveOp::kBroadcast:
      return copy(sides[static_cast<std::size_t>(call.root)]->input, call.output.data());
    case CollectiveOp::kAllToAll:
      return all_to_all(sides, slot);
    case CollectiveOp::kRecv:
      return copy(sides[0]->input, call.output.data());
    case CollectiveOp::kAllGather:
    case CollectiveOp::kSend:
    case CollectiveOp::kBarrier:
      return;
  }
}

}  // namespace moegrad
