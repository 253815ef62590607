// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>

namespace moegrad::examples {

/// A new file, or an old one emptied. ValueError where it cannot be written.
std::ofstream open_for_writing(const std::string& path);

}  // namespace moegrad::examples
