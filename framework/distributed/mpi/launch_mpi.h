// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "framework/distributed/launch_options.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// Runs `body` on ranks that are processes: one on each that mpirun has started. Every process
/// calls it, in the same program with the same command line, and `body` runs on the thread that
/// does, under all guards of that thread. `RankContext::current().group()` is the group of all
/// ranks. What `body` changes, it changes in its own process.
///
/// Returns on every process when all ranks have ended. If a rank throws, its own launch_mpi()
/// rethrows that, and those of the others throw CollectiveError. After a failure a process waits
/// for the others for 1.5 seconds at most. May be called again, also after a launch
/// that has failed, if all processes have come to its end.
///
/// Note [Signals of mpirun]
/// mpirun passes SIGUSR1 on to all processes. On SIGTERM it sends SIGTERM itself and kills them a
/// second later, in Open MPI 5 a quarter. So while a launch is on, a process that gets SIGTERM
/// writes its last operations to standard error (Note [SIGTERM]) before the program's own handler.
///
/// Throws ValueError if the processes are of different builds or command lines or pass different
/// options, or if an option is out of its range; Error in a body of another launch.
void launch_mpi(const std::function<void(RankContext&)>& body, const LaunchOptions& options = {});

/// The same on the first `world_size` processes; the others wait. ValueError unless there are as
/// many.
void launch_mpi(int world_size, const std::function<void(RankContext&)>& body,
                const LaunchOptions& options = {});

/// On processes where mpirun has started this program, else on threads: launch() or launch_mpi() of
/// `world_size` ranks.
void launch_ranks(int world_size, const std::function<void(RankContext&)>& body,
                  const LaunchOptions& options = {});

}  // namespace moegrad
