// SPDX-License-Identifier: Apache-2.0
#include "train/logs/progress.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace moegrad::training {
namespace {

constexpr std::size_t kShortestBar = 8;
constexpr std::size_t kLongestBar = 20;
constexpr double kSecondsBetween = 0.1;

double share_done(const BarContent& content) {
  return static_cast<double>(content.done) / static_cast<double>(content.steps);
}

std::string draw_bar(double share, std::size_t length) {
  const auto filled = std::min(
      static_cast<std::size_t>(std::floor(share * static_cast<double>(length) + 1e-9)), length);
  return '[' + std::string(filled, '=') + std::string(length - filled, ' ') + "] ";
}

// The `parts` most important parts, in the order in which they are shown.
std::string compose(const BarContent& content, std::size_t columns, std::size_t parts) {
  constexpr std::size_t kTime = 2, kFirstFigure = 3, kBar = 4;
  std::string line;
  if (parts >= kBar) {
    line += draw_bar(share_done(content), std::clamp(columns / 5, kShortestBar, kLongestBar));
  }
  line += std::to_string(content.done) + '/' + std::to_string(content.steps);
  if (parts >= kTime) line += " ETA " + clock_time(content.seconds_left);
  for (std::size_t i = 0; i < content.figures.size(); ++i) {
    if (parts >= (i == 0 ? kFirstFigure : kBar + i)) line += " | " + content.figures[i];
  }
  return line;
}

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  std::ostringstream out;
  out << std::setfill('0');
  if (whole >= 3600) out << whole / 3600 << ':' << std::setw(2);
  out << whole / 60 % 60 << ':' << std::setw(2) << whole % 60;
  return out.str();
}

std::string bar_line(const BarContent& content, std::size_t columns) {
  auto parts = 4 + content.figures.size();
  auto line = compose(content, columns, parts);
  while (line.size() > columns && parts > 1) line = compose(content, columns, --parts);
  return line;
}

Progress::Progress(std::ostream& out, const std::optional<StatusLine::Columns>& columns,
                   std::int64_t first_step, std::int64_t steps, std::int64_t log_every)
    : out_(out), first_step_(first_step), steps_(steps), log_every_(log_every) {
  if (columns) bar_.emplace(out, *columns);
}

void Progress::step(std::int64_t step, const std::vector<std::string>& figures, Seconds took) {
  spent_ += took;
  since_drawn_ += took;
  const bool last = step + 1 == steps_;
  if (bar_) {
    if (last || step == first_step_ || since_drawn_.count() >= kSecondsBetween) draw(step, figures);
  } else if (last || step % log_every_ == 0) {
    std::ostringstream line;
    line << "step " << std::setw(5) << step;
    for (const auto& figure : figures) line << " | " << figure;
    print(line.str());
  }
}

void Progress::draw(std::int64_t step, const std::vector<std::string>& figures) {
  since_drawn_ = Seconds(0);
  const auto done = step + 1;
  const auto left =
      spent_.count() / static_cast<double>(done - first_step_) * static_cast<double>(steps_ - done);
  const BarContent content = {
      .done = done, .steps = steps_, .seconds_left = left, .figures = figures};
  bar_->show([content](std::size_t columns) { return bar_line(content, columns); });
}

void Progress::print(const std::string& line) {
  print_above_status_line([&] { out_ << line << std::endl; });
}

void Progress::finish() {
  if (bar_) bar_->leave();
}

}  // namespace moegrad::training
