// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <ostream>
#include <string_view>
#include <utility>

#include "framework/runtime/mpi_environment.h"

namespace moegrad {
namespace {

constexpr std::size_t kDefaultColumns = 80;
// A terminal that reports a larger width is not believed.
constexpr std::size_t kMostColumns = 10'000;

constexpr std::string_view kEraseToEnd = "\x1b[K";

// The terminal belongs to the process, and so does the line that it shows.
std::mutex terminal_mutex;
StatusLine* shown = nullptr;  // guarded by terminal_mutex

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing sets variables
  return value == nullptr ? std::string_view() : value;
}

}  // namespace

bool can_redraw(int descriptor) {
  const auto term = variable("TERM");
  // mpirun gives its processes terminals, whatever its own output is.
  if (mpi_environment()) return false;
  return isatty(descriptor) != 0 && !term.empty() && term != "dumb";
}

std::size_t terminal_columns(int descriptor) {
  winsize size = {};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const auto text = variable("COLUMNS");
  std::size_t columns = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool sound = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() &&
                     0 < columns && columns <= kMostColumns;
  return sound ? columns : kDefaultColumns;
}

StatusLine::StatusLine(std::ostream& out, Columns columns)
    : out_(out), columns_(std::move(columns)) {}

StatusLine::~StatusLine() { leave(); }

void StatusLine::show(Layout layout) {
  const std::lock_guard lock(terminal_mutex);
  if (shown != nullptr && shown != this) shown->end();
  layout_ = std::move(layout);
  shown = this;
  draw();
}

void StatusLine::leave() {
  const std::lock_guard lock(terminal_mutex);
  if (shown == this) end();
}

void StatusLine::draw() {
  const auto room = std::max(columns_(), std::size_t{1}) - 1;
  out_ << '\r' << layout_(room).substr(0, room) << kEraseToEnd << std::flush;
}

void StatusLine::erase() { out_ << '\r' << kEraseToEnd << std::flush; }

void StatusLine::end() {
  out_ << '\n' << std::flush;
  shown = nullptr;
}

void print_above_status_line(const std::function<void()>& print) {
  const std::lock_guard lock(terminal_mutex);
  if (shown != nullptr) shown->erase();
  print();
  if (shown != nullptr) shown->draw();
}

}  // namespace moegrad
