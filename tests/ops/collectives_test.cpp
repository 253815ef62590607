// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/fill.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::collectives_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

using Group = std::shared_ptr<ProcessGroup>;

Tensor input(const Shape& shape, int rank, Dtype dtype = Dtype::kFloat64) {
  return randn(shape, 10 + static_cast<std::uint64_t>(rank), dtype, true);
}

/// An op of this rank's x whose result is part of the objective.
struct Op {
  std::string name;
  std::function<Shape(int rank, int ranks)> shape;
  std::function<Tensor(const Group&, const Tensor& x)> apply;
};

auto of_shape(const Shape& shape) {
  return [=](int /*rank*/, int /*ranks*/) { return shape; };
}
Shape same(int /*rank*/, int /*ranks*/) { return {3, 2}; }
Shape two_rows_for_each(int /*rank*/, int ranks) { return {2 * ranks, 3}; }

// Rank r sends (2 r + to) % 3 rows to rank `to`: some none, and there other numbers than back.
std::vector<std::int64_t> rows_sent(int rank, int ranks) {
  std::vector<std::int64_t> rows;
  for (int to = 0; to < ranks; ++to) rows.push_back((2 * rank + to) % 3);
  return rows;
}
std::vector<std::int64_t> rows_received(int rank, int ranks) {
  std::vector<std::int64_t> rows;
  for (int from = 0; from < ranks; ++from) rows.push_back((2 * from + rank) % 3);
  return rows;
}
Shape all_sent(int rank, int ranks) {
  std::int64_t rows = 0;
  for (const auto count : rows_sent(rank, ranks)) rows += count;
  return {rows, 2, 2};
}

Tensor exchange(const Group& group, const Tensor& x) {
  return ops::all_to_all(group, x, rows_sent(group->rank(), group->size()),
                         rows_received(group->rank(), group->size()));
}

// x goes to the next rank; what the previous one sent is squared.
Tensor ring(const Group& group, const Tensor& x) {
  const int ranks = group->size();
  const Tensor sent = ops::send(group, x, (group->rank() + 1) % ranks, 5);
  const Tensor like = randn(x.shape(), 1, x.dtype(), true);
  const Tensor got = ops::recv(group, like, (group->rank() + ranks - 1) % ranks, 5);
  return got * got + sent;
}

Tensor gather(const Group& group, const Tensor& x) { return ops::all_gather(group, x); }
Tensor reduce(const Group& group, const Tensor& x) { return ops::all_reduce(group, x); }

const std::vector<Op> kOps = {
    {"all_gather", same, gather},
    {"all_gather of a vector of one", of_shape({1}), gather},
    {"all_gather of no rows", of_shape({0, 3}), gather},
    {"reduce_scatter", two_rows_for_each,
     [](const Group& g, const Tensor& x) { return ops::reduce_scatter(g, x); }},
    {"all_reduce", same, reduce},
    {"all_reduce of a number", of_shape({}), reduce},
    {"all_reduce of a strided tensor", same,
     [](const Group& g, const Tensor& x) { return ops::all_reduce(g, ops::transpose(x, 0, 1)); }},
    {"broadcast", same,
     [](const Group& g, const Tensor& x) { return ops::broadcast(g, x, g->size() - 1); }},
    {"all_to_all", all_sent, exchange},
    {"send and recv", same, ring},
    {"one after the other", same,
     [](const Group& g, const Tensor& x) {
       const Tensor all = ops::all_gather(g, x * x);
       return ops::reduce_scatter(g, all * ops::all_reduce(g, all));
     }},
};

class CollectiveGradients : public ::testing::TestWithParam<std::tuple<std::size_t, int>> {};

// The objective is the sum over the ranks of <cotangent, y>.
TEST_P(CollectiveGradients, GradientsMatchFiniteDifferencesOfTheSumOfAllRanksObjectives) {
  const auto& op = kOps[std::get<0>(GetParam())];
  const int ranks = std::get<1>(GetParam());
  launch(ranks, [&](RankContext& context) {
    const auto& group = context.group();
    const auto objective = [&](const Tensor& x) {
      const Tensor y = op.apply(group, x);
      return ops::sum(y * randn(y.shape(), 50 + static_cast<std::uint64_t>(context.rank())));
    };
    const Tensor x = input(op.shape(context.rank(), ranks), context.rank());
    objective(x).backward();
    const Tensor grad = x.grad();
    ASSERT_TRUE(grad.defined());
    constexpr double kStep = 1e-5;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto elements = op.shape(rank, ranks).numel();
      for (std::int64_t i = 0; i < elements; ++i) {
        const auto at = [&](double step) {
          const NoGradGuard no_grad;
          Tensor moved = clone(x);
          if (rank == context.rank()) {
            moved.mutable_data<double>()[static_cast<std::size_t>(i)] += step;
          }
          return all_reduce(*group, objective(moved).item());
        };
        const double expected = (at(kStep) - at(-kStep)) / (2 * kStep);
        if (rank != context.rank()) continue;
        const double got = grad.data<double>()[static_cast<std::size_t>(i)];
        EXPECT_NEAR(got, expected, 1e-7 * (1 + std::abs(expected))) << op.name << ' ' << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ops, CollectiveGradients,
                         ::testing::Combine(::testing::Range<std::size_t>(0, kOps.size()),
                                            ::testing::Values(1, 2, 4)));

TEST(CollectiveOps, HaveTheValuesThatTheirNamesSay) {
  launch(3, [](RankContext& context) {
    const auto& group = context.group();
    const int rank = context.rank();
    std::vector<Tensor> all;
    for (int r = 0; r < 3; ++r) all.push_back(input({3, 2}, r).detach());
    const auto& own = all[static_cast<std::size_t>(rank)];
    const Tensor total = (all[0] + all[1]) + all[2];
    EXPECT_TRUE(bitwise_equal(ops::all_reduce(group, own), total));
    EXPECT_TRUE(
        bitwise_equal(ops::reduce_scatter(group, own), clone(Tensor::narrow(total, 0, rank, 1))));
    EXPECT_TRUE(bitwise_equal(ops::broadcast(group, own, 1), all[1]));
    const Tensor gathered = ops::all_gather(group, own);
    EXPECT_EQ(gathered.shape(), (Shape{9, 2}));
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(bitwise_equal(clone(Tensor::narrow(gathered, 0, 3 * r, 3)),
                                all[static_cast<std::size_t>(r)]));
    }
    // Row `to` of every rank goes to rank `to`.
    const Tensor exchanged = ops::all_to_all(group, own, std::vector<std::int64_t>{1, 1, 1},
                                             std::vector<std::int64_t>{1, 1, 1});
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(
          bitwise_equal(clone(Tensor::narrow(exchanged, 0, r, 1)),
                        clone(Tensor::narrow(all[static_cast<std::size_t>(r)], 0, rank, 1))));
    }
    const Tensor numbers = Tensor::from(std::vector<std::int64_t>{rank, 7}, {2});
    EXPECT_EQ(test::integers(ops::all_reduce(group, numbers)), (std::vector<std::int64_t>{3, 21}));
  });
}

// What moves bfloat16 gives the bits of float32, rounded; sums of gradients are not rounded.
TEST(CollectiveOps, MoveBFloat16AndSumItsGradientsInFloat32) {
  const std::vector<std::string> names{"all_gather", "broadcast", "all_to_all"};
  for (const int ranks : {1, 2, 4}) {
    launch(ranks, [&](RankContext& context) {
      const auto& group = context.group();
      for (const auto& op : kOps) {
        if (std::ranges::find(names, op.name) == names.end()) continue;
        const auto shape = op.shape(context.rank(), ranks);
        const Tensor narrow = input(shape, context.rank(), Dtype::kBFloat16);
        const Tensor wide = to_dtype(narrow.detach(), Dtype::kFloat32).set_requires_grad(true);
        const Tensor y = op.apply(group, narrow), expected = op.apply(group, wide);
        EXPECT_TRUE(bitwise_equal(y, to_dtype(expected.detach(), Dtype::kBFloat16))) << op.name;
        const auto seed = 50 + static_cast<std::uint64_t>(context.rank());
        const Tensor grad = randn(y.shape(), seed, Dtype::kBFloat16);
        y.backward(grad);
        expected.backward(to_dtype(grad, Dtype::kFloat32));
        EXPECT_TRUE(bitwise_equal(narrow.grad(), wide.grad())) << op.name;
      }
      const int to = (context.rank() + 1) % ranks, from = (context.rank() + ranks - 1) % ranks;
      const Tensor x = input({3, 2}, context.rank(), Dtype::kBFloat16);
      const Tensor sent = ops::send(group, x, to, 5);
      const Tensor like = Tensor::zeros({3, 2}, Dtype::kBFloat16).set_requires_grad(true);
      const Tensor got = ops::recv(group, like, from, 5);
      EXPECT_TRUE(bitwise_equal(got, input({3, 2}, from, Dtype::kBFloat16).detach()));
      const auto cotangent = [](int rank) {
        return randn({3, 2}, 50 + static_cast<std::uint64_t>(rank), Dtype::kBFloat16);
      };
      run_backward({got, sent}, {cotangent(context.rank()), Tensor::ones({})}, false);
      EXPECT_TRUE(bitwise_equal(x.grad(), to_dtype(cotangent(to), Dtype::kFloat32)));
    });
  }
}

/// Two layers with every collective, their losses and gradients. `read` looks at each result at
/// once, so that nothing is asynchronous.
TensorList train(RankContext& context, bool read, Dtype dtype) {
  const auto& group = context.group();
  const int ranks = context.world_size();
  const auto seen = [&](const Tensor& y) {
    if (read) y.bytes();
    return y;
  };
  const Tensor x = input({2 * ranks, 3}, context.rank(), dtype);
  const Tensor w = input({2 * ranks, 3}, 7, dtype);
  const std::vector<std::int64_t> two(static_cast<std::size_t>(ranks), 2);
  Tensor h = x;
  for (int layer = 0; layer < 3; ++layer) {
    const Tensor other = seen(ops::all_to_all(group, h * w, two, two));
    const Tensor total = seen(ops::all_reduce(group, h));
    const Tensor part = seen(ops::reduce_scatter(group, other * total));
    const Tensor first = seen(ops::broadcast(group, part, 0));
    const Tensor back = seen(ops::all_gather(group, part * first));
    const Tensor sent = ops::send(group, back, (context.rank() + 1) % ranks);
    const Tensor like = Tensor::zeros(back.shape(), dtype).set_requires_grad(true);
    const Tensor next = seen(ops::recv(group, like, (context.rank() + ranks - 1) % ranks));
    h = ops::mul(h + next, 0.125) + seen(sent);
  }
  const Tensor loss = ops::sum(h * h);
  loss.backward();
  return {loss.detach(), x.grad(), w.grad()};
}

TEST(CollectiveOps, AreAsynchronousToTheSameBitsWhateverTheDelays) {
  for (const int ranks : {1, 2, 4}) {
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      std::vector<TensorList> expected(static_cast<std::size_t>(ranks));
      launch(ranks, [&](RankContext& context) {
        expected[static_cast<std::size_t>(context.rank())] = train(context, true, dtype);
      });
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        launch(ranks,
               [&](RankContext& context) {
                 const auto& want = expected[static_cast<std::size_t>(context.rank())];
                 const auto got = train(context, seed % 2 == 0, dtype);
                 for (std::size_t i = 0; i < got.size(); ++i) {
                   EXPECT_TRUE(bitwise_equal(got[i], want[i])) << ranks << " ranks, " << i;
                 }
               },
               {.jitter = {.maximum = 300us, .seed = seed}});
      }
    }
  }
}

TEST(CollectiveOps, ComputeBetweenIssueAndFirstUse) {
  constexpr auto kLatency = 40ms;
  launch(2,
         [&](RankContext& context) {
           context.spans().start(2);
           const Tensor x = input({4}, context.rank());
           const Tensor y = ops::all_gather(context.group(), x, {.label = "of x"});
           const Tensor aside = x * x;  // does not need y
           const Tensor both = ops::sum(y) * ops::sum(aside);
           both.backward();
           const auto spans = context.spans().spans();
           const auto find = [&](const std::string& name) {
             const auto found = std::ranges::find(spans, name, &Span::name);
             EXPECT_NE(found, spans.end()) << name;
             return found == spans.end() ? Span() : *found;
           };
           // Forward: the product is done while the gather is under way; then the sum waits for it.
           const auto gather = find("all_gather of x"), wait = find("wait for all_gather of x");
           const auto product = find("forward mul");
           EXPECT_GE(gather.end - gather.begin, kLatency);
           EXPECT_LT(product.end, gather.end);
           EXPECT_LE(product.end, wait.begin);
           EXPECT_GE(wait.end, gather.end);
           // Backward: so are the gradients that do not need the reduction.
           const auto reduction = find("reduce_scatter of x, backward");
           const auto behind = find("backward mul");
           EXPECT_GE(reduction.end - reduction.begin, kLatency);
           EXPECT_LT(behind.end, reduction.end);
           EXPECT_LE(behind.end, find("wait for reduce_scatter of x, backward").begin);
         },
         {.link = {.latency = kLatency}});
}

TEST(CollectiveOps, KeepWhatTheyReadUntilTheyHaveReadIt) {
  launch(2,
         [&](RankContext& context) {
           const auto& group = context.group();
           Tensor x = Tensor::full({3}, 1.0 + context.rank(), Dtype::kFloat64);
           const Tensor kept = ops::all_gather(group, x);
           fill_(x, 99);  // waits for the gather
           EXPECT_EQ(ops::sum(kept).item(), 9);
           Tensor gone = Tensor::full({3}, 1.0 + context.rank(), Dtype::kFloat64);
           const Tensor of_gone = ops::reduce_scatter(group, ops::all_gather(group, gone));
           gone = Tensor();
           EXPECT_EQ(ops::sum(of_gone).item(), context.rank() == 0 ? 6 : 12);
           ops::all_gather(group, x);  // dropped while it is under way
           // Bytes that are freed go to the next who asks: here they are overwritten at once.
           Tensor freed = Tensor::full({300}, 1.0 + context.rank(), Dtype::kFloat64);
           const Tensor of_freed = ops::all_gather(group, freed);
           freed.storage().release();
           const Tensor next = Tensor::full({300}, 99, Dtype::kFloat64);
           EXPECT_EQ(ops::sum(of_freed).item(), 900);
         },
         {.link = {.latency = 5ms}, .jitter = {.maximum = 3ms}});
}

TEST(CollectiveOps, MayBeFreedAfterAnErrorInAnyOrder) {
  const auto end = [](const auto& free) {
    return message_of<CollectiveError>([&] {
      launch(2, [&](RankContext& context) {
        Tensor x = input({2 + context.rank()}, 0).detach();
        Tensor y = ops::all_gather(context.group(), x);
        free(x, y);
        y.bytes();
      });
    });
  };
  const std::string error =
      "all_gather [group world, sequence 0]: rank 0 called all_gather of 2 float64, rank 1 "
      "all_gather of 3 float64";
  EXPECT_EQ(end([](Tensor& x, Tensor&) { EXPECT_NO_THROW(x.storage().release()); }), error);
  EXPECT_EQ(end([](Tensor& x, Tensor&) { x = Tensor(); }), error);
  EXPECT_EQ(end([](Tensor& x, Tensor&) { EXPECT_NO_THROW(fill_(x, 1)); }), error);
}

// One thread of the rank has one end of a collective, another thread the other.
TEST(CollectiveOps, AreAwaitedAtBothEndsByDifferentThreads) {
  launch(2,
         [](RankContext& context) {
           for (int round = 0; round < 30; ++round) {
             Tensor x = Tensor::full({300}, 1.0 + context.rank(), Dtype::kFloat64);
             Tensor y = ops::all_gather(context.group(), x);
             const Tensor early = ops::all_gather(context.group(), x);
             const Tensor kept = ops::all_gather(context.group(), x);
             const std::jthread drops([&, state = ThreadState::capture()] {
               const ThreadStateGuard guard(state);
               y = Tensor();
             });
             if (round % 2 == 0) {
               fill_(x, 99);  // three read it
             } else {
               x.storage().release();
             }
             const Tensor next = Tensor::full({300}, 99, Dtype::kFloat64);  // has freed bytes
             EXPECT_EQ(ops::sum(kept).item(), 900);
             EXPECT_EQ(ops::sum(early).item(), 900);
           }
         },
         {.link = {.latency = 1ms}, .jitter = {.maximum = 1ms}});
}

TEST(CollectiveOps, ReadOneTensorOnSeveralRanksAtTheSameTime) {
  const Tensor shared = input({50, 3}, 0).detach();
  const double sum = ops::sum(shared).item();
  launch(4, [&](RankContext& context) {
    for (int round = 0; round < 50; ++round) {
      const Tensor all = ops::all_gather(context.group(), shared);
      EXPECT_NEAR(ops::sum(all).item(), 4 * sum, 1e-9);
    }
  });
}

// Rank 1's gradient is on its way before its message of the same tag is.
TEST(CollectiveOps, GiveAGradientToNobodyWhoAwaitsAMessage) {
  launch(2, [](RankContext& context) {
    const auto& group = context.group();
    const Tensor x = Tensor::full({3}, 5, Dtype::kFloat64).set_requires_grad(true);
    const Tensor like = Tensor::zeros({3}, Dtype::kFloat64);
    if (context.rank() == 0) {
      const Tensor sent = ops::send(group, x, 1, 3);
      EXPECT_EQ(ops::sum(ops::recv(group, like, 1, 3)).item(), 21);
      sent.backward();
      EXPECT_EQ(ops::sum(x.grad()).item(), 30);
      return;
    }
    const Tensor got = ops::recv(group, clone(like).set_requires_grad(true), 0, 3);
    ops::sum(got * got).backward();
    const Tensor sent = ops::send(group, Tensor::full({3}, 7, Dtype::kFloat64), 0, 3);
    sent.bytes();
  });
}

TEST(CollectiveOps, ShowAnErrorAtTheFirstUse) {
  EXPECT_EQ(message_of<CollectiveError>([] {
              launch(2, [](RankContext& context) {
                const Tensor x = input({2 + context.rank()}, 0);
                const Tensor y = ops::all_reduce(context.group(), x, {.label = "z"});
                EXPECT_EQ(y.shape(), x.shape());
                for (int again = 0; again < 2; ++again) {
                  EXPECT_THROW(y.bytes(), CollectiveError);
                }
                y.bytes();
              });
            }),
            "all_reduce [group world, sequence 0, z]: rank 0 called all_reduce(sum) of 2 float64, "
            "rank 1 all_reduce(sum) of 3 float64");
}

TEST(CollectiveOps, RejectWhatDoesNotFit) {
  launch(2, [](RankContext& context) {
    const auto& group = context.group();
    const Tensor x = input({3, 2}, 0);
    const auto value = [](const auto& call) { return message_of<ValueError>(call); };
    const auto shape = [](const auto& call) { return message_of<ShapeError>(call); };
    EXPECT_EQ(value([&] { ops::all_gather(nullptr, x); }),
              "all_gather: needs a process group, got null");
    EXPECT_EQ(message_of<UndefinedTensorError>([&] { ops::all_reduce(group, Tensor()); }),
              "all_reduce: input 0 must be a defined tensor, got an undefined one");
    EXPECT_EQ(
        message_of<DtypeError>(
            [&] { ops::all_reduce(group, to_dtype(x.detach(), Dtype::kBFloat16)); }),
        "all_reduce: needs float32, float64 or int64, got bfloat16; convert it with ops::cast");
    EXPECT_EQ(message_of<DtypeError>(
                  [&] { ops::reduce_scatter(group, Tensor::ones({2}, Dtype::kBFloat16)); }),
              "reduce_scatter: needs float32, float64 or int64, got bfloat16; convert it with "
              "ops::cast");
    EXPECT_EQ(
        message_of<DtypeError>([&] { ops::all_gather(group, Tensor::ones({2}, Dtype::kBool)); }),
        "all_gather: needs float32, float64, bfloat16 or int64, got bool");
    EXPECT_EQ(shape([&] { ops::all_gather(group, Tensor::ones({})); }),
              "all_gather: x must have rows, got []");
    EXPECT_EQ(shape([&] { ops::reduce_scatter(group, x); }),
              "reduce_scatter: the rows of x [3, 2] must divide by the 2 ranks");
    EXPECT_EQ(value([&] { ops::broadcast(group, x, 2); }),
              "broadcast: root must be in [0, 2), got 2");
    EXPECT_EQ(value([&] { ops::send(group, x, -1); }), "send: to must be in [0, 2), got -1");
    EXPECT_EQ(value([&] { ops::recv(group, x, 2); }), "recv: from must be in [0, 2), got 2");
    const CollectiveOptions queued = {.queue = CollectiveQueue::kReduce};
    EXPECT_EQ(
        value([&] { ops::send(group, x, 0, 0, queued); }),
        "send: options.queue must be the default one, got 'reduce'; tags tell messages apart");
    EXPECT_EQ(
        value([&] { ops::recv(group, x, 0, 0, queued); }),
        "recv: options.queue must be the default one, got 'reduce'; tags tell messages apart");
    const std::string recomputed =
        ": must not be called in a recomputed module or the body of a checkpoint, got such a call";
    const auto in_checkpoint = [&](const auto& op) {
      return message_of<Error>(
          [&] { checkpoint([&](const TensorList& in) { return TensorList{op(in[0])}; }, {x}); });
    };
    EXPECT_EQ(in_checkpoint([&](const Tensor& in) { return ops::send(group, in, 0); }),
              "send" + recomputed);
    EXPECT_EQ(in_checkpoint([&](const Tensor& in) { return ops::recv(group, in, 0); }),
              "recv" + recomputed);
    using Counts = std::vector<std::int64_t>;
    const auto exchange_of = [&](const Counts& there, const Counts& back) {
      return [&, there, back] { ops::all_to_all(group, x, there, back); };
    };
    EXPECT_EQ(value(exchange_of({3}, {1, 1})),
              "all_to_all: send_rows must have one count for each of 2 ranks, got 1");
    EXPECT_EQ(value(exchange_of({4, -1}, {1, 1})),
              "all_to_all: send_rows must be at least 0, and at most 2^53 together, got -1");
    EXPECT_EQ(value(exchange_of({1, 2}, {1, std::int64_t{1} << 60})),
              "all_to_all: recv_rows must be at least 0, and at most 2^53 together, got "
              "1152921504606846976");
    EXPECT_EQ(shape(exchange_of({1, 1}, {1, 1})),
              "all_to_all: send_rows must add up to the 3 rows of x, got 2");
  });
}

}  // namespace
}  // namespace moegrad::collectives_test
