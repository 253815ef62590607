// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moegrad {

/// Bytes before the first that is no part of a UTF-8 character; text.size() if all of it is UTF-8.
/// Overlong forms, surrogates and what lies above U+10FFFF are not UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// Appends a character below 0x110000 that is no surrogate.
void append_utf8(std::string& text, std::uint32_t character);

/// `text` between single quotes as messages show it: one line, at most about 60 bytes of it.
std::string in_quotes(std::string_view text);

/// Appends `text` as a terminal may be given it: control characters but line feeds and tabs, those
/// that change the direction of text, and bytes that are no UTF-8 become `\\xNN`. Returns the bytes
/// of `text` that it has taken: all, but where there is `more` to come a character's beginning
/// stays.
std::size_t append_printable(std::string& shown, std::string_view text, bool more);

}  // namespace moegrad
