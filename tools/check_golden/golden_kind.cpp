// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_kind.h"

#include <set>
#include <string>
#include <string_view>

#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"
#include "models/causal_lm/config_json.h"

namespace moegrad::tools {
namespace {

/// The names in a folder, the first few of them.
std::string listing(const std::filesystem::path& folder) {
  constexpr std::size_t kMost = 8;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  if (names.empty()) return "none";
  std::string list;
  std::size_t listed = 0;
  for (const auto& name : names) {
    if (listed == kMost) return list + " and " + std::to_string(names.size() - kMost) + " more";
    list += (listed++ == 0 ? "" : ", ") + in_quotes(name);
  }
  return list;
}

}  // namespace

GoldenKind golden_kind(const std::filesystem::path& folder) {
  check<ValueError>(is_directory(folder), "must be a folder");
  const auto has = [&](std::string_view name) { return exists(folder / name); };
  if (has("config.json") && has("block.safetensors")) return GoldenKind::kBlock;
  if (has("config.json")) {
    // Another model is refused by its name, whatever other files there are.
    models::read_model_config(folder / "config.json");
    if (has("input.json")) return GoldenKind::kTraining;
    if (has("expected.safetensors")) return GoldenKind::kPretrained;
  } else if (has("after_20_steps.safetensors") || has("schedules.json")) {
    return GoldenKind::kOptim;
  }
  throw ValueError(
      "must have config.json with input.json, expected.safetensors or block.safetensors, or "
      "after_20_steps.safetensors or schedules.json, got " +
      listing(folder));
}

}  // namespace moegrad::tools
