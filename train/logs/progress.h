// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "framework/runtime/status_line.h"

namespace moegrad::training {

/// The progress of a run: on a terminal a bar that is redrawn in place, with the time that is left;
/// otherwise one line every `log_every` steps.
class Progress {
 public:
  using Seconds = std::chrono::duration<double>;

  /// `columns` of the terminal that `out` writes to; none if lines cannot be redrawn.
  Progress(std::ostream& out, const std::optional<StatusLine::Columns>& columns,
           std::int64_t first_step, std::int64_t steps, std::int64_t log_every);

  /// Call it after each step. `took` is the time of the whole step. `figures`, such as
  /// "loss 5.5451", begin with the most important one: if the terminal is too narrow, the bar
  /// leaves out the last ones.
  void step(std::int64_t step, const std::vector<std::string>& figures, Seconds took);
  /// Prints a line, above the bar if there is one.
  void print(const std::string& line);
  /// Ends the bar, so that other code may print.
  void finish();

 private:
  void draw(std::int64_t step, const std::vector<std::string>& figures);

  std::ostream& out_;
  std::optional<StatusLine> bar_;
  std::int64_t first_step_;
  std::int64_t steps_;
  std::int64_t log_every_;
  Seconds spent_{0};
  Seconds since_drawn_{0};
};

/// The contents of a bar after `done` of `steps` steps.
struct BarContent {
  std::int64_t done = 0;
  std::int64_t steps = 1;
  double seconds_left = 0;
  std::vector<std::string> figures = {};  // printable ASCII, so that a byte takes a column
};

/// As much of the content as fits into `columns` columns, in this order of importance: the count,
/// the time that is left, the first figure, the bar, the other figures.
///
///     [==========          ] 25/50 ETA 0:05 | loss 5.5451 | grad norm 1.500
///
/// The count is never left out, however narrow the terminal.
std::string bar_line(const BarContent& content, std::size_t columns);

/// Such as "0:07", "12:30" or "3:05:00".
std::string clock_time(double seconds);

}  // namespace moegrad::training
