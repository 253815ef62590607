// SPDX-License-Identifier: Apache-2.0
// Random sequences of calls: groups, queues, priorities, sizes and faults by seed, the same over
// all transports. Results are compared with what is computed by hand, and so with each other.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"
#include "tests/framework/distributed/engine/message_ranks.h"

namespace moegrad::sequences_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

enum class Fault { kNone, kWrongCount, kWrongOp, kThrows, kLeaves, kConsumerThrows };

struct Call {
  CollectiveOp op = CollectiveOp::kBarrier;
  std::size_t group = 0;  // of Program::groups
  CollectiveQueue queue = CollectiveQueue::kDefault;
  std::size_t count = 0;  // of a rank
  std::size_t root = 0;   // in the group; of messages, the sender
  std::size_t to = 0;     // of messages
  int tag = 0;
  std::vector<std::int64_t> counts = {};  // all_to_all: [from * size + to]
};

/// What all ranks do.
struct Program {
  int ranks = 2;
  std::vector<std::vector<int>> groups;  // of the world's ranks; the first has all
  std::vector<Call> calls;
  std::map<CollectiveQueue, int> priorities;
  Jitter jitter;
  std::size_t piece_bytes = 64;
  Fault fault = Fault::kNone;
  int faulty = 0;
  std::size_t faulty_call = 0;
};

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : bits_(seed) {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(bits_() % bound); }

 private:
  std::mt19937_64 bits_;
};

constexpr CollectiveQueue kUsed[] = {CollectiveQueue::kDefault, CollectiveQueue::kGather,
                                     CollectiveQueue::kReduce, CollectiveQueue::kAllReduce};
// Around what travels with a header, and around a piece.
constexpr std::size_t kSizes[] = {0, 1, 3, 8, 17, 255, 256, 257, 600, 3'001};

Program draw(std::uint64_t seed) {
  Draws draws(seed);
  Program program;
  program.ranks = 2 + static_cast<int>(draws.below(4));
  std::vector<int> all(static_cast<std::size_t>(program.ranks));
  std::iota(all.begin(), all.end(), 0);
  program.groups.push_back(all);
  for (std::size_t i = draws.below(3); i > 0; --i) {
    std::vector<int> some;
    for (const int rank : all) {
      if (draws.below(3) > 0) some.push_back(rank);
    }
    if (!some.empty()) program.groups.push_back(some);
  }
  for (const auto queue : kUsed) program.priorities[queue] = static_cast<int>(draws.below(3));
  if (draws.below(3) == 0) program.jitter = {.maximum = 300us, .seed = seed};
  program.piece_bytes = 64 << draws.below(8);
  const auto length = 4 + draws.below(12);
  for (std::size_t i = 0; i < length; ++i) {
    Call call;
    call.op = static_cast<CollectiveOp>(draws.below(8));
    if (call.op == CollectiveOp::kRecv) call.op = CollectiveOp::kSend;
    call.group = draws.below(program.groups.size());
    call.queue = kUsed[draws.below(std::size(kUsed))];
    call.count = kSizes[draws.below(std::size(kSizes))];
    const auto size = program.groups[call.group].size();
    call.root = draws.below(size);
    call.to = draws.below(size);
    call.tag = static_cast<int>(draws.below(3));
    for (std::size_t pair = 0; pair < size * size; ++pair) {
      call.counts.push_back(static_cast<std::int64_t>(kSizes[draws.below(std::size(kSizes))]));
    }
    program.calls.push_back(call);
  }
  if (draws.below(4) == 0) {
    program.fault = static_cast<Fault>(1 + draws.below(5));
    program.faulty = static_cast<int>(draws.below(all.size()));
    program.faulty_call = draws.below(length);
    // A call of all, so that all see it.
    auto& call = program.calls[program.faulty_call];
    call = {.op = program.fault == Fault::kConsumerThrows ? CollectiveOp::kAllGather
                                                          : CollectiveOp::kAllReduce,
            .count = 7};
  }
  return program;
}

struct Posted {
  std::vector<float> input, output;
  std::vector<std::int64_t> sends, receives;
  std::vector<float> expected;
  WorkPtr work;
};

std::vector<float> numbers_of(std::size_t call, int rank, std::size_t count) {
  return numbers<float>(static_cast<int>(100 * call) + rank, count);
}

/// Issues one call of this rank, and computes by hand what it must give.
void post(const Program& program, std::size_t number, ProcessGroup& group, Posted& posted,
          bool consumer_throws) {
  const auto& call = program.calls[number];
  const auto& members = program.groups[call.group];
  const auto size = members.size();
  const auto own = static_cast<std::size_t>(group.rank());
  const CollectiveOptions options = {.queue = call.queue, .label = std::to_string(number)};
  const auto in = [&] { return std::as_bytes(std::span(posted.input)); };
  const auto out = [&] { return std::as_writable_bytes(std::span(posted.output)); };
  const auto inputs = [&](std::size_t count) {
    std::vector<std::vector<float>> all;
    for (const int member : members) all.push_back(numbers_of(number, member, count));
    return all;
  };
  switch (call.op) {
    case CollectiveOp::kAllGather: {
      posted.input = inputs(call.count)[own];
      for (const auto& each : inputs(call.count)) {
        posted.expected.insert(posted.expected.end(), each.begin(), each.end());
      }
      posted.output.resize(posted.expected.size());
      if (number % 2 == 0 && !consumer_throws) {
        posted.work = group.all_gather(in(), out(), Dtype::kFloat32, options);
        return;
      }
      const auto consume = [to = out(), consumer_throws](PeerSpans peers) {
        if (consumer_throws) throw ShapeError("no room");
        auto* next = to.data();
        for (const auto& peer : peers) next = std::copy(peer.begin(), peer.end(), next);
      };
      posted.work = group.all_gather(in(), Dtype::kFloat32, consume, options);
      return;
    }
    case CollectiveOp::kReduceScatter: {
      const auto all = inputs(size * call.count);
      posted.input = all[own];
      for (std::size_t i = 0; i < call.count; ++i) {
        posted.expected.push_back(tree(all, own * call.count + i, 0, size, ReduceOp::kSum));
      }
      posted.output.resize(call.count);
      posted.work = group.reduce_scatter({in()}, out(), Dtype::kFloat32, ReduceOp::kSum, options);
      return;
    }
    case CollectiveOp::kAllReduce: {
      const auto all = inputs(call.count);
      posted.output = all[own];
      for (std::size_t i = 0; i < call.count; ++i) {
        posted.expected.push_back(tree(all, i, 0, size, ReduceOp::kMax));
      }
      posted.work = group.all_reduce(out(), Dtype::kFloat32, ReduceOp::kMax, options);
      return;
    }
    case CollectiveOp::kBroadcast:
      posted.expected = inputs(call.count)[call.root];
      posted.output = inputs(call.count)[own];
      posted.work = group.broadcast(out(), static_cast<int>(call.root), Dtype::kFloat32, options);
      return;
    case CollectiveOp::kAllToAll: {
      for (std::size_t peer = 0; peer < size; ++peer) {
        posted.sends.push_back(call.counts[own * size + peer]);
        posted.receives.push_back(call.counts[peer * size + own]);
        const auto before = std::accumulate(
            call.counts.begin() + static_cast<std::ptrdiff_t>(peer * size),
            call.counts.begin() + static_cast<std::ptrdiff_t>(peer * size + own), std::int64_t{0});
        const auto count = static_cast<std::size_t>(posted.receives.back());
        const auto sent =
            numbers_of(number, members[peer], static_cast<std::size_t>(before) + count);
        posted.expected.insert(posted.expected.end(), sent.begin() + before, sent.end());
      }
      const auto total = std::accumulate(posted.sends.begin(), posted.sends.end(), std::int64_t{0});
      posted.input = numbers_of(number, members[own], static_cast<std::size_t>(total));
      posted.output.resize(posted.expected.size());
      posted.work =
          group.all_to_all(in(), posted.sends, out(), posted.receives, Dtype::kFloat32, options);
      return;
    }
    case CollectiveOp::kSend:
    case CollectiveOp::kRecv:
      if (call.root == call.to) return;
      if (own == call.root) {
        posted.input = inputs(call.count)[own];
        posted.work =
            group.send(in(), static_cast<int>(call.to), call.tag, Dtype::kFloat32, options);
      } else if (own == call.to) {
        posted.expected = inputs(call.count)[call.root];
        posted.output.resize(call.count);
        posted.work =
            group.recv(out(), static_cast<int>(call.root), call.tag, Dtype::kFloat32, options);
      }
      return;
    case CollectiveOp::kBarrier:
      posted.work = group.barrier(options);
      return;
  }
}

/// The faulty rank's own call.
void do_wrong(const Program& program, ProcessGroup& group) {
  const auto& call = program.calls[program.faulty_call];
  const CollectiveOptions options = {.queue = call.queue,
                                     .label = std::to_string(program.faulty_call)};
  std::vector<float> values(call.count + 1);
  const auto bytes = std::as_writable_bytes(std::span(values));
  switch (program.fault) {
    case Fault::kWrongCount:
      group.all_reduce(bytes, Dtype::kFloat32, ReduceOp::kMax, options)->wait();
      return;
    case Fault::kWrongOp:
      group.barrier(options)->wait();
      return;
    case Fault::kThrows:
      throw ValueError("boom");
    case Fault::kLeaves:
    case Fault::kConsumerThrows:
    case Fault::kNone:
      return;
  }
}

/// One rank's part. `order`: of its own choices, when it waits for what.
void run(const Program& program, RankContext& context, std::uint64_t order) {
  Draws draws(order);
  std::vector<std::shared_ptr<ProcessGroup>> groups = {context.group()};
  for (std::size_t i = 1; i < program.groups.size(); ++i) {
    const auto& ranks = program.groups[i];
    const bool is_member = std::ranges::find(ranks, context.rank()) != ranks.end();
    groups.push_back(is_member ? context.group()->subgroup(ranks, "group " + std::to_string(i))
                               : nullptr);
  }
  // Over MPI no rank may fail while others make a group.
  context.group()->barrier({.label = "groups are made"})->wait();
  std::vector<Posted> posted(program.calls.size());
  const auto wait_for = [&](std::size_t number) {
    auto& call = posted[number];
    if (call.work == nullptr) return;
    call.work->wait();
    EXPECT_EQ(call.output, call.expected) << "call " << number << " on rank " << context.rank();
    call.work = nullptr;
  };
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const bool is_faulty = program.fault != Fault::kNone && i == program.faulty_call &&
                           context.rank() == program.faulty;
    if (is_faulty && program.fault != Fault::kConsumerThrows) {
      for (std::size_t j = 0; j < i; ++j) wait_for(j);
      do_wrong(program, *context.group());
      if (program.fault == Fault::kLeaves) return;
    }
    const auto& group = groups[program.calls[i].group];
    if (group == nullptr) continue;
    post(program, i, *group, posted[i], is_faulty);
    if (draws.below(3) == 0) wait_for(draws.below(i + 1));
  }
  for (std::size_t i = program.calls.size(); i-- > 0;) wait_for(i);
  // Where a call is done on one rank before it is on another, what fails there is seen here.
  context.group()->barrier({.label = "end"})->wait();
}

/// What an error that a rank sees must name.
std::string cause_of(const Program& program) {
  const auto rank = "rank " + std::to_string(program.faulty);
  switch (program.fault) {
    case Fault::kWrongCount:
      return "all_reduce(max) of 8 float32";
    case Fault::kWrongOp:
      return "barrier";
    case Fault::kThrows:
      return rank + " failed: boom";
    case Fault::kLeaves:
      return rank + " has left";
    case Fault::kConsumerThrows:
      return rank + " failed: no room";
    case Fault::kNone:
      return "";
  }
  return "";
}

using Launch = std::function<void(int, const std::function<void(RankContext&)>&,
                                  const LaunchOptions&, std::uint64_t)>;

void check_program(std::uint64_t seed, const Launch& launch_ranks) {
  const auto program = draw(seed);
  std::vector<std::string> errors(static_cast<std::size_t>(program.ranks));
  const LaunchOptions options = {.deadline = 20s,
                                 .jitter = program.jitter,
                                 .piece_bytes = program.piece_bytes,
                                 .priorities = program.priorities,
                                 .on_failure = [](const std::string&) {}};
  const auto body = [&](RankContext& context) {
    try {
      run(program, context, seed * 10 + static_cast<std::uint64_t>(context.rank()));
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(context.rank())] = error.what();
      throw;
    }
  };
  try {
    launch_ranks(program.ranks, body, options, seed);
  } catch (const Error& error) {
    EXPECT_NE(program.fault, Fault::kNone) << error.what();
  }
  for (int rank = 0; rank < program.ranks; ++rank) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    if (mpi_environment() && mpi_environment()->rank != rank) continue;
    if (program.fault == Fault::kNone) {
      EXPECT_EQ(error, "") << "rank " << rank;
    } else if (rank != program.faulty) {
      EXPECT_THAT(error, ::testing::HasSubstr(cause_of(program))) << "rank " << rank;
    }
  }
}

std::uint64_t programs() {
  const auto* const full = std::getenv("MOEGRAD_FULL");  // NOLINT(concurrency-mt-unsafe)
  return full != nullptr && std::string(full) == "1" ? 2'000 : 200;
}

void check_programs(const Launch& launch_ranks) {
  for (std::uint64_t seed = 0; seed < programs() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check_program(seed, launch_ranks);
  }
}

TEST(Sequences, GiveTheSameOnTheLaunchsOwnTransport) {
  check_programs([](int ranks, const std::function<void(RankContext&)>& body,
                    const LaunchOptions& options, std::uint64_t) { launch(ranks, body, options); });
}

TEST(SequencesOnMessages, GiveTheSameThoughMessagesComeLateAndOutOfOrder) {
  check_programs(launch_on_messages);
}

TEST(Sequences, HaveFaultsOfEveryKind) {
  std::set<Fault> faults;
  for (std::uint64_t seed = 0; seed < 200; ++seed) faults.insert(draw(seed).fault);
  EXPECT_EQ(faults.size(), 6U);
}

}  // namespace
}  // namespace moegrad::sequences_test
