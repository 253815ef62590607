// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moegrad {

/// The number of bytes before the first byte that is not part of a UTF-8 character; text.size() if
/// the whole text is UTF-8. Overlong forms, surrogates and characters above U+10FFFF are not UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// Appends a character below 0x110000 that is not a surrogate.
void append_utf8(std::string& text, std::uint32_t character);

/// `text` as messages show it: one line, at most about 60 bytes of it, safe for a terminal.
std::string on_one_line(std::string_view text);
/// The same between single quotes.
std::string in_quotes(std::string_view text);

/// Appends `text` in a form that is safe for a terminal. Control characters (except line feeds and
/// tabs), characters that change the direction of text, and bytes that are not UTF-8 become
/// `\\xNN`. Returns the number of bytes of `text` that it has taken. That is all of them; but with
/// `more`, the beginning of a character at the end is left for the next call.
std::size_t append_printable(std::string& shown, std::string_view text, bool more);

}  // namespace moegrad
