// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_process_group.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <sstream>
#include <string_view>
#include <utility>

#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<CollectiveCall> call, Lane lane)
      : hub_(std::move(hub)), call_(std::move(call)), lane_(lane) {}
  ~ThreadWork() override {
    const auto begin = SpanClock::now();
    hub_->release(*call_, std::uncaught_exceptions() > exceptions_);
    RankContext::current().work().add_wait(SpanClock::now() - begin);
    if (!recorded_ && hub_->test(*call_)) record(begin);
  }
  ThreadWork(const ThreadWork&) = delete;
  ThreadWork& operator=(const ThreadWork&) = delete;

  void wait() override {
    const auto begin = SpanClock::now();
    hub_->wait(*call_);
    RankContext::current().work().add_wait(SpanClock::now() - begin);
    record(begin);
  }
  bool test() override {
    const bool done = hub_->test(*call_);
    if (done) record(SpanClock::now());
    return done;
  }

 private:
  // Records a call that is done, once. The rank's own thread has waited for it since `begin`.
  void record(SpanClock::time_point begin) {
    if (std::exchange(recorded_, true)) return;
    auto& context = RankContext::current();
    auto& spans = context.spans();
    const bool failed = call_->ended == SpanClock::time_point();
    if (!failed) context.work().totals()->add(WorkClass::kCommunication, call_->work);
    if (failed || !spans.records(SpanKind::kCollective)) return;
    Span span = {.name = std::string(to_string(call_->op)),
                 .kind = SpanKind::kCollective,
                 .lane = lane_,
                 .begin = call_->met,
                 .end = call_->ended,
                 .busy = call_->busy,
                 .bytes = call_->wire_bytes,
                 .group = call_->channel->group,
                 .sequence = call_->sequence};
    if (!call_->label.empty()) span.name += ' ' + call_->label;
    if (call_->ended > begin) {
      spans.add({.name = "wait for " + span.name,
                 .kind = SpanKind::kWait,
                 .lane = Lane::kCompute,
                 .begin = begin,
                 .end = SpanClock::now()});
    }
    spans.add(std::move(span));
  }

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<CollectiveCall> call_;
  Lane lane_;
  bool recorded_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

Lane lane_of(const std::string& queue) {
  if (queue == to_string(Lane::kGather)) return Lane::kGather;
  return queue == to_string(Lane::kReduce) ? Lane::kReduce : Lane::kCollective;
}

std::int64_t num_elements(std::string_view op, std::span<const std::byte> bytes, Dtype dtype) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  check<ValueError>(size % size_of(dtype) == 0, op, ": a buffer of ", dtype,
                    " needs a multiple of ", size_of(dtype), " bytes, got ", size);
  return size / size_of(dtype);
}

void check_counts(std::string_view side, std::span<const std::int64_t> counts, int ranks,
                  std::int64_t elements) {
  check<ValueError>(std::ssize(counts) == ranks, "all_to_all: ", side, "_counts needs one of ",
                    ranks, " ranks each, got ", counts.size());
  std::int64_t sum = 0;
  for (const auto count : counts) {
    check<ValueError>(count >= 0, "all_to_all: ", side, "_counts must not be negative, got ",
                      count);
    sum += count;
  }
  check<ValueError>(sum == elements, "all_to_all: ", side, "_counts must add up to the buffer's ",
                    elements, " elements, got ", sum);
}

void check_rank(std::string_view op, std::string_view what, int rank, int size) {
  check<ValueError>(0 <= rank && rank < size, op, ": ", what, " must be in [0, ", size, "), got ",
                    rank);
}

std::shared_ptr<CollectiveCall> make_call(CollectiveOp op, const CollectiveOptions& options) {
  auto call = std::make_shared<CollectiveCall>();
  call->op = op;
  call->label = options.label;
  call->round = options.round;
  return call;
}

// A call that moves the elements of `bytes`.
std::shared_ptr<CollectiveCall> make_call(CollectiveOp op, std::span<const std::byte> bytes,
                                          Dtype dtype, const CollectiveOptions& options) {
  auto call = make_call(op, options);
  call->dtype = dtype;
  call->count = num_elements(to_string(op), bytes, dtype);
  return call;
}

}  // namespace

ThreadProcessGroup::ThreadProcessGroup(std::shared_ptr<ThreadHub> hub,
                                       std::shared_ptr<GroupState> group, int rank)
    : hub_(std::move(hub)), group_(std::move(group)), rank_(rank) {}

WorkPtr ThreadProcessGroup::post(const ChannelKey& key, std::size_t slot,
                                 std::shared_ptr<CollectiveCall> call) {
  hub_->post(*group_, key, slot, call);
  return std::make_shared<ThreadWork>(hub_, std::move(call), lane_of(key.queue));
}

WorkPtr ThreadProcessGroup::post(const std::string& queue, std::shared_ptr<CollectiveCall> call) {
  return post({.queue = queue}, static_cast<std::size_t>(rank_), std::move(call));
}

WorkPtr ThreadProcessGroup::all_gather(std::span<const std::byte> input, Dtype dtype,
                                       GatherConsumer consume, const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllGather, input, dtype, options);
  call->input = input;
  call->consume = std::move(consume);
  return post(options.queue, std::move(call));
}

WorkPtr ThreadProcessGroup::reduce_scatter(ByteParts input, std::span<std::byte> output,
                                           Dtype dtype, ReduceOp op,
                                           const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kReduceScatter, options);
  call->dtype = dtype;
  for (const auto part : input) call->count += num_elements("reduce_scatter", part, dtype);
  call->parts = std::move(input);
  call->output = output;
  call->reduce = op;
  const auto chunk = num_elements("reduce_scatter", output, dtype);
  check<ValueError>(call->count == size() * chunk, "reduce_scatter: input must hold ", size(),
                    " chunks of ", chunk, " elements, got ", call->count);
  return post(options.queue, std::move(call));
}

WorkPtr ThreadProcessGroup::all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                                       const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllReduce, buffer, dtype, options);
  call->parts = {buffer};
  call->output = buffer;
  call->reduce = op;
  return post(options.queue, std::move(call));
}

WorkPtr ThreadProcessGroup::broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                                      const CollectiveOptions& options) {
  check_rank("broadcast", "root", root, size());
  auto call = make_call(CollectiveOp::kBroadcast, buffer, dtype, options);
  call->input = buffer;
  call->output = buffer;
  call->root = root;
  return post(options.queue, std::move(call));
}

WorkPtr ThreadProcessGroup::all_to_all(std::span<const std::byte> input,
                                       std::span<const std::int64_t> send_counts,
                                       std::span<std::byte> output,
                                       std::span<const std::int64_t> recv_counts, Dtype dtype,
                                       const CollectiveOptions& options) {
  auto call = make_call(CollectiveOp::kAllToAll, input, dtype, options);
  call->input = input;
  call->output = output;
  // Ranks copy at different times: a rank would read what another has already overwritten.
  const std::less_equal<const std::byte*> not_after;
  check<ValueError>(input.empty() || output.empty() ||
                        not_after(input.data() + input.size(), output.data()) ||
                        not_after(output.data() + output.size(), input.data()),
                    "all_to_all: input and output must not overlap");
  check_counts("send", send_counts, size(), call->count);
  check_counts("recv", recv_counts, size(), num_elements("all_to_all", output, dtype));
  call->send_counts.assign(send_counts.begin(), send_counts.end());
  call->recv_counts.assign(recv_counts.begin(), recv_counts.end());
  return post(options.queue, std::move(call));
}

WorkPtr ThreadProcessGroup::send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
                                 const CollectiveOptions& options) {
  check_rank("send", "to", to, size());
  auto call = make_call(CollectiveOp::kSend, input, dtype, options);
  call->input = input;
  return post({.from = rank_, .to = to, .tag = tag}, 0, std::move(call));
}

WorkPtr ThreadProcessGroup::recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
                                 const CollectiveOptions& options) {
  check_rank("recv", "from", from, size());
  auto call = make_call(CollectiveOp::kRecv, output, dtype, options);
  call->output = output;
  return post({.from = from, .to = rank_, .tag = tag}, 1, std::move(call));
}

WorkPtr ThreadProcessGroup::barrier(const CollectiveOptions& options) {
  return post(options.queue, make_call(CollectiveOp::kBarrier, options));
}

std::shared_ptr<const void> ThreadProcessGroup::excuse(std::string what) {
  return ThreadHub::excuse(hub_, *group_, group_->ranks[static_cast<std::size_t>(rank_)],
                           std::move(what));
}

std::shared_ptr<ProcessGroup> ThreadProcessGroup::subgroup(std::span<const int> ranks,
                                                           const std::string& name) {
  std::ostringstream list;
  std::vector<int> world_ranks;
  for (const int rank : ranks) {
    check_rank("subgroup", "ranks", rank, size());
    list << (world_ranks.empty() ? "" : ", ") << rank;
    world_ranks.push_back(group_->ranks[static_cast<std::size_t>(rank)]);
  }
  check<ValueError>(std::ranges::adjacent_find(ranks, std::greater_equal{}) == ranks.end(),
                    "subgroup: ranks must ascend, got {", list.str(), "}");
  const auto self = std::ranges::find(ranks, rank_);
  check<ValueError>(self != ranks.end(), "subgroup: ranks must hold the caller's, ", rank_,
                    ", got {", list.str(), "}");
  auto group = std::make_shared<ThreadProcessGroup>(
      hub_, hub_->join_group(name, std::move(world_ranks)), static_cast<int>(self - ranks.begin()));
  group->barrier({.label = "subgroup of ranks {" + list.str() + "}"})->wait();
  return group;
}

}  // namespace moegrad
