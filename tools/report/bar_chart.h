// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moegrad::tools {

struct Bar {
  std::string label = {};
  std::vector<double> parts = {};  // one after the other, each in another colour
  std::string note = {};           // the text after the bar
};

/// Bars that start at a common line of zeros, as SVG.
std::string bar_chart(const std::vector<Bar>& bars);

}  // namespace moegrad::tools
