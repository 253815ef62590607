// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "framework/autograd/dropout_ids.h"
#include "nn/module.h"

namespace moegrad::nn::detail {

/// What random numbers of a layer depend on (Note [Dropout masks]).
struct Draw {
  const DropoutIds& ids;
  /// What tells the random numbers of this call from those of other modules, steps and draws: the
  /// path of the module that is called, `kind` and the numbers of step and draw.
  std::string purpose;
};

/// For the call of `module` that is running. `layer`: its name, for messages. Error outside a
/// DropoutIdsGuard, and if a call around it is one of a module that the one that calls it has not
/// registered. Warns of masks that others have had.
Draw draw_of_call(const Module& module, std::string_view layer, std::string_view kind);

}  // namespace moegrad::nn::detail
