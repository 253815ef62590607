// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/process_group.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "framework/distributed/engine/call_bytes.h"
#include "framework/distributed/find_nan.h"

namespace moegrad {
namespace {

std::int64_t num_elements(std::string_view op, std::span<const std::byte> bytes, Dtype dtype) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  check<ValueError>(size % size_of(dtype) == 0, op, ": a buffer of ", dtype,
                    " needs a multiple of ", size_of(dtype), " bytes, got ", size);
  return size / size_of(dtype);
}

template <class Byte>
std::int64_t num_elements(std::string_view op, const std::vector<std::span<Byte>>& parts,
                          Dtype dtype) {
  std::int64_t elements = 0;
  for (const auto& part : parts) elements += num_elements(op, part, dtype);
  return elements;
}

/// Bytes [begin, end) of the memory.
struct Extent {
  std::uintptr_t begin = 0, end = 0;
  bool is_output = false;
};

template <class Byte>
void add_extents(const std::vector<std::span<Byte>>& parts, std::vector<Extent>& extents) {
  for (const auto& part : parts) {
    const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
    if (!part.empty()) extents.push_back({begin, begin + part.size(), !std::is_const_v<Byte>});
  }
}

Extent around(std::span<const Extent> extents) {
  Extent all = extents.front();
  for (const auto& each : extents) {
    all = {.begin = std::min(all.begin, each.begin), .end = std::max(all.end, each.end)};
  }
  return all;
}

// Ranks copy at different times: a rank would read what another has already overwritten. Parts of
// the input may overlap each other.
void check_apart(const ByteParts& input, const MutableByteParts& output) {
  std::vector<Extent> extents;
  extents.reserve(output.size());
  add_extents(output, extents);
  if (extents.empty()) return;
  const auto written = around(extents);
  const auto outputs = extents.size();
  add_extents(input, extents);
  if (extents.size() > outputs) {
    const auto read = around(std::span(extents).subspan(outputs));
    // Mostly they are two tensors.
    if (read.end <= written.begin || written.end <= read.begin) extents.resize(outputs);
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  std::uintptr_t read_to = 0, written_to = 0;
  for (const auto& each : extents) {
    check<ValueError>(!each.is_output || written_to <= each.begin,
                      "all_to_all: parts of the output must not overlap");
    check<ValueError>((each.is_output ? read_to : written_to) <= each.begin,
                      "all_to_all: input and output must not overlap");
    auto& end = each.is_output ? written_to : read_to;
    end = std::max(end, each.end);
  }
}

// `elements`: of the buffer, if there is one. Without one the bytes must still be a number.
void check_counts(std::string_view side, std::span<const std::int64_t> counts, int ranks,
                  Dtype dtype, std::optional<std::int64_t> elements) {
  check<ValueError>(std::ssize(counts) == ranks, "all_to_all: ", side, "_counts needs one of ",
                    ranks, " ranks each, got ", counts.size());
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t sum = 0;
  for (const auto count : counts) {
    check<ValueError>(count >= 0, "all_to_all: ", side, "_counts must not be negative, got ",
                      count);
    sum = count > kMost - sum ? kMost : sum + count;
  }
  check<ValueError>(!elements || sum == *elements, "all_to_all: ", side,
                    "_counts must add up to the buffer's ", elements.value_or(0), " elements, got ",
                    sum);
  check<ValueError>(sum <= kMost / size_of(dtype), "all_to_all: ", side,
                    "_counts must be at most 2^63 - 1 bytes together, got ", sum, ' ', dtype);
}

// Ranks read each other's inputs at other times than they write their outputs. `in_place`: what
// this rank writes no one else reads.
void check_apart(std::string_view op, std::span<const std::byte> input,
                 std::span<const std::byte> output, bool in_place) {
  const auto begin = reinterpret_cast<std::uintptr_t>(input.data());
  const auto other = reinterpret_cast<std::uintptr_t>(output.data());
  const bool apart = begin + input.size() <= other || other + output.size() <= begin;
  check<ValueError>(apart || in_place, op,
                    ": input and output must not overlap, unless the shorter ",
                    "one is this rank's place in the other");
}

void check_reducible(std::string_view op, Dtype dtype) {
  check<DtypeError>(dtype != Dtype::kBool && dtype != Dtype::kInt8, op,
                    ": needs float32, float64, bfloat16, int64 or int32, got ", dtype);
}

void check_rank(std::string_view op, std::string_view what, int rank, int size) {
  check<ValueError>(0 <= rank && rank < size, op, ": ", what, " must be in [0, ", size, "), got ",
                    rank);
}

void check_tag(std::string_view op, int tag) {
  check<ValueError>(tag >= 0, op, ": tag must be at least 0, got ", tag);
}

}  // namespace

ProcessGroup::ProcessGroup(std::string name, std::vector<int> ranks, int rank,
                           std::vector<int> hosts)
    : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank), hosts_(std::move(hosts)) {
  if (hosts_.empty()) hosts_.resize(ranks_.size());
  count_in(std::make_shared<TrafficLog>());
}

void ProcessGroup::count_in(std::shared_ptr<TrafficLog> log) {
  log_ = std::move(log);
  if (size() > 1) traffic_ = log_->of(name_);
}

CollectiveCall ProcessGroup::make_call(CollectiveOp op, const CollectiveOptions& options) const {
  constexpr std::chrono::hours kDay(24);
  if (options.deadline) {
    check<ValueError>(options.deadline->count() > 0 && *options.deadline <= kDay, to_string(op),
                      ": deadline must be in (0, 24 h], got ", options.deadline->count(), " ms");
  }
  CollectiveCall call;
  call.op = op;
  call.label = options.label;
  call.round = options.round;
  call.queue = options.queue;
  call.deadline = options.deadline;
  return call;
}

// A call that moves the elements of `bytes`.
CollectiveCall ProcessGroup::make_call(CollectiveOp op, std::span<const std::byte> bytes,
                                       Dtype dtype, const CollectiveOptions& options) const {
  auto call = make_call(op, options);
  call.dtype = dtype;
  call.count = num_elements(to_string(op), bytes, dtype);
  return call;
}

WorkPtr ProcessGroup::post(CollectiveCall call) {
  if (traffic_ == nullptr) return number_and_issue(std::move(call));
  const bool is_pair = is_point_to_point(call.op);
  const auto slot = is_pair ? call.op == CollectiveOp::kRecv : rank_;
  const auto bytes = moved_bytes(call, static_cast<std::size_t>(slot), is_pair ? 2 : ranks_.size());
  auto work = number_and_issue(std::move(call));
  traffic_->bytes_sent += bytes.sent;
  traffic_->bytes_received += bytes.received;
  if (work != nullptr) work->traffic_ = traffic_;
  return work;
}

WorkPtr ProcessGroup::number_and_issue(CollectiveCall call) {
  call.group = name_;
  if (check_nan_ && is_reduction(call.op)) {
    if (const auto at = find_nan(call.parts, call.dtype)) {
      std::ostringstream fault;
      fault << "rank " << world_rank(rank_) << " has NaN at element " << *at << " of " << call.count
            << ' ' << call.dtype;
      call.fault = fault.str();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    call.sequence = issued_[{call.queue, call.from, call.to, call.tag}]++;
  }
  return issue(std::move(call));
}

WorkPtr ProcessGroup::pass_on(ProcessGroup& group, CollectiveCall call) {
  return group.number_and_issue(std::move(call));
}

WorkPtr ProcessGroup::all_gather(std::span<const std::byte> input, Dtype dtype,
                                 GatherConsumer consume, const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllGather, input, dtype, options);
  check<ValueError>(consume != nullptr, "all_gather: consume must not be null");
  call.input = input;
  call.consume = std::move(consume);
  call.has_consumer = true;
  return post(std::move(call));
}

WorkPtr ProcessGroup::all_gather(std::span<const std::byte> input, std::span<std::byte> output,
                                 Dtype dtype, const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllGather, input, dtype, options);
  const auto elements = num_elements("all_gather", output, dtype);
  check<ValueError>(elements == size() * call.count, "all_gather: output must hold ", size(),
                    " inputs of ", call.count, " elements, got ", elements);
  const auto own = static_cast<std::size_t>(rank_) * input.size();
  check_apart("all_gather", input, output, input.data() == output.data() + own);
  call.input = input;
  call.output = output;
  return post(std::move(call));
}

WorkPtr ProcessGroup::reduce_scatter(ByteParts input, std::span<std::byte> output, Dtype dtype,
                                     ReduceOp op, const CollectiveOptions& options) {
  check_reducible("reduce_scatter", dtype);
  auto call = make_call(CollectiveOp::kReduceScatter, options);
  call.dtype = dtype;
  call.count = num_elements("reduce_scatter", input, dtype);
  call.parts = std::move(input);
  call.output = output;
  call.reduce = op;
  const auto chunk = num_elements("reduce_scatter", output, dtype);
  check<ValueError>(call.count == size() * chunk, "reduce_scatter: input must hold ", size(),
                    " chunks of ", chunk, " elements, got ", call.count);
  const auto own = static_cast<std::size_t>(rank_) * output.size();
  for (const auto& part : call.parts) {
    check_apart("reduce_scatter", part, output,
                call.parts.size() == 1 && output.data() == part.data() + own);
  }
  return post(std::move(call));
}

WorkPtr ProcessGroup::all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                                 const CollectiveOptions& options) {
  check_reducible("all_reduce", dtype);
  auto call = make_call(CollectiveOp::kAllReduce, buffer, dtype, options);
  call.parts = {buffer};
  call.output = buffer;
  call.reduce = op;
  return post(std::move(call));
}

WorkPtr ProcessGroup::broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                                const CollectiveOptions& options) {
  check_rank("broadcast", "root", root, size());
  auto call = make_call(CollectiveOp::kBroadcast, buffer, dtype, options);
  call.input = buffer;
  call.output = buffer;
  call.root = root;
  return post(std::move(call));
}

WorkPtr ProcessGroup::all_to_all(ByteParts input, std::span<const std::int64_t> send_counts,
                                 MutableByteParts output, std::span<const std::int64_t> recv_counts,
                                 Dtype dtype, const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllToAll, options);
  call.dtype = dtype;
  call.count = num_elements("all_to_all", input, dtype);
  const auto received = num_elements("all_to_all", output, dtype);
  check_apart(input, output);
  check_counts("send", send_counts, size(), dtype, call.count);
  check_counts("recv", recv_counts, size(), dtype, received);
  call.parts = std::move(input);
  if (output.size() == 1) call.output = output.front();
  call.output_parts = std::move(output);
  return post_all_to_all(std::move(call), send_counts, recv_counts);
}

WorkPtr ProcessGroup::all_to_all(ByteParts input, std::span<const std::int64_t> send_counts,
                                 GatherConsumer consume, std::span<const std::int64_t> recv_counts,
                                 Dtype dtype, const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllToAll, options);
  check<ValueError>(consume != nullptr, "all_to_all: consume must not be null");
  call.dtype = dtype;
  call.count = num_elements("all_to_all", input, dtype);
  check_counts("send", send_counts, size(), dtype, call.count);
  check_counts("recv", recv_counts, size(), dtype, std::nullopt);
  call.parts = std::move(input);
  call.consume = std::move(consume);
  call.has_consumer = true;
  return post_all_to_all(std::move(call), send_counts, recv_counts);
}

// The counts have been checked, but for what this rank sends to itself.
WorkPtr ProcessGroup::post_all_to_all(CollectiveCall call,
                                      std::span<const std::int64_t> send_counts,
                                      std::span<const std::int64_t> recv_counts) {
  const auto own = static_cast<std::size_t>(rank_);
  check<ValueError>(send_counts[own] == recv_counts[own], "all_to_all: rank ", world_rank(rank_),
                    " sends ", send_counts[own], ' ', call.dtype, " to itself, and expects ",
                    recv_counts[own]);
  call.send_counts.assign(send_counts.begin(), send_counts.end());
  call.recv_counts.assign(recv_counts.begin(), recv_counts.end());
  return post(std::move(call));
}

WorkPtr ProcessGroup::send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
                           const CollectiveOptions& options) {
  check_rank("send", "to", to, size());
  check_tag("send", tag);
  auto call = make_call(CollectiveOp::kSend, input, dtype, options);
  call.input = input;
  call.from = world_rank(rank_);
  call.to = world_rank(to);
  call.tag = tag;
  return post(std::move(call));
}

WorkPtr ProcessGroup::recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
                           const CollectiveOptions& options) {
  check_rank("recv", "from", from, size());
  check_tag("recv", tag);
  auto call = make_call(CollectiveOp::kRecv, output, dtype, options);
  call.output = output;
  call.from = world_rank(from);
  call.to = world_rank(rank_);
  call.tag = tag;
  return post(std::move(call));
}

WorkPtr ProcessGroup::barrier(const CollectiveOptions& options) {
  return post(make_call(CollectiveOp::kBarrier, options));
}

std::shared_ptr<ProcessGroup> ProcessGroup::subgroup(std::span<const int> ranks,
                                                     const std::string& name) {
  std::ostringstream list;
  for (const int rank : ranks) {
    check_rank("subgroup", "ranks", rank, size());
    list << (list.tellp() == 0 ? "" : ", ") << rank;
  }
  check<ValueError>(std::ranges::adjacent_find(ranks, std::greater_equal{}) == ranks.end(),
                    "subgroup: ranks must ascend, got {", list.str(), "}");
  check<ValueError>(std::ranges::find(ranks, rank_) != ranks.end(),
                    "subgroup: ranks must hold the caller's, ", rank_, ", got {", list.str(), "}");
  auto group = make_subgroup(ranks, name);
  if (group != nullptr) group->count_in(log_);
  return group;
}

}  // namespace moegrad
