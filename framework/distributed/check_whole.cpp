// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/check_whole.h"

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"

namespace moegrad {

void check_whole(std::string_view op, const Tensor& input, std::size_t position) {
  const auto& spec = input.shard_spec();
  if (spec == nullptr) [[likely]]
    return;
  if (!spec->gathered_for_use || num_parts(*spec) == 1) return;
  if (input.shape() == spec->global_shape) return;  // this rank holds the whole small parameter
  check(false, op, ": input ", position, " must be a whole parameter, got a shard ", input.shape(),
        " of ", spec->global_shape, " on ", num_parts(*spec),
        " ranks; call the module, module(x), which gathers it: forward(x) alone does not; "
        "to_local(shard) gives this rank's elements alone");
}

}  // namespace moegrad
