// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/schedule_csv.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/utf8.h"

namespace moegrad::plan {
namespace {

using enum ActionKind;

/// The cell being read, for messages.
struct Place {
  std::size_t row = 0;
  std::size_t cell = 0;
};

template <class... Parts>
void require(bool ok, const Place& place, const Parts&... parts) {
  check<ValueError>(ok, "read_schedule: ", place_name(place.row, place.cell), ": ", parts...);
}

constexpr std::string_view kDigits = "0123456789";

int number(std::string_view digits, int most, const char* what, const Place& place) {
  const auto value = to_number<int>(digits);
  require(value && *value < most && (digits.size() == 1 || digits[0] != '0'), place, what,
          " must be from 0 to ", most - 1, " without leading zeros, got ", in_quotes(digits));
  return *value;
}

std::string_view spelling_of(ActionKind kind, Letters letters) {
  if (letters == Letters::kInputB && kind == kBackwardInput) return "B";
  if (letters == Letters::kInputB && kind == kFullBackward) return "BW";
  return letters_of(kind);
}

/// The kind that is spelled so, if any.
std::optional<ActionKind> kind_of(std::string_view spelling, Letters letters) {
  for (int i = 0; i <= static_cast<int>(kReduceGrad); ++i) {
    const auto kind = static_cast<ActionKind>(i);
    if (spelling == spelling_of(kind, letters)) return kind;
  }
  return std::nullopt;
}

/// The letters of an action between its numbers.
std::string_view letters_in(std::string_view text) {
  const auto begin = std::min(text.find_first_not_of(kDigits), text.size());
  const auto end = text.find_last_not_of(kDigits);
  return end == std::string_view::npos ? "" : text.substr(begin, end + 1 - begin);
}

Action read_action(std::string_view text, Letters meaning, const Place& place) {
  const auto letters = letters_in(text);
  const auto begin = std::min(text.find_first_not_of(kDigits), text.size());
  const auto stage = text.substr(0, begin);
  const auto micro_batch = text.substr(begin + letters.size());
  const auto kind = kind_of(letters, meaning);
  require(kind.has_value(), place,
          "must be a stage, an action and a micro-batch, such as 2F0, with one of the letters ",
          meaning == Letters::kInputI ? "F I W B" : "F B W BW",
          " R SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD, got ", in_quotes(text));
  require(!stage.empty(), place, "must begin with the number of a stage, got ", in_quotes(text));
  Action action = {.kind = *kind, .stage = number(stage, kMostStages, "the stage", place)};
  if (has_micro_batch(*kind)) {
    require(!micro_batch.empty(), place, "must end with the number of a micro-batch, got ",
            in_quotes(text));
    action.micro_batch = number(micro_batch, kMostMicroBatches, "the micro-batch", place);
  } else {
    require(micro_batch.empty(), place, letters, " must have no micro-batch, got ",
            in_quotes(text));
  }
  return action;
}

constexpr std::string_view kPairEnd = ")OVERLAP_F_B";
constexpr std::string_view kCellCharacters =
    "0123456789_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz();";

/// Calls visit(text) for each action in the text of a cell.
template <class Visit>
void for_each_action(std::string_view cell, const Place& place, const Visit& visit) {
  if (cell.empty()) return;
  const auto other = cell.find_first_not_of(kCellCharacters);
  require(other == std::string_view::npos, place,
          "must be of digits, letters and _ alone, without spaces or quotes, got ",
          in_quotes(cell));
  if (!cell.starts_with('(')) return visit(cell);
  require(cell.ends_with(kPairEnd), place, "a pair must end with ", kPairEnd, ", got ",
          in_quotes(cell));
  const auto inside = cell.substr(1, cell.size() - 1 - kPairEnd.size());
  require(std::ranges::count(inside, ';') == 1, place,
          "a pair must be two actions with a semicolon between them, got ", in_quotes(cell));
  visit(inside.substr(0, inside.find(';')));
  visit(inside.substr(inside.find(';') + 1));
}

using Lines = std::vector<std::vector<std::string_view>>;

/// Calls visit(text, place) for each action of a file.
template <class Visit>
void for_each_action(const Lines& lines, const Visit& visit) {
  for (std::size_t row = 0; row < lines.size(); ++row) {
    for (std::size_t cell = 0; cell < lines[row].size(); ++cell) {
      const Place place = {row, cell};
      for_each_action(lines[row][cell], place, [&](std::string_view text) { visit(text, place); });
    }
  }
}

/// See Note [Letters of schedules].
Letters letters_used(const Lines& lines) {
  bool has_bw = false, has_w = false, has_i = false;
  for_each_action(lines, [&](std::string_view text, const Place&) {
    const auto letters = letters_in(text);
    has_bw |= letters == "BW";
    has_w |= letters == "W";
    has_i |= letters == "I";
  });
  return has_bw || (has_w && !has_i) ? Letters::kInputB : Letters::kInputI;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// The file's letters if its first line names them, which is then removed.
std::optional<Letters> take_heading(std::vector<std::string_view>& lines) {
  if (!lines[0].starts_with('#')) return std::nullopt;
  for (const auto letters : {Letters::kInputI, Letters::kInputB}) {
    if (lines[0] != heading_of(letters)) continue;
    lines.erase(lines.begin());
    check<ValueError>(!lines.empty(), "read_schedule: must have at least one row, got none");
    return letters;
  }
  throw ValueError("read_schedule: a first line with # must be '" +
                   std::string(heading_of(Letters::kInputI)) + "' or '" +
                   std::string(heading_of(Letters::kInputB)) + "', got " + in_quotes(lines[0]));
}

/// The lines of a file without their ends.
std::vector<std::string_view> lines_of(std::string_view text, bool carriage_returns) {
  auto lines = split(text, '\n');
  lines.pop_back();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    check<ValueError>(lines[i].ends_with('\r') == carriage_returns, "read_schedule: line ", i,
                      ": must end as line 0 does, with ", carriage_returns ? "" : "no ",
                      "carriage return");
    if (carriage_returns) lines[i].remove_suffix(1);
  }
  return lines;
}

Cell read_cell(std::string_view text, Letters meaning, const Place& place) {
  Cell cell;
  for_each_action(text, place, [&](std::string_view action) {
    cell.push_back(read_action(action, meaning, place));
  });
  require(cell.size() < 2 || (cell[0].kind == kForward && is_input_backward(cell[1].kind)), place,
          "a pair must be a forward and then a backward that makes the gradient of a stage's "
          "input, got ",
          in_quotes(text));
  return cell;
}

std::string spelled(const Action& action, Letters letters) {
  auto text = std::to_string(action.stage).append(spelling_of(action.kind, letters));
  if (has_micro_batch(action.kind)) text += std::to_string(action.micro_batch);
  return text;
}

std::string spelled(const Cell& cell, Letters letters) {
  if (cell.empty()) return {};
  if (cell.size() == 1) return spelled(cell[0], letters);
  return ("(" + spelled(cell[0], letters) + ";" + spelled(cell[1], letters)).append(kPairEnd);
}

}  // namespace

std::string_view heading_of(Letters letters) {
  return letters == Letters::kInputI ? "# letters: F I W B" : "# letters: F B W BW";
}

ScheduleFile read_schedule(std::string_view text) {
  check<ValueError>(!text.empty(), "read_schedule: must have at least one row, got an empty file");
  check<ValueError>(text.ends_with('\n'),
                    "read_schedule: the last line must have an end; the file was cut short");
  ScheduleFile file;
  file.carriage_returns = text.substr(0, text.find('\n')).ends_with('\r');
  auto lines = lines_of(text, file.carriage_returns);
  const auto named = take_heading(lines);
  Lines cells;
  for (const auto line : lines) cells.push_back(split(line, ','));
  file.heading = named.has_value();
  file.letters = named ? *named : letters_used(cells);
  for (std::size_t row = 0; row < cells.size(); ++row) {
    auto& actions = file.schedule.emplace_back();
    for (std::size_t cell = 0; cell < cells[row].size(); ++cell) {
      actions.push_back(read_cell(cells[row][cell], file.letters, {row, cell}));
    }
    check<ValueError>(std::ranges::any_of(actions, [](const Cell& cell) { return !cell.empty(); }),
                      "read_schedule: row ", row, ": must have at least one action, got none");
  }
  return file;
}

std::string to_csv(const ScheduleFile& file) {
  const std::string end = file.carriage_returns ? "\r\n" : "\n";
  std::string text;
  if (file.heading) text.append(heading_of(file.letters)) += end;
  for (const auto& row : file.schedule) {
    for (std::size_t cell = 0; cell < row.size(); ++cell) {
      if (cell > 0) text += ',';
      text += spelled(row[cell], file.letters);
    }
    text += end;
  }
  return text;
}

}  // namespace moegrad::plan
