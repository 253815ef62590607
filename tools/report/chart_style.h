// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace moegrad::tools {

/// How many lines of a chart have a colour of their own.
inline constexpr std::size_t kChartColours = 5;

/// The style sheet of charts, in light and in dark. It needs no escaping.
inline constexpr std::string_view kChartStyle = R"(
:root { color-scheme: light dark; --page: #ffffff; --soft: #59636e; --rule: #d8dee4;
  --c0: #0b63b8; --c1: #c2410c; --c2: #1a7f37; --c3: #8250df; --c4: #9a6700; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --soft: #a3adb8; --rule: #343b44;
    --c0: #5aa9f0; --c1: #f59e5b; --c2: #56c271; --c3: #b794f6; --c4: #d9b13b; } }
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--soft); fill: none; }
[class^=line] { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
[class^=band] { opacity: 0.25; }
.reference { stroke: var(--c1); stroke-width: 1.4; stroke-dasharray: 5 4; fill: none; }
.line0 { stroke: var(--c0); }
.line1 { stroke: var(--c1); }
.line2 { stroke: var(--c2); }
.line3 { stroke: var(--c3); }
.line4 { stroke: var(--c4); }
.band0, .dot0 { fill: var(--c0); }
.band1, .dot1 { fill: var(--c1); }
.band2, .dot2 { fill: var(--c2); }
.band3, .dot3 { fill: var(--c3); }
.band4, .dot4 { fill: var(--c4); }
)";

}  // namespace moegrad::tools
