// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/parse_number.h"

#include <charconv>
#include <cstdint>
#include <type_traits>

#include "framework/runtime/error.h"

namespace moegrad {

template <class T>
T parse_number(std::string_view name, std::string_view text, Bounds<T> bounds) {
  T value{};
  const auto digits = text.substr(text.starts_with('+') ? 1 : 0);
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  bool good = failure == std::errc() && end == digits.data() + digits.size();
  good = good && bounds.least <= value && value <= bounds.most;  // NaN is not
  check<ValueError>(good, name, ": must be ", std::is_integral_v<T> ? "an integer" : "a number",
                    " from ", bounds.least, " to ", bounds.most, ", got ", text);
  return value;
}

template int parse_number(std::string_view, std::string_view, Bounds<int>);
template std::int64_t parse_number(std::string_view, std::string_view, Bounds<std::int64_t>);
template std::uint64_t parse_number(std::string_view, std::string_view, Bounds<std::uint64_t>);
template double parse_number(std::string_view, std::string_view, Bounds<double>);

}  // namespace moegrad
