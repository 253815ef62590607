// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/action.h"

#include <algorithm>
#include <array>

namespace moegrad::plan {
namespace {

using enum ActionKind;

// In the order of the enumerators.
constexpr std::array<std::string_view, 12> kLetters = {
    "F",      "I",      "W",      "B",       "R",       "SEND_F",
    "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD",
};

}  // namespace

std::string_view letters_of(ActionKind kind) { return kLetters[static_cast<std::size_t>(kind)]; }

bool has_micro_batch(ActionKind kind) { return kind < kUnshard; }
bool is_compute(ActionKind kind) { return kind <= kRecompute; }
bool is_input_backward(ActionKind kind) { return kind == kBackwardInput || kind == kFullBackward; }
bool is_weight_backward(ActionKind kind) {
  return kind == kBackwardWeight || kind == kFullBackward;
}
bool is_transfer(ActionKind kind) { return kSendForward <= kind && kind <= kRecvBackward; }
bool is_send(ActionKind kind) { return kind == kSendForward || kind == kSendBackward; }

std::string to_string(const Action& action) {
  auto text = std::to_string(action.stage).append(letters_of(action.kind));
  if (has_micro_batch(action.kind)) text += std::to_string(action.micro_batch);
  return text;
}

std::string to_string(const Cell& cell) {
  if (cell.empty()) return {};
  if (cell.size() == 1) return to_string(cell[0]);
  return "(" + to_string(cell[0]) + ";" + to_string(cell[1]) + ")OVERLAP_F_B";
}

ScheduleSize size_of(const Schedule& schedule) {
  ScheduleSize size = {.ranks = static_cast<int>(schedule.size())};
  for (const auto& row : schedule) {
    for (const auto& cell : row) {
      for (const auto& action : cell) {
        size.stages = std::max(size.stages, action.stage + 1);
        if (has_micro_batch(action.kind)) {
          size.micro_batches = std::max(size.micro_batches, action.micro_batch + 1);
        }
      }
    }
  }
  return size;
}

bool has_transfers(const Schedule& schedule) {
  return std::ranges::any_of(schedule, [](const Row& row) {
    return std::ranges::any_of(
        row, [](const Cell& cell) { return cell.size() == 1 && is_transfer(cell[0].kind); });
  });
}

std::optional<std::string> first_difference(const Schedule& a, const Schedule& b) {
  const auto text_of = [](const Schedule& schedule, std::size_t row,
                          std::size_t cell) -> std::string {
    if (row >= schedule.size()) return "no row";
    if (cell >= schedule[row].size()) return "no cell";
    return schedule[row][cell].empty() ? "an idle cell" : to_string(schedule[row][cell]);
  };
  for (std::size_t row = 0; row < std::max(a.size(), b.size()); ++row) {
    const auto cells = std::max(row < a.size() ? a[row].size() : 0,  //
                                row < b.size() ? b[row].size() : 0);
    for (std::size_t cell = 0; cell < cells; ++cell) {
      const auto in_a = text_of(a, row, cell), in_b = text_of(b, row, cell);
      if (in_a != in_b) return place_name(row, cell) + ": " + in_a + " against " + in_b;
    }
  }
  return std::nullopt;
}

std::string place_name(std::size_t row, std::size_t cell) {
  return "row " + std::to_string(row) + ", cell " + std::to_string(cell);
}

}  // namespace moegrad::plan
