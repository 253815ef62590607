// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/utf8.h"

#include <algorithm>

namespace moegrad {
namespace {

/// Length of the character at the start of `text`; 0 if there is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // The first two bytes show overlong forms, surrogates and characters above U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

/// Whether `text`, at most three bytes, may be the beginning of a longer character.
bool is_beginning(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0xc2 || lead > 0xf4 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return text.size() < length && std::ranges::all_of(text.substr(1), [](char c) {
           return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
         });
}

/// Whether a terminal obeys the character instead of showing it: ASCII's control characters, U+0080
/// to U+009F, marks and overrides of direction, line and paragraph separators.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  if (byte(1) == 0x80)
    return byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) < 0xaf);
  return byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) < 0xaa;
}

void append_escaped(std::string& text, std::string_view bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kHex[byte >> 4];
    text += kHex[byte & 0xf];
  }
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    const auto length = character_length(text.substr(position));
    if (length == 0) break;
    position += length;
  }
  return position;
}

void append_utf8(std::string& text, std::uint32_t character) {
  const auto append = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto append_tail = [&](int shift) { append(0x80U | ((character >> shift) & 0x3fU)); };
  if (character < 0x80) {
    append(character);
  } else if (character < 0x800) {
    append(0xc0U | (character >> 6));
    append_tail(0);
  } else if (character < 0x10000) {
    append(0xe0U | (character >> 12));
    append_tail(6);
    append_tail(0);
  } else {
    append(0xf0U | (character >> 18));
    append_tail(12);
    append_tail(6);
    append_tail(0);
  }
}

std::size_t append_printable(std::string& shown, std::string_view text, bool more) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto rest = text.substr(at);
    const auto length = character_length(rest);
    if (length == 0 && more && rest.size() < 4 && is_beginning(rest)) break;
    const auto character = rest.substr(0, length == 0 ? 1 : length);
    const bool shows = length > 0 && !is_control(character);
    if (shows || character == "\n" || character == "\t") {
      shown += character;
    } else {
      append_escaped(shown, character);
    }
    at += character.size();
  }
  return at;
}

std::string on_one_line(std::string_view text) {
  constexpr std::size_t kShown = 60;
  const bool cut = text.size() > kShown;
  if (cut) text = text.substr(0, valid_utf8_prefix(text.substr(0, kShown)));
  std::string shown, result;
  append_printable(shown, text, /*more=*/false);
  for (const char c : shown) {  // on one line
    if (c == '\n' || c == '\t') {
      append_escaped(result, {&c, 1});
    } else {
      result += c;
    }
  }
  return result + (cut ? "..." : "");
}

std::string in_quotes(std::string_view text) {
  std::string quoted = "'";
  return quoted.append(on_one_line(text)).append("'");
}

}  // namespace moegrad
