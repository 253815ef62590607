// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/option.h"

namespace moegrad::training {

// Note [Option files]
// A TOML file with a line `name = value` per option, without tables. Names are those of the command
// line; an underscore may take the place of a hyphen. Files of more than 1 MiB are refused.

/// Sets the options that the file at `path` names. Returns the names of those whose value is not
/// what it was. Throws Error `<who>: <path>:<line>: <what>` for what is no TOML, an unknown name,
/// one that appears twice, and a value that the option refuses.
std::set<std::string> set_from_toml(std::vector<Option>& options, const std::string& path,
                                    std::string_view who);

/// A file that set_from_toml() reads back to the same values. Options that are not set are
/// comments. ValueError for a text that is not UTF-8, which TOML cannot express.
std::string to_toml(const std::vector<Option>& options);

}  // namespace moegrad::training
