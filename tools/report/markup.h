// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace moegrad::tools {

/// The parts, one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (text.append(parts), ...);
  return text;
}

/// `text` escaped for HTML and XML, between tags and between quotes. Bytes that are not UTF-8 and
/// characters that XML does not have become U+FFFD.
std::string escape(std::string_view text);

/// `value` with `digits` digits after the point; "-" if it is not finite.
std::string fixed(double value, int digits);

/// `value` with six digits, in as few characters as possible: "1", "0.25", "18230.4", "1e+20"; "-"
/// if it is not finite.
std::string short_number(double value);

/// "812 B", "1.50 KiB", "3.25 GiB".
std::string format_bytes(double bytes);

/// "28.7 s", "31.5 min", "15.3 h".
std::string format_seconds(double seconds);

}  // namespace moegrad::tools
