// SPDX-License-Identifier: Apache-2.0
#include "examples/progress.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace moegrad::examples {
namespace {

constexpr int kBar = 20;
constexpr double kSecondsBetween = 0.1;

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  std::ostringstream out;
  out << std::setfill('0');
  if (whole >= 3600) out << whole / 3600 << ':' << std::setw(2);
  out << whole / 60 % 60 << ':' << std::setw(2) << whole % 60;
  return out.str();
}

Progress::Progress(std::ostream& out, bool terminal, std::int64_t first_step, std::int64_t steps,
                   std::int64_t log_every)
    : out_(out),
      terminal_(terminal),
      first_step_(first_step),
      steps_(steps),
      log_every_(log_every) {}

void Progress::step(std::int64_t step, const std::string& line, Seconds took) {
  spent_ += took;
  since_drawn_ += took;
  const bool last = step + 1 == steps_;
  if (terminal_) {
    if (last || step == first_step_ || since_drawn_.count() >= kSecondsBetween) draw(step, line);
  } else if (last || step % log_every_ == 0) {
    out_ << line << std::endl;
  }
}

void Progress::draw(std::int64_t step, const std::string& line) {
  since_drawn_ = Seconds(0);
  const auto done = step + 1;
  const auto filled = static_cast<int>(done * kBar / steps_);
  const auto left =
      spent_.count() / static_cast<double>(done - first_step_) * static_cast<double>(steps_ - done);
  std::ostringstream text;
  text << '[' << std::string(static_cast<std::size_t>(filled), '=')
       << std::string(static_cast<std::size_t>(kBar - filled), ' ') << "] " << done << '/' << steps_
       << " ETA " << clock_time(left) << " | " << line;
  const auto drawn = text.str();
  out_ << '\r' << drawn << std::string(width_ > drawn.size() ? width_ - drawn.size() : 0, ' ')
       << std::flush;
  width_ = drawn.size();
}

void Progress::finish() {
  if (terminal_ && width_ > 0) out_ << std::endl;
  width_ = 0;
}

}  // namespace moegrad::examples
