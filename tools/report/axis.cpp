// SPDX-License-Identifier: Apache-2.0
#include "tools/report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "tools/report/markup.h"

namespace moegrad::tools {
namespace {

// The smallest number of ..., 0.2, 0.5, 1, 2, 5, 10, 20, ... that is not below `value`.
double nice_above(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (value <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

// `largest`: the largest absolute value on the axis; `step`: from one tick to the next.
std::string label_of(double value, double step, double largest) {
  if (value == 0) return "0";  // and not "-0"
  if (largest < 1e-3 || largest >= 1e15) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.4g", value);
    return text.data();
  }
  struct Unit {
    double from, size;
    const char* suffix;
  };
  constexpr Unit kUnits[] = {{1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}, {0, 1, ""}};
  const auto& unit =
      *std::ranges::find_if(kUnits, [&](const Unit& u) { return largest >= u.from; });
  const double digits = std::ceil(-std::log10(step / unit.size) - 1e-9);
  return fixed(value / unit.size, static_cast<int>(std::clamp(digits, 0.0, 9.0))) + unit.suffix;
}

}  // namespace

AxisRange axis_range(double low, double high, double margin) {
  const double largest = std::max(std::abs(low), std::abs(high));
  if (high - low <= std::max(1e-9 * largest, 1e-150)) {
    const double room = largest > 0 ? largest / 10 : 1;
    return {low - room, high + room};
  }
  const double room = margin * (high - low);
  return {low - room, high + room};
}

std::vector<Tick> ticks(const AxisRange& range, int count, bool integers) {
  double step = nice_above((range.high - range.low) / count);
  if (integers) step = std::max(step, 1.0);
  const double largest = std::max(std::abs(range.low), std::abs(range.high));
  std::vector<Tick> all;
  for (double i = std::ceil(range.low / step - 1e-9); i * step <= range.high + 1e-9 * step; ++i) {
    all.push_back({i * step, label_of(i * step, step, largest)});
  }
  return all;
}

}  // namespace moegrad::tools
