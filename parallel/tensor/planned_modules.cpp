// SPDX-License-Identifier: Apache-2.0
#include "parallel/tensor/planned_modules.h"

#include <algorithm>
#include <sstream>
#include <type_traits>
#include <variant>

#include "framework/runtime/error.h"
#include "nn/path_matches.h"

namespace moegrad::parallel {
std::string to_string(const TensorLayout& layout) {
  return layout.dim ? "Shard(" + std::to_string(*layout.dim) + ")" : "Replicate()";
}

std::string to_string(const std::vector<TensorLayout>& layouts) {
  std::string text;
  for (const auto& layout : layouts) text += (text.empty() ? "" : ", ") + to_string(layout);
  return "{" + text + "}";
}

std::string_view name_of(const ParallelStyle& style) {
  constexpr std::string_view kNames[] = {"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                         "PrepareModuleInput", "PrepareModuleOutput"};
  return kNames[style.index()];
}

std::string to_string(const ParallelPlan& plan) {
  std::ostringstream text;
  for (const auto& [path, style] : plan) {
    text << path << ": " << name_of(style) << ' ';
    std::visit(
        [&]<class Style>(const Style& s) {
          if constexpr (std::is_same_v<Style, ColwiseParallel>) {
            text << to_string({s.input_layouts, s.output_layouts}) << s.blocks << ' ' << s.tiles;
          } else if constexpr (std::is_same_v<Style, RowwiseParallel>) {
            text << to_string({s.input_layouts, s.output_layouts}) << s.tiles;
          } else if constexpr (std::is_same_v<Style, SequenceParallel>) {
            text << s.sequence_dim;
          } else if constexpr (std::is_same_v<Style, PrepareModuleInput>) {
            text << to_string(s.input_layouts) << to_string(s.desired_input_layouts);
          } else {
            text << to_string(s.output_layouts) << to_string(s.desired_output_layouts);
          }
        },
        style);
    text << '\n';
  }
  return text.str();
}

bool is_of_weights(const ParallelStyle& style) { return style.index() < 3; }

std::vector<Planned> matched_modules(nn::Module& root, const ParallelPlan& plan) {
  std::vector<Planned> planned;
  for (const auto& entry : plan) {
    const auto& pattern = entry.first;
    const auto& style = entry.second;
    const auto before = planned.size();
    for (const auto& [path, module] : root.named_modules()) {
      if (!nn::path_matches(pattern, path)) continue;
      const auto same = [&, at = module](const Planned& other) {
        return other.module == at &&
               (is_of_weights(*other.style) ? is_of_weights(style)
                                            : other.style->index() == style.index());
      };
      check<ValueError>(std::ranges::none_of(planned, same), "parallelize_module: '", path,
                        "' must have one style in the plan, got another ", name_of(style));
      planned.push_back({path, module, &style});
    }
    check<ValueError>(planned.size() > before, "parallelize_module: '", pattern,
                      "' must be the path of a module, got none that matches");
  }
  return planned;
}

}  // namespace moegrad::parallel
