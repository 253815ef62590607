// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/report/run_record.h"

namespace moegrad::tools {

/// A run as one HTML page that is complete in itself: charts are SVG within it, nothing is loaded
/// and nothing runs. It is well-formed XML too.
std::string report_page(const RunRecord& run);

}  // namespace moegrad::tools
