// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moegrad::tools {

struct Bar {
  std::string label = {};
  std::vector<double> parts = {};  // one after the other, each in a colour of its own
  std::string note = {};           // behind the bar
};

/// Bars from one line of zeros, as SVG.
std::string bar_chart(const std::vector<Bar>& bars);

}  // namespace moegrad::tools
