// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/launch_mpi.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "framework/distributed/backend_work.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/distributed/mpi/mpi_process_group.h"
#include "framework/distributed/mpi/program_identity.h"
#include "framework/runtime/exception_message.h"

namespace moegrad {
namespace {

using mpi::MpiHub;
using mpi::MpiProcess;

void check_options(const MpiOptions& options) {
  check_launch_options("launch_mpi", options);
  constexpr std::size_t kLine = 64, kMost = std::size_t{1} << 30;
  check<ValueError>(
      0 < options.piece_bytes && options.piece_bytes <= kMost && options.piece_bytes % kLine == 0,
      "launch_mpi: piece_bytes must be a multiple of ", kLine, " in (0, ", kMost, "], got ",
      options.piece_bytes);
}

// What a rank has thrown.
struct Thrown {
  std::exception_ptr exception = nullptr;
  std::optional<std::string> what = {};
};

Thrown run_rank(const std::shared_ptr<MpiHub>& hub, RankContext::Options context_options,
                const std::function<void(RankContext&)>& body) {
  Thrown thrown;
  try {
    context_options.group = std::make_shared<mpi::MpiProcessGroup>(hub, hub->world());
    RankContext context(std::move(context_options));
    hub->set_arena(context.arena());
    const RankContextGuard guard(context);
    body(context);
  } catch (...) {
    thrown = {.exception = std::current_exception(), .what = message_of_exception()};
    hub->body_failed(*thrown.what);
  }
  hub->body_ended();
  return thrown;
}

}  // namespace

void launch_mpi(const std::function<void(RankContext&)>& body, const MpiOptions& options) {
  launch_mpi(MpiProcess::instance().size(), body, options);
}

void launch_mpi(int world_size, const std::function<void(RankContext&)>& body,
                const MpiOptions& options) {
  check_options(options);
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
  std::shared_ptr<MpiHub> hub;
  if (has_rank) hub = std::make_shared<MpiHub>(process, process.rank(), world_size, options);
  process.begin(hub, log_level);
  Thrown thrown;
  std::optional<mpi::LastOperations::SignalGuard> signal_guard;
  if (has_rank) {
    signal_guard.emplace(hub->last_operations());
    thrown = run_rank(hub,
                      {.rank = process.rank(),
                       .world_size = world_size,
                       .threads = options.threads_per_rank,
                       .log_level = log_level},
                      body);
    hub->write_last_operations();
  }
  const auto all = process.end(thrown.what);
  if (has_rank) hub->report_failure();
  signal_guard.reset();
  if (thrown.exception != nullptr) std::rethrow_exception(thrown.exception);
  const auto other = std::ranges::find_if(all, [](const auto& what) { return what.has_value(); });
  if (other == all.end()) return;
  throw AbortedError("launch_mpi: rank " + std::to_string(other - all.begin()) +
                     " failed: " + **other);
}

}  // namespace moegrad
