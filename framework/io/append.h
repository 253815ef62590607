// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace moegrad {

/// Appends `text`, as a whole or not at all, to a file that has been opened with O_APPEND, so that
/// no hole is left where somebody else has emptied it meanwhile. Returns 0 or errno: ENOENT for a
/// file that has been removed, where the system would take what nobody can read. A pipe or a device
/// is written just the same, but keeps a part.
int append_whole(int descriptor, std::string_view text);

}  // namespace moegrad
