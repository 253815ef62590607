// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

namespace moegrad {

/// Whether lines on `descriptor` can be redrawn: it is a terminal, and the variable TERM names one
/// that knows control sequences (TERM is neither empty nor "dumb").
bool can_redraw(int descriptor);

/// How many columns the terminal on `descriptor` has at this moment. If the terminal does not tell,
/// the variable COLUMNS; without that, 80.
std::size_t terminal_columns(int descriptor);

/// A line at the bottom of a terminal that is redrawn in place, such as a progress bar.
///
/// The process has one terminal, so it shows at most one such line, whichever thread shows it.
/// Showing another StatusLine ends the first. What any thread prints with
/// print_above_status_line(), as log() does, appears above the line.
class StatusLine {
 public:
  using Columns = std::function<std::size_t()>;
  /// The text of the line, at most `columns` bytes of printable ASCII.
  using Layout = std::function<std::string(std::size_t columns)>;

  /// `columns` is called before each drawing, so that the line fits after a resize.
  StatusLine(std::ostream& out, Columns columns);
  /// Calls leave().
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Draws the line. The last column stays free, because terminals wrap once it is written.
  void show(Layout layout);
  /// If the line is shown, leaves it on the screen: later output is printed below it.
  void leave();

 private:
  friend void print_above_status_line(const std::function<void()>& print);

  void draw();
  void erase();
  void end();

  std::ostream& out_;
  Columns columns_;
  Layout layout_;
};

/// Erases the status line, runs `print`, which writes whole lines to the terminal, and draws the
/// status line again below them. Calls from several threads run one after the other.
void print_above_status_line(const std::function<void()>& print);

}  // namespace moegrad
