// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules on ranks that are threads, sleep instead of computing and exchange messages,
// against their simulation:
//
//     build/release/tests/bench_schedule [REPEATS]
//
// F, I and W take 20 ms each. Prints the simulated makespan, the median of the measured ones and
// their ratio, for each schedule on 2 and 4 ranks; then, with receives that come too early, the
// ratio to the makespan of the schedule as it is.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/program.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "plan/schedule/simulate.h"

namespace moegrad {
namespace {

using namespace plan;
using Clock = std::chrono::steady_clock;

constexpr double kMilliseconds = 20;  // of F, I or W
constexpr std::size_t kMessage = 1 << 16;

double units_of(const Cell& cell) {
  double units = 0;
  for (const auto& action : cell) {
    if (is_compute(action.kind)) units += action.kind == ActionKind::kFullBackward ? 2 : 1;
  }
  return units;
}

/// Which rank has each stage's forward or backward of a micro-batch, as the peer of its messages.
class Peers {
 public:
  explicit Peers(const Schedule& schedule) {
    for (std::size_t row = 0; row < schedule.size(); ++row) {
      for (const auto& cell : schedule[row]) {
        if (is_transfer(cell[0].kind)) rows_[cell[0]] = static_cast<int>(row);
      }
    }
  }
  int of(const Action& transfer) const {
    using enum ActionKind;
    const auto& [kind, stage, micro_batch] = transfer;
    if (kind == kSendForward) return rows_.at({kRecvForward, stage + 1, micro_batch});
    if (kind == kRecvForward) return rows_.at({kSendForward, stage - 1, micro_batch});
    if (kind == kSendBackward) return rows_.at({kRecvBackward, stage - 1, micro_batch});
    return rows_.at({kSendBackward, stage + 1, micro_batch});
  }

 private:
  std::map<Action, int> rows_;
};

/// The same for a SEND and its RECV, and no other.
int tag_of(const Action& transfer) {
  const bool forward =
      transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kRecvForward;
  const bool sends = is_send(transfer.kind);
  const int receiver = sends ? transfer.stage + (forward ? 1 : -1) : transfer.stage;
  return (receiver * 4096 + transfer.micro_batch) * 2 + (forward ? 1 : 0);
}

void run_row(ProcessGroup& group, const Row& row, const Peers& peers) {
  const std::vector<std::byte> output(kMessage);
  std::vector<std::byte> input(kMessage);
  std::vector<WorkPtr> sends;
  for (const auto& cell : row) {
    const auto& action = cell[0];
    if (is_send(action.kind)) {
      sends.push_back(group.send(output, peers.of(action), tag_of(action), Dtype::kFloat32));
    } else if (is_transfer(action.kind)) {
      group.recv(input, peers.of(action), tag_of(action), Dtype::kFloat32)->wait();
    } else {
      std::this_thread::sleep_for(
          std::chrono::duration<double, std::milli>(kMilliseconds * units_of(cell)));
    }
  }
  for (const auto& send : sends) send->wait();
}

/// Milliseconds from when all ranks begin until the last has ended.
double measured(const Schedule& schedule, int repeats) {
  const Peers peers(schedule);
  std::vector<double> times;
  launch(static_cast<int>(schedule.size()), [&](RankContext& context) {
    auto& group = *context.group();
    for (int i = -1; i < repeats; ++i) {  // the first is not counted
      group.barrier()->wait();
      const auto begin = Clock::now();
      run_row(group, schedule[static_cast<std::size_t>(context.rank())], peers);
      const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
      const auto slowest = all_reduce(group, took.count(), ReduceOp::kMax);
      if (context.rank() == 0 && i >= 0) times.push_back(slowest);
    }
  });
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::ranges::nth_element(times, middle);
  return *middle;
}

/// Receives where their messages are sent, as PyTorch has them. For GPipe this is no earlier: there
/// all that a rank's forwards receive comes before the first of these, and so for its backwards.
Schedule with_early_receives(const std::string& name, const Schedule& schedule) {
  if (name != "GPipe") return add_transfers_when_sent(schedule);
  using enum ActionKind;
  const auto is_of_backward = [](const Cell& cell) {
    return cell[0].kind == kRecvBackward || cell[0].kind == kFullBackward;
  };
  const auto is_receive = [](const Cell& cell) {
    return is_transfer(cell[0].kind) && !is_send(cell[0].kind);
  };
  auto early = add_transfers(schedule);
  for (auto& row : early) {
    const auto backward = std::ranges::find_if(row, is_of_backward);
    std::stable_partition(row.begin(), backward, is_receive);
    std::stable_partition(backward, row.end(), is_receive);
  }
  return early;
}

void compare(const std::string& name, int ranks, int repeats) {
  const auto schedule = make_schedule(name, {.ranks = ranks, .micro_batches = 2 * ranks});
  const int copies = name == "DualPipe" ? 2 : 1;
  const double simulated = kMilliseconds * simulate(schedule, {.copies = copies}).makespan;
  const double took = measured(add_transfers(schedule), repeats);
  std::printf("%-16s %5d %11.0f %10.1f %7.3f", name.c_str(), ranks, simulated, took,
              took / simulated);
  std::printf(" %10.3f\n", measured(with_early_receives(name, schedule), repeats) / simulated);
  std::fflush(stdout);
}

int run(int repeats) {
  std::printf("schedule         ranks   simulated   measured   ratio  too early\n");
  for (const int ranks : {2, 4}) {
    for (const auto& name : generator_names()) compare(name, ranks, repeats);
  }
  return 0;
}

}  // namespace
}  // namespace moegrad

int main(int argc, char** argv) {
  return moegrad::run_program("bench_schedule", [&] {
    return moegrad::run(argc > 1 ? moegrad::parse_number<int>("REPEATS", argv[1], {1, 1000}) : 3);
  });
}
