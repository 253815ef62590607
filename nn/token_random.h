// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "framework/autograd/dropout_ids.h"

namespace moegrad::nn::detail {

/// The ids that random numbers of a layer depend on (Note [Dropout masks]). Error, with the name of
/// the layer, outside a DropoutIdsGuard.
const DropoutIds& ids_in_force(std::string_view layer);

/// What tells the random numbers of this call from those of other modules and steps: the path of
/// the module that is called, `purpose` and the step. Error if a call around it is one of a module
/// that the one that calls it has not registered.
std::string purpose_of_call(std::string_view layer, std::string_view purpose, std::int64_t step);

}  // namespace moegrad::nn::detail
