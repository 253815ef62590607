// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/simulate.h"

#include <cmath>

#include "framework/runtime/error.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "plan/schedule/schedule_csv.h"
#include "tests/plan/schedule/golden_schedules.h"
#include "tests/testing.h"

namespace moegrad::simulate_test {
namespace {

using namespace plan;
using test::message_of;

Schedule parsed(const std::string& text) {
  return read_schedule("# letters: F I W B\n" + text).schedule;
}

/// What F, I and W take of every stage.
StageCost times(double forward, double input, double weight) {
  return {.forward = forward, .backward_input = input, .backward_weight = weight};
}
double makespan(const Schedule& schedule, const StageCost& cost = {}, double pair_factor = 1) {
  return simulate(schedule, {.stages = {cost}, .pair_factor = pair_factor}).makespan;
}
/// With stages so small that a rank's stages together take 1.
StageCost part_of_rank(int stages) { return times(1.0 / stages, 1.0 / stages, 1.0 / stages); }

const TimedAction& action_of(const Simulation& simulation, const std::string& name) {
  for (const auto& timed : simulation.actions) {
    if (to_string(timed.action) == name) return timed;
  }
  throw Error("no " + name);
}

TEST(Simulate, GoldenMakespansOfOneStagePerRank) {
  struct Golden {
    int ranks, micro_batches;
    double one_f_one_b, zero_bubble;
  };
  for (const auto& [p, m, expected, zero_bubble] :
       {Golden{4, 8, 33, 27}, Golden{8, 16, 69, 55}, Golden{4, 16, 57, 51}}) {
    EXPECT_EQ(makespan(gpipe(p, m)), expected);
    EXPECT_EQ(makespan(one_f_one_b(p, m)), expected);
    EXPECT_EQ(makespan(zb_h1(p, m)), zero_bubble);
  }
  EXPECT_EQ(makespan(one_f_one_b(4, 8), times(1, 2, 1)), 44);
  EXPECT_EQ(makespan(zb_h1(4, 8), times(1, 2, 1)), 38);
  // Too few micro-batches for a zero bubble.
  EXPECT_EQ(makespan(one_f_one_b(4, 2)), 15);
}

TEST(Simulate, GoldenMakespansOfInterleavedStages) {
  struct Golden {
    int ranks, micro_batches;
    double two, four;
  };
  for (const auto& [p, m, two, four] :
       {Golden{4, 8, 28.5, 26.25}, Golden{8, 16, 58.5, 53.25}, Golden{4, 16, 52.5, 50.25}}) {
    EXPECT_EQ(makespan(interleaved_1f1b(p, m, 2), part_of_rank(2)), two);
    EXPECT_EQ(makespan(interleaved_1f1b(p, m, 4), part_of_rank(4)), four);
  }
  EXPECT_EQ(makespan(interleaved_1f1b(4, 8, 2), times(0.5, 1, 0.5)), 38);
}

TEST(Simulate, GoldenMakespansOfDualPipeV) {
  EXPECT_EQ(makespan(dual_pipe_v(4, 8), part_of_rank(2)), 27);
  EXPECT_DOUBLE_EQ(makespan(dual_pipe_v(4, 8), part_of_rank(2), 0.8), 24);
  EXPECT_EQ(makespan(dual_pipe_v(2, 4)), 26);
  EXPECT_EQ(makespan(dual_pipe_v(4, 10)), 66);
  EXPECT_EQ(makespan(dual_pipe_v(8, 16)), 110);
  // Where F, I and W differ the bubble is below the formula's 12 and 21.
  const auto bubble = [](const StageCost& cost) {
    return simulate(dual_pipe_v(4, 10), {.stages = {cost}}).ranks[0].bubble;
  };
  EXPECT_EQ(bubble(times(1, 2, 1)), 11);
  EXPECT_EQ(bubble(times(2, 3, 1)), 19);
}

TEST(Simulate, PyTorchsDualPipeVTakes66Or63Or52) {
  const auto golden = read_schedule(test::golden_schedule("dualpipev_4rank_10mb")).schedule;
  const auto together = simulate(golden);
  EXPECT_EQ(together.makespan, 66);
  EXPECT_EQ(simulate(golden, {.pairs_in_turn = true}).makespan, 63);
  EXPECT_DOUBLE_EQ(simulate(golden, {.pair_factor = 2.0 / 3}).makespan, 52);
  for (const auto& rank : together.ranks) {
    EXPECT_EQ(rank.busy, 60);
    EXPECT_EQ(rank.bubble, 6);
    EXPECT_EQ(rank.peak_activations, 9);
  }
  // In turn the two halves take what they take alone.
  for (const auto& rank : simulate(golden, {.pairs_in_turn = true, .pair_factor = 0.5}).ranks) {
    EXPECT_EQ(rank.busy, 60);
  }
}

TEST(Simulate, TransfersThatTakeNoTimeChangeNothing) {
  for (const auto& name : generator_names()) {
    const int copies = name == "DualPipe" ? 2 : 1;
    const auto schedule = make_schedule(name, {});
    const auto plain = simulate(schedule, {.copies = copies});
    const auto sent = simulate(add_transfers(schedule), {.copies = copies});
    EXPECT_EQ(plain.makespan, sent.makespan) << name;
    for (std::size_t rank = 0; rank < plain.ranks.size(); ++rank) {
      EXPECT_EQ(plain.ranks[rank].bubble, sent.ranks[rank].bubble) << name;
      EXPECT_EQ(plain.ranks[rank].peak_activations, sent.ranks[rank].peak_activations) << name;
    }
  }
}

TEST(Simulate, MessagesTakeLatencyAndBytes) {
  // 4 bytes at 8 per unit and half a unit: a message takes 1.
  for (const int buffers : {kUnlimitedBuffers, 1, 0}) {
    SimulationOptions options = {
        .stages = {{.output_bytes = 4}}, .latency = 0.5, .bytes_per_time = 8, .buffers = buffers};
    for (const auto& schedule : {one_f_one_b(2, 1), add_transfers(one_f_one_b(2, 1))}) {
      const auto simulation = simulate(schedule, options);
      EXPECT_EQ(action_of(simulation, "1F0").begin, 2);
      EXPECT_EQ(action_of(simulation, "0B0").begin, 6);
      EXPECT_EQ(simulation.makespan, 8);
    }
  }
}

TEST(Simulate, StagesOfOneRankNeedNoMessage) {
  EXPECT_EQ(simulate(parsed("0F0,1F0,1B0,0B0\n"), {.latency = 5}).makespan, 6);
}

TEST(Simulate, AGradientIsAsLargeAsWhatItIsOf) {
  SimulationOptions options = {.stages = {{.output_bytes = 1}, {.output_bytes = 100}},
                               .bytes_per_time = 1};
  EXPECT_EQ(simulate(one_f_one_b(2, 1), options).makespan, 1 + 1 + 1 + 2 + 1 + 2);
}

TEST(Simulate, MessagesOfTwoRanksLeaveOneAfterTheOther) {
  SimulationOptions options = {.stages = {{.forward = 0, .output_bytes = 3}}, .bytes_per_time = 1};
  const auto simulation = simulate(gpipe(2, 3), options);
  EXPECT_EQ(action_of(simulation, "1F0").begin, 3);
  EXPECT_EQ(action_of(simulation, "1F2").begin, 9);
}

TEST(Simulate, ASendWaitsForABuffer) {
  const auto schedule = add_transfers(gpipe(2, 3));
  SimulationOptions options = {.stages = {{}, {.forward = 10}}, .buffers = 1};
  // The second message is received when the first forward of rank 1 has ended.
  EXPECT_EQ(action_of(simulate(schedule, options), "0SEND_F2").begin, 11);
  options.buffers = 2;
  EXPECT_EQ(action_of(simulate(schedule, options), "0SEND_F2").begin, 3);
  options.buffers = 0;
  EXPECT_EQ(action_of(simulate(schedule, options), "0SEND_F2").begin, 21);
}

TEST(Simulate, AReceiveThatIsPostedTooEarlyHoldsItsRankUp) {
  for (const auto& schedule :
       {one_f_one_b(4, 8), interleaved_1f1b(4, 8, 2), zb_h1(4, 8), zbv(4, 8), dual_pipe_v(4, 8)}) {
    const auto when_sent = simulate(add_transfers_when_sent(schedule)).makespan;
    EXPECT_GT(when_sent, 1.1 * simulate(add_transfers(schedule)).makespan);
  }
}

TEST(Simulate, GathersAndReductionsRunBesideTheRest) {
  StageCost cost = {.unshard = 2, .reduce_grad = 3};
  const auto simulation = simulate(
      parsed("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,1RESHARD,0B0,0REDUCE_GRAD,0RESHARD\n"),
      {.stages = {cost}});
  EXPECT_EQ(action_of(simulation, "0F0").begin, 2);
  EXPECT_EQ(action_of(simulation, "1F0").begin, 4);
  EXPECT_EQ(action_of(simulation, "1B0").end, 7);
  EXPECT_EQ(action_of(simulation, "1REDUCE_GRAD").end, 10);
  EXPECT_EQ(action_of(simulation, "0B0").end, 9);
  EXPECT_EQ(action_of(simulation, "0REDUCE_GRAD").begin, 10);
  EXPECT_EQ(simulation.makespan, 13);
  EXPECT_EQ(simulation.ranks[0].busy, 6);
  EXPECT_EQ(simulation.ranks[0].bubble, 7);
}

TEST(Simulate, TheCriticalPathIsAChain) {
  const auto path = [](const Schedule& schedule, const SimulationOptions& options) {
    std::string text;
    double end = 0;
    for (const auto& timed : simulate(schedule, options).critical_path) {
      EXPECT_EQ(timed.begin, end + options.latency * (text.empty() ? 0 : 1));
      end = timed.end;
      text += (text.empty() ? "" : " ") + to_string(timed.action);
    }
    return text;
  };
  EXPECT_EQ(path(one_f_one_b(3, 1), {}), "0F0 1F0 2F0 2B0 1B0 0B0");
  EXPECT_EQ(path(one_f_one_b(2, 2), {.stages = {{}, times(3, 3, 3)}}), "0F0 1F0 1B0 1F1 1B1 0B1");
}

TEST(Simulate, OfAPairBothHalvesAreOnTheCriticalPath) {
  const auto simulation = simulate(dual_pipe_v(1, 2));
  std::string text;
  for (const auto& timed : simulation.critical_path) text += to_string(timed.action) + " ";
  EXPECT_EQ(text, "0F0 1F0 0F1 1B0 1F1 0B0 1B1 0I1 0W1 ");
  EXPECT_EQ(simulation.makespan, 12);
}

TEST(Simulate, LiveBytesRiseAndFall) {
  const StageCost cost = {.reduce_grad = 2,
                          .activation_bytes = 100,
                          .input_bytes = 10,
                          .parameter_bytes = 7,
                          .gradient_bytes = 5};
  const auto live = [&](const Schedule& schedule) {
    const auto simulation = simulate(schedule, {.stages = {cost}});
    std::string text;
    for (const auto& [time, activations, parameters, gradients] : simulation.ranks[0].live) {
      text += std::to_string(static_cast<int>(time)) + ":" + std::to_string(activations) + "+" +
              std::to_string(parameters) + "+" + std::to_string(gradients) + " ";
    }
    return text + "peak " + std::to_string(simulation.ranks[0].peak_bytes);
  };
  EXPECT_EQ(live(parsed("0F0,0F1,0I0,0W0,0B1\n")),
            "0:100+7+0 1:200+7+0 3:200+7+5 4:100+7+5 6:0+7+5 peak 212");
  EXPECT_EQ(live(parsed("0F0,0F1,0R0,0B0,0R1,0B1\n")),
            "0:100+7+0 1:110+7+0 2:110+7+0 3:110+7+5 5:100+7+5 8:0+7+5 peak 122");
  EXPECT_EQ(live(parsed("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n")),
            "0:100+7+0 1:100+7+5 3:0+0+5 5:0+0+0 peak 112");
}

TEST(Simulate, RefusesCostsThatCannotBe) {
  const auto refused = [](const SimulationOptions& options) {
    return message_of<ValueError>([&] { simulate(one_f_one_b(2, 1), options); });
  };
  EXPECT_EQ(refused({.stages = {{}, {}, {}}}),
            "simulate: must be given the costs of 1 or of 2 stages, got 3");
  EXPECT_EQ(refused({.stages = {}}),
            "simulate: must be given the costs of 1 or of 2 stages, got 0");
  EXPECT_EQ(refused({.stages = {{}, {.forward = -1}}}),
            "simulate: stage 1: forward must be a finite number of at least 0, got -1");
  EXPECT_EQ(refused({.stages = {{.backward_input = NAN}}}),
            "simulate: stage 0: backward_input must be a finite number of at least 0, got nan");
  EXPECT_EQ(refused({.stages = {{.backward_weight = INFINITY}}}),
            "simulate: stage 0: backward_weight must be a finite number of at least 0, got inf");
  EXPECT_EQ(refused({.stages = {{.unshard = -2}}}),
            "simulate: stage 0: unshard must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.stages = {{.reduce_grad = -2}}}),
            "simulate: stage 0: reduce_grad must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.stages = {{.output_bytes = -2}}}),
            "simulate: stage 0: output_bytes must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.stages = {{.activation_bytes = -2}}}),
            "simulate: stage 0: activation_bytes must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.stages = {{.input_bytes = -2}}}),
            "simulate: stage 0: input_bytes must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.stages = {{.parameter_bytes = -2}}}),
            "simulate: stage 0: parameter_bytes must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.stages = {{.gradient_bytes = -2}}}),
            "simulate: stage 0: gradient_bytes must be a finite number of at least 0, got -2");
  EXPECT_EQ(refused({.latency = -1}),
            "simulate: latency must be a finite number of at least 0, got -1");
  EXPECT_EQ(refused({.bytes_per_time = -1}),
            "simulate: bytes_per_time must be a finite number of at least 0, got -1");
  EXPECT_EQ(refused({.pair_factor = -1}),
            "simulate: pair_factor must be a finite number of at least 0, got -1");
  constexpr std::int64_t kHalf = std::int64_t{1} << 62;
  const std::string too_many = "simulate: the bytes of a rank must be below 2^63, got more";
  EXPECT_EQ(refused({.stages = {{.activation_bytes = kHalf, .parameter_bytes = kHalf}}}), too_many);
  EXPECT_EQ(message_of<ValueError>([&] {
              simulate(interleaved_1f1b(1, 1, 2), {.stages = {{.parameter_bytes = kHalf}}});
            }),
            too_many);
  EXPECT_EQ(refused({.stages = {{.forward = 1e308}}, .pair_factor = 10}),
            "simulate: times must have a finite sum, got inf");
  EXPECT_EQ(message_of<ValueError>([] { simulate(parsed("0F0\n")); }),
            "check_schedule: row 0: must have 0I0 or 0B0, got none");
}

}  // namespace
}  // namespace moegrad::simulate_test
