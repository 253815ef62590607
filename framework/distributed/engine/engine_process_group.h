// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "framework/distributed/engine/engine.h"
#include "framework/distributed/process_group.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// The group of an Engine; see Note [The engine of collectives]. Made by launch() and launch_mpi().
///
/// Messages name ranks of the world, also in a subgroup. send and recv are in no queue: only calls
/// of the same direction and tag are ordered. A Work may be waited for on any thread but one that
/// runs a consumer. A consumer that does not return holds up all calls of its rank, so that the
/// other ranks fail at their deadlines; then it must not read the other ranks' inputs any more.
/// Over MPI a group must be made while no call of its parent is pending, and tags are in [0, 2^28).
class EngineProcessGroup final : public ProcessGroup {
 public:
  EngineProcessGroup(std::shared_ptr<Engine> engine, std::shared_ptr<EngineGroup> group);

 protected:
  WorkPtr issue(CollectiveCall call) override;
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override;
  std::shared_ptr<const void> begin_excuse(std::string what) override;

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<EngineGroup> group_;
};

/// Runs the body of the engine's rank. `options`: of its context, but for what the engine knows.
/// Returns what the body has thrown, at which the launch has failed; else null.
std::exception_ptr run_rank(const std::shared_ptr<Engine>& engine, RankContext::Options options,
                            const std::function<void(RankContext&)>& body);

}  // namespace moegrad
