// SPDX-License-Identifier: Apache-2.0

// Every generator over many sizes: valid, and its bubble and peak what its formula says.

#include <algorithm>

#include "framework/runtime/error.h"
#include "plan/schedule/check.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "plan/schedule/simulate.h"
#include "tests/testing.h"

namespace moegrad::schedule_sweep_test {
namespace {

using namespace plan;

// F, I and W. What differs shows which of them a formula has.
const StageCost kEqual = {};
const StageCost kUnequal = {.forward = 2, .backward_input = 3, .backward_weight = 1};

double whole(const StageCost& cost) {
  return cost.forward + cost.backward_input + cost.backward_weight;
}

/// Calls check(simulation, cost) for schedules of p ranks and m micro-batches, m from least(p) to
/// 3p + 2, that make(p, m) makes, with equal costs and with unequal ones.
template <class Least, class Make, class Check>
void for_sizes(const Least& least, const Make& make, const Check& check_one) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = least(p); m <= 3 * p + 2; ++m) {
      const auto schedule = make(p, m);
      for (const auto& cost : {kEqual, kUnequal}) {
        SCOPED_TRACE("p " + std::to_string(p) + ", m " + std::to_string(m));
        const auto simulation = simulate(schedule, {.stages = {cost}});
        EXPECT_EQ(simulation.ranks.size(), static_cast<std::size_t>(p));
        check_one(p, m, simulation, cost);
      }
    }
  }
}
const auto kAny = [](int) { return 1; };
const auto kAsRanks = [](int p) { return p; };
const auto kTwiceRanks = [](int p) { return 2 * p; };

TEST(ScheduleSweep, GPipe) {
  for_sizes(kAny, gpipe, [](int p, int m, const Simulation& simulation, const StageCost& cost) {
    for (const auto& rank : simulation.ranks) {
      EXPECT_EQ(rank.bubble, (p - 1) * whole(cost));
      EXPECT_EQ(rank.peak_activations, m);
    }
  });
}

TEST(ScheduleSweep, OneForwardOneBackward) {
  for_sizes(kAny, one_f_one_b,
            [](int p, int m, const Simulation& simulation, const StageCost& cost) {
              for (int r = 0; r < p; ++r) {
                const auto& rank = simulation.ranks[static_cast<std::size_t>(r)];
                EXPECT_EQ(rank.bubble, (p - 1) * whole(cost));
                EXPECT_EQ(rank.peak_activations, std::min(p - r, m));
              }
            });
}

TEST(ScheduleSweep, Interleaved) {
  for (int v = 1; v <= 4; ++v) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = p; m <= 3 * p + 2; ++m) {
        for (const int group : {p, p + 1, m}) {
          if (group > m || (m % group != 0 && m % group < p)) continue;
          SCOPED_TRACE("v " + std::to_string(v) + ", p " + std::to_string(p) + ", m " +
                       std::to_string(m) + ", group " + std::to_string(group));
          const auto simulation = simulate(interleaved_1f1b(p, m, v, group));
          for (int r = 0; r < p; ++r) {
            const auto& rank = simulation.ranks[static_cast<std::size_t>(r)];
            EXPECT_EQ(rank.bubble, (p - 1) * whole(kEqual));
            EXPECT_EQ(rank.peak_activations,
                      std::min(2 * (p - r - 1) + (v - 1) * group + 1, m * v));
          }
        }
      }
    }
  }
}

TEST(ScheduleSweep, ZeroBubbleIsAThirdOf1F1BsInNoMoreMemory) {
  for_sizes(kAsRanks, zb_h1, [](int p, int m, const Simulation& simulation, const StageCost& cost) {
    const auto one = simulate(one_f_one_b(p, m), {.stages = {cost}});
    for (const auto& rank : simulation.ranks) {
      if (cost.forward == cost.backward_input) {
        EXPECT_EQ(rank.bubble, one.ranks[0].bubble / 3);
      }
      // W is at most F and I.
      EXPECT_EQ(rank.bubble, (p - 1) * (cost.forward + cost.backward_input - cost.backward_weight));
      EXPECT_LE(rank.peak_activations, p);
    }
    EXPECT_LE(simulation.ranks[0].peak_activations, one.ranks[0].peak_activations);
  });
}

TEST(ScheduleSweep, ZeroBubbleV) {
  for_sizes(kAny, zbv, [](int p, int m, const Simulation& simulation, const StageCost& cost) {
    for (const auto& rank : simulation.ranks) {
      EXPECT_LE(rank.peak_activations, 2 * p);
      EXPECT_LE(rank.bubble, 2 * (p - 1) * whole(cost));
      if (2 * m >= 3 * p && cost.forward == cost.backward_weight) {
        EXPECT_EQ(rank.bubble, p - 1);
      }
    }
  });
}

TEST(ScheduleSweep, DualPipeV) {
  for_sizes(kTwiceRanks, dual_pipe_v,
            [](int p, int, const Simulation& simulation, const StageCost& cost) {
              const double backward = cost.backward_input + cost.backward_weight;
              const double formula =
                  (p - 1) * (cost.forward + 2 * backward - 3 * cost.backward_weight);
              for (const auto& rank : simulation.ranks) {
                EXPECT_LE(rank.bubble, formula);
                if (cost.forward == cost.backward_input) {
                  EXPECT_EQ(rank.bubble, formula);
                }
                EXPECT_LE(rank.peak_activations, 2 * p + 1);
              }
            });
}

TEST(ScheduleSweep, DualPipe) {
  for (int p = 2; p <= 8; p += 2) {
    for (int m = 2 * p; m <= 4 * p; m += 2) {
      SCOPED_TRACE("p " + std::to_string(p) + ", m " + std::to_string(m));
      const auto simulation = simulate(dual_pipe(p, m), {.copies = 2});
      for (const auto& rank : simulation.ranks) {
        EXPECT_EQ(rank.bubble, (p / 2 - 1) * (3 + 2 - 3));
        EXPECT_LE(rank.peak_activations, p + 1);
      }
    }
  }
}

TEST(ScheduleSweep, LoweredSchedulesAreValidWithFewBuffers) {
  for (int p = 1; p <= 6; ++p) {
    for (const auto& name : generator_names()) {
      if (name == "DualPipe" && p % 2 != 0) continue;
      const auto schedule =
          make_schedule(name, {.ranks = p,
                               .micro_batches = 4 * p,
                               .stages_per_rank = name == "Interleaved1F1B" ? 3 : 0});
      const int copies = name == "DualPipe" ? 2 : 1;
      const auto lowered = add_transfers(add_reduce_grad(add_unshard(schedule, 2)));
      EXPECT_NO_THROW(
          check_schedule(lowered, {.copies = copies, .buffers = 2 * p, .micro_batches = 4 * p}))
          << name << ' ' << p;
      EXPECT_NO_THROW(check_schedule(add_transfers_when_sent(schedule), {.copies = copies}))
          << name << ' ' << p;
    }
  }
}

TEST(ScheduleSweep, AScheduleOf64RanksAnd512MicroBatches) {
  const auto simulation = simulate(add_transfers(dual_pipe_v(64, 512)));
  EXPECT_EQ(simulation.makespan, 2 * 512 * 3 + 63 * 2);
}

}  // namespace
}  // namespace moegrad::schedule_sweep_test
