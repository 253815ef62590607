// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace moegrad::tools {

/// The style sheet of a report beside kChartStyle, in light and in dark. It needs no escaping.
inline constexpr std::string_view kReportStyle = R"(
:root { --text: #1f2328; --tile: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --tile: #1f252c; } }
body { max-width: 960px; margin: 24px auto; padding: 0 16px; background: var(--page);
  color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 28px 0 8px; }
.path, section p { color: var(--soft); margin: 4px 0 10px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 8px;
  margin: 16px 0; }
.tiles div { background: var(--tile); border-radius: 6px; padding: 8px 12px; display: flex;
  flex-direction: column; justify-content: space-between; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
.facts dd { font-size: 15px; overflow-wrap: anywhere; min-width: 0; }
.facts dt { font-size: 15px; }
@media (max-width: 480px) { .facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .facts dd { margin-bottom: 6px; } }
summary { color: var(--soft); cursor: pointer; }
dt { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
dd { margin: 0; font-size: 18px; font-variant-numeric: tabular-nums; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr));
  gap: 8px 24px; }
.legend { max-width: 460px; }
.grid2 > * { min-width: 0; }
.grid2 svg { max-width: 560px; }
.wide { overflow-x: auto; }
section .hint { display: none; }
@media (max-width: 672px) { section .hint { display: block; color: var(--c1); } }
.wide svg { min-width: 640px; }
svg { width: 100%; height: auto; display: block; }
svg image { image-rendering: pixelated; }
.bar0 { fill: var(--c0); }
.bar1 { fill: var(--c1); }
.key { display: inline-block; width: 12px; height: 12px; }
.key.bar0 { background: var(--c0); }
.key.bar1 { background: var(--c1); }
pre { background: var(--tile); border-radius: 6px; padding: 12px; overflow-x: auto;
  font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-size: 13px; overflow-wrap: anywhere; }
code span { display: inline-block; max-width: 100%; }
)";

}  // namespace moegrad::tools
