// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/launch_mpi.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "framework/distributed/engine/engine_process_group.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/distributed/mpi/program_identity.h"
#include "framework/runtime/exception_message.h"

namespace moegrad {
namespace {

using mpi::MpiLaunch;
using mpi::MpiProcess;

}  // namespace

void launch_mpi(const std::function<void(RankContext&)>& body, const LaunchOptions& options) {
  launch_mpi(MpiProcess::instance().size(), body, options);
}

void launch_mpi(int world_size, const std::function<void(RankContext&)>& body,
                const LaunchOptions& options) {
  check_launch_options("launch_mpi", options);
  const auto* const caller = RankContext::find();
  check(caller == nullptr || caller->group() == nullptr,
        "launch_mpi: must not be called by a rank of another launch");
  const auto log_level = caller == nullptr ? RankContext::Options().log_level : caller->log_level();
  auto& process = MpiProcess::instance();
  check<ValueError>(1 <= world_size && world_size <= process.size(),
                    "launch_mpi: world_size must be in [1, ", process.size(),
                    "], the processes that mpirun has started, got ", world_size);
  const auto claim = process.claim_launch();
  const auto identities =
      process.meet(mpi::program_identity(world_size, options), options.deadline);
  mpi::check_same_program(identities);

  const bool has_rank = process.rank() < world_size;
  std::shared_ptr<MpiLaunch> launch;
  if (has_rank) {
    launch =
        std::make_shared<MpiLaunch>(process, process.rank(), world_size, options, process.hosts());
  }
  process.begin(launch, log_level);
  std::exception_ptr thrown;
  std::optional<LastOperations::SignalGuard> signal_guard;
  if (has_rank) {
    signal_guard.emplace(launch->engine->last_operations());
    thrown = run_rank(launch->engine, {.log_level = log_level}, body);
  }
  std::optional<std::string> what;
  if (thrown != nullptr) what = message_of_exception(thrown);
  const auto all = process.end(what);
  if (has_rank) launch->state->report_failure();
  signal_guard.reset();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  const auto other = std::ranges::find_if(all, [](const auto& each) { return each.has_value(); });
  if (other == all.end()) return;
  throw AbortedError("launch_mpi: rank " + std::to_string(other - all.begin()) +
                     " failed: " + **other);
}

}  // namespace moegrad
