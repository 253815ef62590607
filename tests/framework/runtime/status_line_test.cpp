// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/status_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <initializer_list>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::status_line_test {
namespace {

/// Both ends of a pseudo-terminal.
class PseudoTerminal {
 public:
  PseudoTerminal() : primary_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(grantpt(primary_), 0);
    EXPECT_EQ(unlockpt(primary_), 0);
    secondary_ = open(ptsname(primary_), O_RDWR | O_NOCTTY);
    EXPECT_GE(secondary_, 0);
  }
  ~PseudoTerminal() {
    close(secondary_);
    close(primary_);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void resize(unsigned short columns) const {
    const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(ioctl(primary_, TIOCSWINSZ, &size), 0);
  }
  int descriptor() const { return secondary_; }

 private:
  int primary_;
  int secondary_;
};

/// Sets a variable, or removes it for nullptr, and puts back what was there.
class VariableGuard {
 public:
  VariableGuard(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = getenv(name_.c_str())) before_ = before;
    set(value);
  }
  ~VariableGuard() { set(before_ ? before_->c_str() : nullptr); }
  VariableGuard(const VariableGuard&) = delete;
  VariableGuard& operator=(const VariableGuard&) = delete;

 private:
  void set(const char* value) const {
    if (value == nullptr) {
      unsetenv(name_.c_str());
    } else {
      setenv(name_.c_str(), value, 1);
    }
  }

  std::string name_;
  std::optional<std::string> before_;
};

TEST(CanRedraw, OnATerminalThatKnowsControlSequences) {
  const PseudoTerminal terminal;
  const int file = open("/dev/null", O_WRONLY);
  {
    const VariableGuard term("TERM", "xterm");
    EXPECT_TRUE(can_redraw(terminal.descriptor()));
    EXPECT_FALSE(can_redraw(file));
    EXPECT_FALSE(can_redraw(-1));
  }
  for (const char* name : {"dumb", "", static_cast<const char*>(nullptr)}) {
    const VariableGuard term("TERM", name);
    EXPECT_FALSE(can_redraw(terminal.descriptor()));
  }
  close(file);
}

TEST(TerminalColumns, AreThoseOfThisMoment) {
  const PseudoTerminal terminal;
  const VariableGuard columns("COLUMNS", "33");
  for (const unsigned short width : std::initializer_list<unsigned short>{200, 40, 1, 65535}) {
    terminal.resize(width);
    EXPECT_EQ(terminal_columns(terminal.descriptor()), width);
  }
}

TEST(TerminalColumns, AreThoseOfTheVariableWhereTheTerminalDoesNotTell) {
  const PseudoTerminal terminal;
  terminal.resize(0);
  const auto columns_of = [&](const char* text) {
    const VariableGuard columns("COLUMNS", text);
    EXPECT_EQ(terminal_columns(-1), terminal_columns(terminal.descriptor()));
    return terminal_columns(terminal.descriptor());
  };
  EXPECT_EQ(columns_of("33"), 33U);
  EXPECT_EQ(columns_of("10000"), 10000U);
  for (const char* text : {"", "0", "-3", "33x", "x", " 33", "10001", "99999999999999999999"}) {
    EXPECT_EQ(columns_of(text), 80U) << text;
  }
  EXPECT_EQ(columns_of(nullptr), 80U);
}

StatusLine::Layout text_of(const std::string& text) {
  return [text](std::size_t) { return text; };
}

TEST(StatusLine, IsDrawnOverItselfAndLeavesTheLastColumnFree) {
  std::ostringstream out;
  std::size_t columns = 6;
  {
    StatusLine line(out, [&] { return columns; });
    EXPECT_EQ(out.str(), "");
    std::vector<std::size_t> asked;
    const auto layout = [&](std::size_t room) {
      asked.push_back(room);
      return std::string("123456789");
    };
    line.show(layout);
    columns = 10;
    line.show(layout);
    columns = 1;
    line.show(layout);
    columns = 0;
    line.show(layout);
    EXPECT_EQ(asked, (std::vector<std::size_t>{5, 9, 0, 0}));
    EXPECT_EQ(out.str(), "\r12345\x1b[K\r123456789\x1b[K\r\x1b[K\r\x1b[K");
    out.str("");
  }
  EXPECT_EQ(out.str(), "\n");
}

TEST(StatusLine, LeavesOnceAndOnlyIfShown) {
  std::ostringstream out;
  StatusLine line(out, [] { return 80; });
  line.leave();
  EXPECT_EQ(out.str(), "");
  line.show(text_of("a"));
  line.leave();
  line.leave();
  EXPECT_EQ(out.str(), "\ra\x1b[K\n");
}

TEST(StatusLine, LeavesAnEarlierOne) {
  std::ostringstream out;
  StatusLine first(out, [] { return 80; }), second(out, [] { return 80; });
  first.show(text_of("a"));
  second.show(text_of("b"));
  first.leave();
  EXPECT_EQ(out.str(), "\ra\x1b[K\n\rb\x1b[K");
}

TEST(StatusLine, IsErasedAndDrawnAgainAtThePresentWidthAroundWhatIsPrinted) {
  std::ostringstream out;
  std::size_t columns = 80;
  StatusLine line(out, [&] { return columns; });
  print_above_status_line([&] { out << "before\n"; });
  EXPECT_EQ(out.str(), "before\n");
  line.show(text_of("bar"));
  columns = 3;
  print_above_status_line([&] { out << "while\n"; });
  line.leave();
  print_above_status_line([&] { out << "after\n"; });
  EXPECT_EQ(out.str(), "before\n\rbar\x1b[K\r\x1b[Kwhile\n\rba\x1b[K\nafter\n");
}

/// A terminal's log goes to the same place as its bar.
TEST(StatusLine, LogLinesOfAllThreadsAppearAboveIt) {
  constexpr int kThreads = 4, kLines = 50;
  ::testing::internal::CaptureStderr();
  {
    StatusLine line(std::cerr, [] { return 80; });
    line.show(text_of("bar"));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kThreads; ++rank) {
      threads.emplace_back([&, rank] {
        RankContext context({.rank = rank, .world_size = kThreads});
        const RankContextGuard guard(context);
        for (int i = 0; i < kLines; ++i) {
          if (rank == 0) line.show(text_of("bar"));
          log(LogLevel::kInfo, "0123456789");
        }
      });
    }
  }
  std::istringstream printed(::testing::internal::GetCapturedStderr());
  int lines = 0;
  for (std::string line; std::getline(printed, line);) {
    const auto erased = line.rfind("\r\x1b[K");
    if (erased == std::string::npos) {  // the end of the bar
      EXPECT_EQ(line.substr(line.rfind('\r')), "\rbar\x1b[K");
      EXPECT_TRUE(printed.peek() == EOF);
      continue;
    }
    ++lines;
    const auto text = line.substr(erased + 4);
    EXPECT_TRUE(text.ends_with("] 0123456789")) << text;
    EXPECT_EQ(text.find('\r'), std::string::npos) << text;
    EXPECT_EQ(text.find("bar"), std::string::npos) << text;
    EXPECT_EQ(line.substr(0, erased).find("0123456789"), std::string::npos) << line;
  }
  EXPECT_EQ(lines, kThreads * kLines);
}

TEST(StatusLine, StaysAwayWhereWhatIsPrintedFails) {
  std::ostringstream out;
  StatusLine line(out, [] { return 80; });
  line.show(text_of("a"));
  EXPECT_THROW(print_above_status_line([] { throw std::runtime_error("full"); }),
               std::runtime_error);
  line.show(text_of("b"));
  EXPECT_EQ(out.str(), "\ra\x1b[K\r\x1b[K\rb\x1b[K");
}

}  // namespace
}  // namespace moegrad::status_line_test
