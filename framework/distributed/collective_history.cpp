// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/collective_history.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace moegrad {
namespace {

// The columns in the order of printing. The last column needs no padding.
constexpr std::string HistoryLine::*kColumns[] = {&HistoryLine::state, &HistoryLine::where,
                                                  &HistoryLine::sequence, &HistoryLine::signature,
                                                  &HistoryLine::label};

void print(std::ostream& out, const HistoryLine& line, const std::vector<std::size_t>& widths) {
  std::string text;
  for (std::size_t i = 0; i < std::size(kColumns); ++i) {
    const auto& cell = line.*kColumns[i];
    text += "  " + cell + std::string(widths[i] - cell.size(), ' ');
  }
  text.erase(text.find_last_not_of(' ') + 1);
  out << '\n' << text;
}

std::vector<std::size_t> column_widths(const std::vector<std::vector<HistoryLine>>& ranks) {
  std::vector<std::size_t> widths(std::size(kColumns));
  for (const auto& lines : ranks) {
    for (const auto& line : lines) {
      for (std::size_t i = 0; i < widths.size(); ++i) {
        widths[i] = std::max(widths[i], (line.*kColumns[i]).size());
      }
    }
  }
  return widths;
}

}  // namespace

HistoryLine history_line(const CollectiveRequest& request, std::string_view state) {
  return {.state = std::string(state),
          .where = moegrad::where(request),
          .sequence = "sequence " + std::to_string(request.sequence),
          .signature = signature(request),
          .label = request.label};
}

std::string format_history(const std::vector<std::vector<HistoryLine>>& ranks) {
  std::vector<int> numbers(ranks.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return format_history(ranks, numbers);
}

std::string format_history(const std::vector<std::vector<HistoryLine>>& ranks,
                           const std::vector<int>& numbers) {
  const auto widths = column_widths(ranks);
  std::ostringstream text;
  for (auto lines = ranks.begin(); lines != ranks.end(); ++lines) {
    if (std::find(ranks.begin(), lines, *lines) != lines) continue;  // printed already
    std::vector<int> same;
    for (auto other = lines; other != ranks.end(); ++other) {
      if (*other == *lines)
        same.push_back(numbers[static_cast<std::size_t>(other - ranks.begin())]);
    }
    text << (lines == ranks.begin() ? "" : "\n") << name_ranks(same);
    if (lines->empty()) text << "\n  no operation";
    for (const auto& line : *lines) print(text, line, widths);
  }
  return text.str();
}

}  // namespace moegrad
