// SPDX-License-Identifier: Apache-2.0
#include "fsdp/observer.h"

#include <cstddef>

namespace moegrad::fsdp {

std::string_view to_string(Event event) {
  constexpr std::string_view kNames[] = {
      "pre_forward", "post_forward", "pre_backward", "post_backward", "unshard",
      "prefetch",    "reshard",      "gather",       "reduce",        "all_reduce"};
  return kNames[static_cast<std::size_t>(event)];
}

}  // namespace moegrad::fsdp
