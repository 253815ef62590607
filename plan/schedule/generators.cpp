// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/generators.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <deque>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad::plan {
namespace {

using enum ActionKind;

void require_ranks(const char* name, int ranks, int micro_batches, std::int64_t least) {
  check<ValueError>(ranks >= 1, name, ": needs at least 1 rank, got ", ranks);
  check<ValueError>(ranks <= kMostStages / 2 && micro_batches <= kMostMicroBatches, name,
                    ": ranks must be at most ", kMostStages / 2, " and micro-batches ",
                    kMostMicroBatches, ", got ", ranks, " and ", micro_batches);
  check<ValueError>(micro_batches >= least, name, ": ", ranks, " ranks need at least ", least,
                    " micro-batches, got ", micro_batches);
}

template <class MakeRow>
Schedule rows_of(int ranks, const MakeRow& make_row) {
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) schedule.push_back(make_row(rank));
  return schedule;
}

/// `warm_up` forwards, then a forward and a backward in turn, then the remaining backwards.
/// forward(i) and backward(i) add the i-th of `count` to the row.
template <class Forward, class Backward>
void one_forward_one_backward(int count, int warm_up, const Forward& forward,
                              const Backward& backward) {
  for (int i = 0; i < warm_up; ++i) forward(i);
  for (int i = warm_up; i < count; ++i) {
    forward(i);
    backward(i - warm_up);
  }
  for (int i = count - warm_up; i < count; ++i) backward(i);
}

/// A rank's stage in DualPipe, and how far it is.
struct DualStage {
  int stage = 0;
  int next_forward = 0;
  int next_backward = 0;
};

/// A row of DualPipe or DualPipeV as it grows.
class DualRow {
 public:
  DualRow(DualStage first, DualStage second) : stages_{first, second} {}

  void forward(int which) { row_.push_back({next_forward(which)}); }
  void backward(int which) { row_.push_back({next_backward(which, kFullBackward)}); }
  void pair(int forward, int backward) {
    const auto first = next_forward(forward);
    row_.push_back({first, next_backward(backward, kFullBackward)});
  }
  /// The input half; the weight half is put off.
  void backward_input(int which) {
    row_.push_back({next_backward(which, kBackwardInput)});
    put_off_.push_back(row_.back()[0]);
    put_off_.back().kind = kBackwardWeight;
  }
  /// The oldest weight half that was put off.
  void weight() {
    row_.push_back({put_off_.front()});
    put_off_.pop_front();
  }
  Row row() && { return std::move(row_); }

 private:
  Action next_forward(int which) {
    auto& of = stages_[static_cast<std::size_t>(which)];
    return {.kind = kForward, .stage = of.stage, .micro_batch = of.next_forward++};
  }
  Action next_backward(int which, ActionKind kind) {
    auto& of = stages_[static_cast<std::size_t>(which)];
    return {.kind = kind, .stage = of.stage, .micro_batch = of.next_backward++};
  }

  std::array<DualStage, 2> stages_;
  std::deque<Action> put_off_;
  Row row_;
};

/// The eight steps of DualPipe for rank r of `ranks`, which run `micro_batches` through each of
/// both stages.
Row dual_row(int r, int ranks, int micro_batches, DualStage first, DualStage second) {
  DualRow row(first, second);
  const int after = ranks - r - 1;  // ranks that are nearer to the turn
  for (int i = 0; i < 2 * after; ++i) row.forward(0);
  for (int i = 0; i < r + 1; ++i) {
    row.forward(0);
    row.forward(1);
  }
  for (int i = 0; i < after; ++i) {
    row.backward_input(1);
    row.weight();
    row.forward(1);
  }
  for (int i = 0; i < micro_batches - 2 * ranks + r + 1; ++i) {
    if (i == 0 && after == 0) {
      // Not as a pair, so that the rank before need not wait for the forward.
      row.forward(0);
      row.backward(1);
    } else {
      row.pair(0, 1);
    }
    row.pair(1, 0);
  }
  for (int i = 0; i < after; ++i) {
    row.backward(1);
    row.pair(1, 0);
  }
  // From the middle of this step on weight halves are put off.
  for (int i = 0; i < 2 * (r + 1); ++i) {
    const int which = i % 2 == 0 ? 1 : 0;
    if (i > r) {
      row.backward_input(which);
    } else {
      row.backward(which);
    }
  }
  for (int i = 0; i < after; ++i) {
    row.weight();
    row.backward_input(0);
  }
  for (int i = 0; i < r + 1; ++i) row.weight();
  return std::move(row).row();
}

}  // namespace

Schedule gpipe(int ranks, int micro_batches) {
  require_ranks("GPipe", ranks, micro_batches, 1);
  return rows_of(ranks, [&](int rank) {
    Row row;
    for (int i = 0; i < micro_batches; ++i) row.push_back({{kForward, rank, i}});
    for (int i = 0; i < micro_batches; ++i) row.push_back({{kFullBackward, rank, i}});
    return row;
  });
}

Schedule one_f_one_b(int ranks, int micro_batches) {
  require_ranks("1F1B", ranks, micro_batches, 1);
  return rows_of(ranks, [&](int rank) {
    Row row;
    one_forward_one_backward(
        micro_batches, std::min(ranks - rank - 1, micro_batches),
        [&](int i) {
          row.push_back({{kForward, rank, i}});
        },
        [&](int i) {
          row.push_back({{kFullBackward, rank, i}});
        });
    return row;
  });
}

Schedule interleaved_1f1b(int ranks, int micro_batches, int stages_per_rank, int group) {
  constexpr auto kName = "Interleaved1F1B";
  require_ranks(kName, ranks, micro_batches, ranks);
  check<ValueError>(1 <= stages_per_rank && stages_per_rank <= kMostStages / ranks, kName,
                    ": stages per rank must be from 1 to ", kMostStages / ranks, ", got ",
                    stages_per_rank);
  check<ValueError>(ranks <= group && group <= micro_batches, kName,
                    ": a group must be of as many micro-batches as ranks at least, and of all at "
                    "most, so from ",
                    ranks, " to ", micro_batches, ", got ", group);
  const int rest = micro_batches % group;
  check<ValueError>(rest == 0 || rest >= ranks, kName, ": groups of ", group, " must divide ",
                    micro_batches, " micro-batches or leave as many as ranks, ", ranks,
                    ", at least, got ", rest, " in the last");
  struct Chunk {
    int number = 0;
    int micro_batch = 0;
  };
  std::vector<Chunk> forwards;  // the same on each rank
  for (int first = 0; first < micro_batches; first += group) {
    for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
      for (int i = first; i < std::min(first + group, micro_batches); ++i) {
        forwards.push_back({chunk, i});
      }
    }
  }
  const auto count = static_cast<int>(forwards.size());
  return rows_of(ranks, [&](int rank) {
    Row row;
    const auto add = [&](ActionKind kind, int chunk, int micro_batch) {
      row.push_back({{kind, chunk * ranks + rank, micro_batch}});
    };
    const auto warm_up = 2 * (ranks - rank - 1) + (stages_per_rank - 1) * std::int64_t{group};
    one_forward_one_backward(
        count, static_cast<int>(std::min<std::int64_t>(warm_up, count)),
        [&](int i) {
          const auto& [chunk, micro_batch] = forwards[static_cast<std::size_t>(i)];
          add(kForward, chunk, micro_batch);
        },
        [&](int i) {
          const auto& [chunk, micro_batch] = forwards[static_cast<std::size_t>(i)];
          add(kFullBackward, stages_per_rank - 1 - chunk, micro_batch);
        });
    return row;
  });
}

Schedule interleaved_1f1b(int ranks, int micro_batches, int stages_per_rank) {
  return interleaved_1f1b(ranks, micro_batches, stages_per_rank, ranks);
}

Schedule zb_h1(int ranks, int micro_batches) {
  require_ranks("ZB-H1", ranks, micro_batches, ranks);
  return rows_of(ranks, [&](int rank) {
    Row row;
    int weights = 0;  // how many weight halves are done
    const auto weight = [&] { row.push_back({{kBackwardWeight, rank, weights++}}); };
    one_forward_one_backward(
        micro_batches, std::min(ranks - rank - 1, micro_batches),
        [&](int i) {
          row.push_back({{kForward, rank, i}});
        },
        [&](int i) {
          row.push_back({{kBackwardInput, rank, i}});
          if (i + 1 - weights > rank) weight();
        });
    while (weights < micro_batches) weight();
    return row;
  });
}

Schedule zbv(int ranks, int micro_batches) {
  require_ranks("ZBVZeroBubble", ranks, micro_batches, 1);
  // Made for as many micro-batches as fill the pipeline, then cut.
  const int count = std::max(2 * ranks - 1, micro_batches);
  return rows_of(ranks, [&](int rank) {
    const std::array<int, 2> stages = {rank, 2 * ranks - 1 - rank};
    std::array<int, 2> forwards = {}, inputs = {}, weights = {};
    Row row;
    const auto add = [&](ActionKind kind, std::array<int, 2>& done, std::size_t chunk) {
      const int i = done[chunk]++;
      if (i < micro_batches) row.push_back({{kind, stages[chunk], i}});
    };
    const auto forward = [&](std::size_t chunk) { add(kForward, forwards, chunk); };
    const auto input = [&](std::size_t chunk) { add(kBackwardInput, inputs, chunk); };
    const auto weight = [&](std::size_t chunk) { add(kBackwardWeight, weights, chunk); };
    const auto backward = [&](std::size_t chunk) {
      input(chunk);
      weight(chunk);
    };
    for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) forward(0);
    for (int i = 0; i < rank; ++i) {
      forward(1);
      forward(0);
    }
    for (int i = 0; i < ranks - rank; ++i) {
      forward(1);
      backward(1);
    }
    while (forwards[1] < count) {
      if (forwards[0] < count) forward(0);
      backward(0);
      forward(1);
      backward(1);
    }
    for (int i = 0; i < rank; ++i) {
      input(0);
      input(1);
    }
    for (int i = 0; i < ranks - rank; ++i) backward(0);
    while (weights[1] < count) weight(1);
    while (weights[0] < count) weight(0);
    return row;
  });
}

Schedule dual_pipe_v(int ranks, int micro_batches) {
  require_ranks("DualPipeV", ranks, micro_batches, std::int64_t{2} * ranks);
  return rows_of(ranks, [&](int rank) {
    return dual_row(rank, ranks, micro_batches, {.stage = rank}, {.stage = 2 * ranks - 1 - rank});
  });
}

Schedule dual_pipe(int ranks, int micro_batches) {
  require_ranks("DualPipe", ranks, micro_batches, std::int64_t{2} * ranks);
  check<ValueError>(ranks % 2 == 0, "DualPipe: needs an even number of ranks, got ", ranks);
  check<ValueError>(micro_batches % 2 == 0, "DualPipe: needs an even number of micro-batches, got ",
                    micro_batches);
  const int half = micro_batches / 2;
  return rows_of(ranks, [&](int rank) {
    const bool upper = rank >= ranks / 2;
    const int r = std::min(rank, ranks - 1 - rank);
    // The direction that begins at this rank's end of the pipeline comes first.
    const int first = upper ? half : 0, second = upper ? 0 : half;
    return dual_row(r, ranks / 2, half, {.stage = r, .next_forward = first, .next_backward = first},
                    {.stage = ranks - 1 - r, .next_forward = second, .next_backward = second});
  });
}

std::vector<std::string> generator_names() {
  return {"GPipe", "1F1B", "Interleaved1F1B", "ZB-H1", "ZBVZeroBubble", "DualPipeV", "DualPipe"};
}

Schedule make_schedule(std::string_view name, const GeneratorOptions& options) {
  const auto is = [&](std::string_view other) {
    return std::ranges::equal(name, other, [](unsigned char a, unsigned char b) {
      return std::tolower(a) == std::tolower(b);
    });
  };
  const auto& [ranks, micro_batches, stages_per_rank, group] = options;
  if (is("Interleaved1F1B")) {
    return interleaved_1f1b(ranks, micro_batches, stages_per_rank == 0 ? 2 : stages_per_rank,
                            group == 0 ? ranks : group);
  }
  const auto plain = [&](Schedule (&make)(int, int)) {
    check<ValueError>(stages_per_rank == 0 && group == 0, name,
                      ": stages_per_rank and group are for Interleaved1F1B alone, got ",
                      stages_per_rank, " and ", group);
    return make(ranks, micro_batches);
  };
  if (is("GPipe")) return plain(gpipe);
  if (is("1F1B")) return plain(one_f_one_b);
  if (is("ZB-H1")) return plain(zb_h1);
  if (is("ZBVZeroBubble")) return plain(zbv);
  if (is("DualPipeV")) return plain(dual_pipe_v);
  if (is("DualPipe")) return plain(dual_pipe);
  std::string names;
  for (const auto& one : generator_names()) names += (names.empty() ? "" : ", ") + one;
  throw ValueError("make_schedule: the name must be one of " + names + ", got '" +
                   std::string(name) + "'");
}

}  // namespace moegrad::plan
