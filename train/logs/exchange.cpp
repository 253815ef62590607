// SPDX-License-Identifier: Apache-2.0
#include "train/logs/exchange.h"

#include <algorithm>
#include <numeric>

namespace moegrad::training {

ExchangeMeter::ExchangeMeter(const Counters& counters)
    : meter_(counters,
             {&Counters::rows_sent, &Counters::rows_received, &Counters::exchanged_bytes_sent,
              &Counters::exchanged_bytes_received, &Counters::exchange_wait}) {}

ExchangeFigures ExchangeMeter::read(ProcessGroup& group) const {
  const auto step = meter_.read(group, "exchanges");
  return {.rows_sent = step[0],
          .rows_received = step[1],
          .bytes_sent = step[2],
          .bytes_received = step[3],
          .wait_seconds = static_cast<double>(step[4]) * 1e-9};
}

std::vector<double> rank_load(const StepResult& result, int ranks) {
  std::vector<double> load;
  for (const auto& counts : result.tokens_per_expert) {
    const auto each = std::ssize(counts) / ranks;
    std::int64_t most = 0, total = 0;
    for (auto first = counts.begin(); first != counts.end(); first += each) {
      const auto rows = std::accumulate(first, first + each, std::int64_t{0});
      most = std::max(most, rows);
      total += rows;
    }
    load.push_back(total == 0 ? 0.0
                              : static_cast<double>(most) * ranks / static_cast<double>(total));
  }
  return load;
}

}  // namespace moegrad::training
