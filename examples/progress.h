// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace moegrad::examples {

/// What a run shows while it goes on: on a terminal a bar that is drawn over itself, with the time
/// that is left; otherwise one line every `log_every` steps.
class Progress {
 public:
  using Seconds = std::chrono::duration<double>;

  Progress(std::ostream& out, bool terminal, std::int64_t first_step, std::int64_t steps,
           std::int64_t log_every);

  /// After a step that took so long in all: `line` is what a plain line says of it.
  void step(std::int64_t step, const std::string& line, Seconds took);
  /// Leaves the bar's line, so that others may print.
  void finish();

 private:
  void draw(std::int64_t step, const std::string& line);

  std::ostream& out_;
  bool terminal_;
  std::int64_t first_step_;
  std::int64_t steps_;
  std::int64_t log_every_;
  Seconds spent_{0};
  Seconds since_drawn_{0};
  std::size_t width_ = 0;  // of what stands on the line
};

/// Such as "0:07", "12:30" or "3:05:00".
std::string clock_time(double seconds);

}  // namespace moegrad::examples
