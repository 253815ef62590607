// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad {

/// The texts of all ranks of `group`, in the order of the ranks, on every rank. Errors and plans
/// travel this way. Blocking. Without a group, the result is this rank's text.
std::vector<std::string> all_gather_texts(const std::shared_ptr<ProcessGroup>& group,
                                          std::string_view text,
                                          const CollectiveOptions& options = {});

/// The ranks whose text is not that of rank 0, as "1, 3"; empty if all texts are the same.
std::string ranks_that_differ(const std::vector<std::string>& texts);

}  // namespace moegrad
