// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace moegrad {

/// Appends `text`, as a whole or not at all, to a file that was opened with O_APPEND. With O_APPEND
/// there is no hole if another program has emptied the file meanwhile. Returns 0 or errno: ENOENT
/// for a file that has been removed, where the system would accept text that nobody can read. A
/// pipe or a device is written in the same way, but may keep a part of the text.
int append_whole(int descriptor, std::string_view text);

}  // namespace moegrad
