// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/parse_number.h"

#include <charconv>
#include <cstdint>
#include <type_traits>

#include "framework/runtime/error.h"

namespace moegrad {

template <class T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto digits = text.substr(text.starts_with('+') ? 1 : 0);
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool good = failure == std::errc() && end == digits.data() + digits.size();
  return good ? std::optional(value) : std::nullopt;
}

template <class T>
T parse_number(std::string_view name, std::string_view text, Bounds<T> bounds) {
  const auto value = to_number<T>(text);
  const bool good = value && bounds.least <= *value && *value <= bounds.most;  // NaN is not
  check<ValueError>(good, name, ": must be ", std::is_integral_v<T> ? "an integer" : "a number",
                    " from ", bounds.least, " to ", bounds.most, ", got ", text);
  return *value;
}

template std::optional<int> to_number(std::string_view);
template std::optional<std::int64_t> to_number(std::string_view);
template std::optional<std::uint64_t> to_number(std::string_view);
template std::optional<double> to_number(std::string_view);

template int parse_number(std::string_view, std::string_view, Bounds<int>);
template std::int64_t parse_number(std::string_view, std::string_view, Bounds<std::int64_t>);
template std::uint64_t parse_number(std::string_view, std::string_view, Bounds<std::uint64_t>);
template double parse_number(std::string_view, std::string_view, Bounds<double>);

}  // namespace moegrad
