// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/report/run_record.h"

namespace moegrad::tools {

/// A run as one self-contained HTML page: charts are inline SVG, nothing is loaded and no script
/// runs. It is also well-formed XML.
std::string report_page(const RunRecord& run);

}  // namespace moegrad::tools
