// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace moegrad {

/// The allowed values of a number: from `least` to `most`.
template <class T>
struct Bounds {
  T least;
  T most;
};

/// The number that the whole `text` spells. T is int, std::int64_t, std::uint64_t or double.
/// Anything else, including NaN and infinities, is a ValueError:
/// `<name>: must be an integer from <least> to <most>, got <text>` (for a double: a number).
template <class T>
T parse_number(std::string_view name, std::string_view text, Bounds<T> bounds);

}  // namespace moegrad
