// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/process_group.h"
#include "ops/dispatch_rows.h"
#include "ops/routing.h"

namespace moegrad::parallel {

/// How rows get from every rank of a group to every rank, and back: directly, or in two levels.
///
/// Note [Two levels of an exchange]
/// Where the S ranks of a group are on several hosts, H of them with L ranks each, each rank would
/// send (H - 1) L messages to other hosts. In two levels it sends H - 1. Rank l of host h, (h, l):
///
///     within a host    (h, l) gives (h, l') what it has for the ranks (h', l') of all hosts h'
///     between hosts    (h, l') gives (h', l') what it has from all ranks of h for that rank
///
/// As many bytes travel between hosts. Those within a host are more, and what a rank receives there
/// is put in the order of hosts, in which it is sent on. What arrives is sorted by source rank, as
/// it is when it comes directly, so the bits are the same.
///
/// Method: Nie et al., "HetuMoE", 2022, https://arxiv.org/abs/2203.14685 (hierarchical all-to-all)
class RowExchange {
 public:
  /// One exchange. The last one of a route receives the rows for the experts of this rank, by the
  /// rank that they are from, [S][E / S].
  struct Leg {
    std::shared_ptr<ProcessGroup> group;
    ops::RowPlan plan;
  };
  using Route = std::vector<Leg>;

  /// Directly. ValueError for null.
  explicit RowExchange(std::shared_ptr<ProcessGroup> group);
  /// In two levels. `within`: the ranks of this rank's host; `between`: of each host, the rank at
  /// this one's place. ValueError for null, and unless rank (h, l) of `group` is h L + l.
  RowExchange(std::shared_ptr<ProcessGroup> group, std::shared_ptr<ProcessGroup> within,
              std::shared_ptr<ProcessGroup> between);

  const ProcessGroup& group() const { return *group_; }
  bool has_two_levels() const { return within_ != nullptr; }

  /// For tokens whose rows are sorted by expert, of which each rank has the next E / S: tells all
  /// ranks how many there are for each, and waits for what they tell.
  Route plan(const ops::RowPlan& routed) const;

 private:
  std::shared_ptr<ProcessGroup> group_, within_, between_;
};

/// The K rows of each token of x [T, H] -> the rows that come here [M, H], sorted by expert, source
/// rank and slot.
Tensor send_rows(const RowExchange::Route& route, const Tensor& x, const std::string& label);
/// The same for one value of each slot, [T, K] -> [M].
Tensor send_slots(const RowExchange::Route& route, const Tensor& values, const std::string& label);
/// The way back: y [M, H] -> the sums of each token's rows [T, H].
Tensor return_rows(const RowExchange::Route& route, const Tensor& y, const std::string& label);

}  // namespace moegrad::parallel
