// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moegrad {

/// The allowed values of a number: from `least` to `most`.
template <class T>
struct Bounds {
  T least;
  T most;
};

/// The number that the whole `text` spells, if it spells one that T can hold: a double holds none
/// beyond its largest, and none but 0 below its smallest. T is as below.
template <class T>
std::optional<T> to_number(std::string_view text);

/// The number that the whole `text` spells. T is int, std::int64_t, std::uint64_t or double.
/// Anything else, including NaN and infinities, is a ValueError:
/// `<name>: must be an integer from <least> to <most>, got <text>` (for a double: a number).
template <class T>
T parse_number(std::string_view name, std::string_view text, Bounds<T> bounds);

}  // namespace moegrad
