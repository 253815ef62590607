// SPDX-License-Identifier: Apache-2.0
// Ranks that reduce in steps, of which one does something wrong in its fourth:
//
//     mpirun -n 4 faulty_rank KIND RANK FOLDER [DEADLINE-MS]
//
// The faulty rank writes the time of its fault to FOLDER/fault, in seconds since the epoch.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/program.h"

namespace moegrad {
namespace {

constexpr std::size_t kCount = 100'000;
constexpr std::size_t kLongCount = 8'000'000;  // so long that a signal comes meanwhile
// On which three quarters of kLongCount take 10 s. mpirun ends the other ranks one second after one
// has been killed, and a busy machine makes that longer.
constexpr LinkModel kSlowLink = {.bytes_per_second = 2.4e6};

void reduce(ProcessGroup& group, std::int64_t step, std::size_t count) {
  std::vector<float> values(count, 1.0F);
  all_reduce(group, std::span(values), ReduceOp::kSum, {.label = "layers.1", .round = step});
}

// As tokens travel to experts. The faulty rank ends while they are under way: the slow link lets no
// other rank end the exchange before.
void exchange(ProcessGroup& group, std::int64_t step, bool is_faulty) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> each(ranks, static_cast<std::int64_t>(kLongCount / ranks));
  std::vector<float> rows(ranks * (kLongCount / ranks), 1.0F), results(rows.size());
  const auto work = group.all_to_all(std::as_bytes(std::span(rows)), each,
                                     std::as_writable_bytes(std::span(results)), each,
                                     Dtype::kFloat32, {.label = "layers.1", .round = step});
  if (is_faulty) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    raise(SIGKILL);
  }
  work->wait();
}

void note_fault(const std::string& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::ofstream(folder + "/fault")
      << std::fixed << std::setprecision(3) << std::chrono::duration<double>(now).count();
}

/// True where the rank goes on with its step.
bool do_wrong(const std::string& kind, ProcessGroup& group, std::int64_t step) {
  if (kind == "throws") throw ValueError("boom");
  if (kind == "exits") std::exit(0);  // NOLINT(concurrency-mt-unsafe)
  if (kind == "exits at once") _exit(0);
  if (kind == "is killed") raise(SIGKILL);
  if (kind == "is stopped") raise(SIGSTOP);
  if (kind == "stalls") std::this_thread::sleep_for(std::chrono::hours(1));
  if (kind == "skips a collective") return false;
  if (kind == "is stopped in a long sum") {
    std::vector<float> values(kLongCount);
    const auto sum = group.all_reduce(std::as_writable_bytes(std::span(values)), Dtype::kFloat32,
                                      ReduceOp::kSum, {.label = "layers.1", .round = step});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    raise(SIGSTOP);
  }
  if (kind == "calls another") {
    group.barrier()->wait();
  } else if (kind == "reduces less") {
    reduce(group, step, 99);
  }
  return true;
}

int run(int argc, char** argv) {
  check<UsageError>(argc == 4 || argc == 5, "usage: faulty_rank KIND RANK FOLDER [DEADLINE-MS]");
  const std::string kind = argv[1], folder = argv[3];
  const int faulty = parse_number<int>("RANK", argv[2], {-1, 1000});
  LaunchOptions options;
  options.deadline = std::chrono::milliseconds(
      argc == 5 ? parse_number<int>("DEADLINE-MS", argv[4], {1, 1'000'000}) : 2'000);
  options.exit_after = kProgramExitsAfter;
  options.last_operations_folder = folder;
  if (kind == "is killed in an exchange") options.link = kSlowLink;
  launch_mpi([](RankContext&) {});  // MPI itself waits without a deadline when it starts
  if (kind == "comes late" && mpi_environment()->rank == faulty) {
    note_fault(folder);
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  launch_mpi(
      [&](RankContext& context) {
        for (std::int64_t step = 0; step < 100; ++step) {
          if (step == 3 && context.rank() == faulty) {
            note_fault(folder);
            if (!do_wrong(kind, *context.group(), step)) continue;
          }
          // The others wait for it whenever a signal comes.
          if (kind == "runs slowly" && context.rank() == faulty) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          }
          if (step == 3 && kind == "is killed in an exchange") {
            exchange(*context.group(), step, context.rank() == faulty);
            continue;
          }
          const bool is_long = step == 3 && kind == "is stopped in a long sum";
          reduce(*context.group(), step, is_long ? kLongCount : kCount);
        }
      },
      options);
  std::cout << "all steps done" << std::endl;
  return 0;
}

}  // namespace
}  // namespace moegrad

int main(int argc, char** argv) {
  return moegrad::run_program("faulty_rank", [&] { return moegrad::run(argc, argv); });
}
