// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moegrad::training {

/// The King James text of the Debian packages bible-kjv and bible-kjv-text, a verse per line.
/// ValueError if they are not installed.
std::string read_king_james();

}  // namespace moegrad::training
