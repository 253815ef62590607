// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "plan/schedule/action.h"

namespace moegrad::plan {

// Note [Letters of schedules]
// PyTorch's files of 2024 write B for the input half of backward and BW for the whole, as the paper
// on zero bubbles does; its later files write I and B. A file may say which in its first line:
//
//     # letters: F I W B
//     # letters: F B W BW
//
// In a file without that line the letters are the older ones if it has BW, or W and no I.

/// Which letters a file uses.
enum class Letters : std::uint8_t {
  kInputI,  // I is the input half of backward, B the whole
  kInputB,  // older: B is the input half, BW the whole
};

/// The first line of a file that names its letters, without the line's end.
std::string_view heading_of(Letters letters);

/// A schedule and how its file writes it.
struct ScheduleFile {
  Schedule schedule;
  Letters letters = Letters::kInputI;
  bool heading = false;           // whether the first line names the letters
  bool carriage_returns = false;  // whether lines end with \r\n, as Python's csv writes them
};

/// The most bytes of a file.
inline constexpr std::int64_t kMostScheduleBytes = std::int64_t{1} << 26;

/// Reads the format of PyTorch's pipeline schedules: one row per rank, cells between commas (Note
/// [Pipeline schedules]). Rows may have different numbers of cells; each has an action. The last
/// line has an end, too: a file without it was cut short.
///
/// Throws ValueError `read_schedule: row <r>, cell <c>: <what is required>, got <what>`. Whether
/// the schedule makes sense is the business of check_schedule().
ScheduleFile read_schedule(std::string_view text);

/// The inverse of read_schedule(): the same bytes.
std::string to_csv(const ScheduleFile& file);

}  // namespace moegrad::plan
