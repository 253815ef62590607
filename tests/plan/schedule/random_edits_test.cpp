// SPDX-License-Identifier: Apache-2.0

// Random edits of schedules and of their files. Under a sanitizer this is the fuzzer of the reader.

#include <algorithm>
#include <map>

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"
#include "plan/schedule/check.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "plan/schedule/schedule_csv.h"
#include "plan/schedule/simulate.h"
#include "tests/plan/schedule/golden_schedules.h"
#include "tests/testing.h"

namespace moegrad::random_edits_test {
namespace {

using namespace plan;

/// Numbers below a bound, one after the other.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed, "random edits") {}
  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>(random_.uniform(index_++) * static_cast<double>(bound));
  }

 private:
  Random random_;
  std::uint64_t index_ = 0;
};

std::vector<Schedule> valid_schedules() {
  std::vector<Schedule> schedules;
  for (const auto& name : generator_names()) {
    if (name == "DualPipe") continue;  // it needs another rule
    const auto schedule = make_schedule(name, {.ranks = 3, .micro_batches = 6});
    schedules.push_back(schedule);
    schedules.push_back(add_transfers(schedule));
    schedules.push_back(add_transfers_when_sent(schedule));
    schedules.push_back(
        add_transfers(add_reduce_grad(add_unshard(add_recompute(schedule, {1}), 2))));
  }
  return schedules;
}

/// Drops, doubles, exchanges, moves or alters a cell.
void edit(Schedule& schedule, Draws& draws) {
  auto& row = schedule[draws.below(schedule.size())];
  if (row.empty()) return;
  const auto from = static_cast<std::ptrdiff_t>(draws.below(row.size()));
  // Every other time to the next cell, which changes least.
  const auto to = draws.below(2) == 0 ? static_cast<std::ptrdiff_t>(draws.below(row.size()))
                                      : std::min(from + 1, std::ssize(row) - 1);
  const auto cell = row[static_cast<std::size_t>(from)];
  const auto kind = draws.below(6);
  if (kind == 0 || kind == 3 || kind == 4) row.erase(row.begin() + from);
  if (kind == 1 || kind == 3) row.insert(row.begin() + std::min(to, std::ssize(row)), cell);
  if (kind == 2) std::swap(row[static_cast<std::size_t>(from)], row[static_cast<std::size_t>(to)]);
  if (kind == 4) schedule[draws.below(schedule.size())].push_back(cell);
  if (kind == 5 && !cell.empty()) {
    auto& action = row[static_cast<std::size_t>(from)][draws.below(cell.size())];
    const auto change = draws.below(3);
    if (change == 0) action.stage += 1;
    if (change == 1) action.micro_batch += 1;
    if (change == 2) action.kind = static_cast<ActionKind>(draws.below(12));
  }
}

/// Runs the rows by themselves: one rank after the other does what it can, with any number of
/// messages on their way. Whether all cells were done.
bool runs_to_its_end(const Schedule& schedule) {
  std::map<Action, int> done;
  std::map<int, std::size_t> row_of;
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    for (const auto& cell : schedule[row]) {
      for (const auto& action : cell) row_of[action.stage] = row;
    }
  }
  const int stages = size_of(schedule).stages;
  const bool transfers = has_transfers(schedule);
  const auto has = [&](ActionKind kind, int stage, int micro_batch) {
    return done.contains({kind, stage, micro_batch});
  };
  const auto is_ready = [&](const Action& action, std::size_t row) {
    const auto& [kind, s, m] = action;
    const auto backward_of = [&, m = m](int stage) {
      return has(ActionKind::kBackwardInput, stage, m) || has(ActionKind::kFullBackward, stage, m);
    };
    switch (kind) {
      case ActionKind::kForward:
        if (s == 0) return true;
        if (transfers && row_of[s - 1] != row) return has(ActionKind::kRecvForward, s, m);
        return has(ActionKind::kForward, s - 1, m);
      case ActionKind::kBackwardInput:
      case ActionKind::kFullBackward:
        if (!has(ActionKind::kForward, s, m)) return false;
        if (s + 1 == stages) return true;
        if (transfers && row_of[s + 1] != row) return has(ActionKind::kRecvBackward, s, m);
        return backward_of(s + 1);
      case ActionKind::kBackwardWeight:
        return has(ActionKind::kBackwardInput, s, m);
      case ActionKind::kSendForward:
        return has(ActionKind::kForward, s, m);
      case ActionKind::kRecvForward:
        return has(ActionKind::kSendForward, s - 1, m);
      case ActionKind::kSendBackward:
        return backward_of(s);
      case ActionKind::kRecvBackward:
        return has(ActionKind::kSendBackward, s + 1, m);
      default:
        return true;
    }
  };
  std::vector<std::size_t> next(schedule.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t row = 0; row < schedule.size(); ++row) {
      while (next[row] < schedule[row].size()) {
        const auto& cell = schedule[row][next[row]];
        if (!std::ranges::all_of(cell, [&](const Action& a) { return is_ready(a, row); })) break;
        for (const auto& action : cell) ++done[action];
        ++next[row];
        progress = true;
      }
    }
  }
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    if (next[row] < schedule[row].size()) return false;
  }
  const auto size = size_of(schedule);
  for (int s = 0; s < size.stages; ++s) {
    for (int m = 0; m < size.micro_batches; ++m) {
      const auto count = [&](ActionKind kind) { return done[{kind, s, m}]; };
      if (count(ActionKind::kForward) != 1) return false;
      if (count(ActionKind::kFullBackward) + count(ActionKind::kBackwardInput) != 1) return false;
      if (count(ActionKind::kBackwardInput) != count(ActionKind::kBackwardWeight)) return false;
    }
  }
  return true;
}

TEST(RandomEdits, OfSchedulesAreRefusedOrRunToTheirEnd) {
  const auto schedules = valid_schedules();
  Draws draws(1);
  int refused = 0, accepted = 0;
  for (int i = 0; i < 1000; ++i) {
    auto schedule = schedules[static_cast<std::size_t>(i) % schedules.size()];
    const auto edits = 1 + draws.below(3);
    for (std::size_t j = 0; j < edits; ++j) edit(schedule, draws);
    try {
      const auto simulation = simulate(schedule);
      ++accepted;
      EXPECT_TRUE(runs_to_its_end(schedule)) << to_csv({.schedule = schedule});
      EXPECT_LE(simulation.makespan, 1000);
    } catch (const ValueError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).substr(0, 16), "check_schedule: ") << error.what();
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 40);
}

TEST(RandomEdits, ThatOnlyDeadlockAreRefusedByTheGraphAlone) {
  // Rows exchanged within themselves have every action; what is refused then cannot run.
  const auto schedule = one_f_one_b(3, 5);
  Draws draws(2);
  int deadlocks = 0;
  for (int i = 0; i < 300; ++i) {
    auto edited = schedule;
    for (int j = 0; j < 2; ++j) {
      auto& row = edited[draws.below(3)];
      std::swap(row[draws.below(row.size())], row[draws.below(row.size())]);
    }
    std::string message;
    try {
      check_schedule(edited);
    } catch (const ValueError& error) {
      message = error.what();
    }
    EXPECT_EQ(message.empty(), runs_to_its_end(edited)) << message;
    deadlocks += message.find("deadlock") != std::string::npos;
  }
  EXPECT_GT(deadlocks, 20);
}

TEST(RandomEdits, OfFilesAreRefusedOrComeBackByteForByte) {
  std::vector<std::string> texts;
  for (const auto* name : test::kGoldenSchedules) texts.push_back(test::golden_schedule(name));
  for (const auto& schedule : valid_schedules()) texts.push_back(to_csv({.schedule = schedule}));
  texts.push_back("# letters: F B W BW\n" + texts[1]);
  const std::string letters = "0123456789FIWBRSENDCVUHAGT_,;()\n\r# -\xff" + std::string(1, '\0');
  Draws draws(3);
  const int edits = test::full_suite() ? 200000 : 5000;
  int read = 0;
  for (int i = 0; i < edits; ++i) {
    auto text = texts[draws.below(texts.size())];
    const auto many = 1 + draws.below(4);
    for (std::size_t j = 0; j < many && !text.empty(); ++j) {
      const auto at = draws.below(text.size());
      switch (draws.below(4)) {
        case 0:
          text[at] = letters[draws.below(letters.size())];
          break;
        case 1:
          text.insert(at, 1, letters[draws.below(letters.size())]);
          break;
        case 2:
          text.erase(at, 1 + draws.below(5));
          break;
        default:
          text.resize(at);
          break;
      }
    }
    try {
      const auto file = read_schedule(text);
      ++read;
      EXPECT_EQ(to_csv(file), text);
      try {
        simulate(file.schedule);
      } catch (const ValueError&) {
      }
    } catch (const ValueError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 15), "read_schedule: ") << error.what();
    }
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace moegrad::random_edits_test
