// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/shard_spec.h"

#include "framework/runtime/error.h"

namespace moegrad {

void check_same_part(std::string_view subject, const std::string& name,
                     const std::shared_ptr<const ShardSpec>& given,
                     const std::shared_ptr<const ShardSpec>& own) {
  if (given == nullptr || own == nullptr) return;
  const bool same = given->global_shape == own->global_shape && given->dim == own->dim &&
                    given->begin == own->begin && given->end == own->end;
  check<ValueError>(same, subject, ": '", name, "' must be [", own->begin, ", ", own->end,
                    ") of dimension ", own->dim, " of ", own->global_shape, ", got [", given->begin,
                    ", ", given->end, ") of dimension ", given->dim, " of ", given->global_shape);
}

}  // namespace moegrad
