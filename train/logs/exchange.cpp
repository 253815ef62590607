// SPDX-License-Identifier: Apache-2.0
#include "train/logs/exchange.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "framework/distributed/collectives.h"

namespace moegrad::training {

ExchangeMeter::ExchangeMeter(const Counters& counters) : counters_(counters), before_(counts()) {}

std::vector<std::int64_t> ExchangeMeter::counts() const {
  return {counters_.rows_sent, counters_.rows_received, counters_.exchanged_bytes_sent,
          counters_.exchanged_bytes_received, counters_.exchange_wait};
}

ExchangeFigures ExchangeMeter::read(ProcessGroup& group) const {
  auto step = counts();
  std::ranges::transform(step, before_, step.begin(), std::minus());
  all_reduce(group, std::span(step), ReduceOp::kMax, {.label = "exchanges"});
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
