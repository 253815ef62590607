// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace moegrad::examples {

/// The style sheet of a report, in light and in dark. It needs no escaping.
inline constexpr std::string_view kReportStyle = R"(
:root { color-scheme: light dark; --page: #ffffff; --text: #1f2328; --soft: #59636e;
  --rule: #d8dee4; --tile: #f3f5f7; --c0: #0b63b8; --c1: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --text: #e6e9ec; --soft: #a3adb8; --rule: #343b44; --tile: #1f252c;
    --c0: #5aa9f0; --c1: #f59e5b; } }
body { max-width: 960px; margin: 24px auto; padding: 0 16px; background: var(--page);
  color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; }
h2 { font-size: 17px; margin: 28px 0 8px; }
.path, section p { color: var(--soft); margin: 4px 0 10px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 8px;
  margin: 16px 0; }
dl div { background: var(--tile); border-radius: 6px; padding: 8px 12px; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-size: 18px; font-variant-numeric: tabular-nums; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr));
  gap: 8px 24px; }
.legend { max-width: 460px; }
.wide { overflow-x: auto; }
.wide svg { min-width: 640px; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg image { image-rendering: pixelated; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--soft); fill: none; }
.line0, .line1 { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.line0 { stroke: var(--c0); }
.line1 { stroke: var(--c1); }
.band0, .bar0 { fill: var(--c0); }
.band1, .bar1 { fill: var(--c1); }
.band0, .band1 { opacity: 0.25; }
.dot0 { fill: var(--c0); }
.dot1 { fill: var(--c1); }
.key { display: inline-block; width: 12px; height: 12px; }
.key.bar0 { background: var(--c0); }
.key.bar1 { background: var(--c1); }
pre { background: var(--tile); border-radius: 6px; padding: 12px; overflow-x: auto;
  font-size: 13px; }
)";

}  // namespace moegrad::examples
