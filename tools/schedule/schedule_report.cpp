// SPDX-License-Identifier: Apache-2.0
#include "tools/schedule/schedule_report.h"

#include <iomanip>
#include <sstream>

#include "plan/schedule/check.h"
#include "tools/report/markup.h"

namespace moegrad::tools {

std::string schedule_report(const std::string& name, const plan::Schedule& schedule,
                            const plan::Simulation& simulation, bool critical_path) {
  const auto size = size_of(schedule);
  std::ostringstream text;
  const auto line = [&](const char* label) -> std::ostream& {
    return text << std::left << std::setw(16) << label << std::right;
  };
  line("schedule") << name << ", " << size.ranks << " ranks, " << size.stages << " stages, "
                   << size.micro_batches << " micro-batches\n";
  line("deadlock") << "none";
  if (has_transfers(schedule)) {
    const int buffers = plan::buffers_needed(schedule);
    text << (buffers == 0
                 ? ", also where each SEND waits for its RECV"
                 : " with as many buffers from rank to rank as " + std::to_string(buffers));
  }
  double busy = 0;
  for (const auto& rank : simulation.ranks) busy += rank.busy;
  const double whole = simulation.makespan * size.ranks;
  text << '\n';
  line("makespan") << short_number(simulation.makespan) << '\n';
  line("bubble") << fixed(whole > 0 ? 100 * (1 - busy / whole) : 0, 1) << " % of all ranks' time\n";
  text << "rank        busy      bubble  activations  peak bytes\n";
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const auto& of = simulation.ranks[rank];
    text << std::setw(4) << rank << ' ' << std::setw(11) << short_number(of.busy) << ' '
         << std::setw(11) << short_number(of.bubble) << std::setw(13) << of.peak_activations << ' '
         << std::setw(11) << of.peak_bytes << '\n';
  }
  if (!critical_path) return text.str();
  line("critical path");
  const auto& path = simulation.critical_path;
  for (std::size_t i = 0; i < path.size(); ++i) {
    plan::Cell cell = {path[i].action};
    const bool is_pair =
        i + 1 < path.size() && path[i + 1].row == path[i].row && path[i + 1].begin == path[i].begin;
    if (is_pair) cell.push_back(path[++i].action);
    text << ' ' << to_string(cell);
  }
  text << '\n';
  return text.str();
}

}  // namespace moegrad::tools
