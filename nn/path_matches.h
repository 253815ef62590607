// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moegrad::nn {

/// Whether a module's path is one that the pattern names. Each name between dots is a glob of its
/// own: "model.layers.*.mlp" names the mlp of each layer, and nothing below it.
bool path_matches(const std::string& pattern, const std::string& path);

}  // namespace moegrad::nn
