// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/option.h"

namespace moegrad::training {

// Note [Option files]
// A TOML file with a line `name = value` per option, without tables. Names are the same as on the
// command line; an underscore may replace a hyphen. Files of more than 1 MiB are refused.

/// Sets the options that the file at `path` names. Returns the names of the options whose value has
/// changed. Throws Error `<subject>: <path>:<line>: <what>` for invalid TOML, an unknown name, a
/// name that appears twice, a value that the option refuses, and a number that a double cannot
/// hold.
std::set<std::string> set_from_toml(std::vector<Option>& options, const std::string& path,
                                    std::string_view subject);

/// A file that set_from_toml() reads back to the same values. Options that are not set are
/// comments. ValueError for a text that is not UTF-8, which TOML cannot express.
std::string to_toml(const std::vector<Option>& options);

}  // namespace moegrad::training
