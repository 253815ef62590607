// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/stage_layers.h"

#include <algorithm>
#include <cstdint>

#include "framework/runtime/error.h"

namespace moegrad::plan {

std::vector<int> layers_per_stage(const LayerDivision& division) {
  const auto& [layers, stages, first_less, last_less, empty_layers] = division;
  check<ValueError>(layers >= 1 && stages >= 1,
                    "layers_per_stage: needs at least 1 layer and 1 stage, got ", layers, " and ",
                    stages);
  check<ValueError>(first_less >= 0 && last_less >= 0,
                    "layers_per_stage: the first and last stage cannot have more layers than the "
                    "others: must be at least 0 less, got ",
                    first_less, " and ", last_less);
  std::vector<int> empty(static_cast<std::size_t>(stages));
  for (const int stage : empty_layers) {
    check<ValueError>(0 <= stage && stage < stages,
                      "layers_per_stage: the stage of an empty layer must be from 0 to ",
                      stages - 1, ", got ", stage);
    ++empty[static_cast<std::size_t>(stage)];
  }
  const std::int64_t places =
      std::int64_t{layers} + first_less + last_less + std::ssize(empty_layers);
  check<ValueError>(empty_layers.empty() || places % stages == 0, "layers_per_stage: ", layers,
                    " layers, ", std::int64_t{first_less} + last_less, " fewer and ",
                    empty_layers.size(), " empty ones must divide by ", stages, " stages, got ",
                    places);
  std::vector<int> result;
  for (int stage = 0; stage < stages; ++stage) {
    const auto own_empty = empty[static_cast<std::size_t>(stage)];
    const auto room = places / stages + (stage < places % stages ? 1 : 0);
    auto own = room - own_empty;
    if (stage == 0) own -= first_less;
    if (stage + 1 == stages) own -= last_less;
    check<ValueError>(own >= 0, "layers_per_stage: stage ", stage, " must lack at most the ", room,
                      " layers that it has room for, got ", -own, " more");
    check<ValueError>(own > 0 || own_empty > 0, "layers_per_stage: stage ", stage, " of ", stages,
                      " must have one of the ", layers,
                      " layers, or an empty layer at its place, got neither");
    result.push_back(static_cast<int>(own));
  }
  return result;
}

}  // namespace moegrad::plan
