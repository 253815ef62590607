// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "train/logs/log_event.h"

namespace moegrad::training {

inline std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// Made by hand from the format's description. The method was checked against files that other
// programs write.
inline constexpr std::string_view kVersionRecord =
    "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c";
inline constexpr std::string_view kLossRecord =  // 2.5 at step 300, wall time 2.5
    "1b000000000000001a0d9e1309000000000000044010ac022a0d0a0b0a046c6f73731500002040f1ab9ab8";
inline constexpr std::string_view kNegativeStepRecord =  // -0.1 at step -2, wall time 3
    "2300000000000000b09f774309000000000000084010feffffffffffffffff012a0d0a0b0a046c6f737315cdccccbd"
    "395ace32";
inline constexpr std::string_view kLoadRecord =  // 0, 3, 0, 1 and 0 tokens at step 7, wall time 4
    "9b000000000000001935560009000000000000104010072a8d010a8a010a046c6f61642a810109000000000000e03f"
    "110000000000000c401900000000000010402100000000000018402900000000000028403228000000000000e03f00"
    "0000000000f83f00000000000004400000000000000c4000000000000012403a280000000000000000000000000000"
    "08400000000000000000000000000000f03f00000000000000003ef6103a";

inline constexpr std::string_view kStartRecord =  // of a session at step 128, wall time 5
    "100000000000000095fbfe180900000000000014401080013a020801b3b92f91";

inline constexpr std::array kRecords = {kVersionRecord, kLossRecord, kNegativeStepRecord,
                                        kLoadRecord, kStartRecord};

/// The records, and what they say.
inline std::string event_file_bytes() {
  std::string bytes;
  for (const auto record : kRecords) {
    bytes += from_hex(record);
  }
  return bytes;
}

inline std::vector<LogEvent> events_of_the_file() {
  return {{.wall_time = 2.5, .step = 300, .scalars = {{"loss", 2.5F}}},
          {.wall_time = 3, .step = -2, .scalars = {{"loss", -0.1F}}},
          {.wall_time = 4,
           .step = 7,
           .histograms = {{.tag = "load",
                           .min = 0.5,
                           .max = 3.5,
                           .num = 4,
                           .sum = 6,
                           .sum_squares = 12,
                           .limits = {0.5, 1.5, 2.5, 3.5, 4.5},
                           .counts = {0, 3, 0, 1, 0}}}},
          {.wall_time = 5, .step = 128, .session_start = true}};
}

}  // namespace moegrad::training
