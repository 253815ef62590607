// SPDX-License-Identifier: Apache-2.0
#include "framework/io/safetensors_text.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_digit(char c) { return '0' <= c && c <= '9'; }

bool is_one_of(char c, std::string_view characters) {
  return characters.find(c) != std::string_view::npos;
}

/// Whether `c` may start a value. If so, a value of the wrong type may still be valid JSON.
bool starts_value(char c) { return is_digit(c) || is_one_of(c, "\"{[-tfn"); }

}  // namespace

std::ostream& operator<<(std::ostream& out, const SafetensorsLocation& location) {
  out << location.field;
  if (location.tensor.data() != nullptr) out << " of " << in_quotes(location.tensor);
  return out;
}

SafetensorsText::SafetensorsText(std::string_view text, const std::string& path)
    : text_(text), path_(path) {
  if (text.starts_with("\xef\xbb\xbf")) {
    refuse(Kind::kByteOrderMark, path, "header must start with '{', got a byte order mark");
  }
  const auto valid = valid_utf8_prefix(text);
  if (valid < text.size()) {
    refuse(Kind::kInvalidUtf8, path, "header must be UTF-8, got byte ",
           static_cast<int>(static_cast<unsigned char>(text[valid])), " at ", valid);
  }
  const auto nul = text.find('\0');
  if (nul != std::string_view::npos) {
    refuse(Kind::kNulCharacter, path, "header must hold no NUL, got one at ", nul);
  }
}

bool SafetensorsText::at_end() {
  skip_space();
  return position_ == text_.size();
}

bool SafetensorsText::consume(char c) {
  if (at_end() || text_[position_] != c) return false;
  ++position_;
  return true;
}

bool SafetensorsText::consume(std::string_view word) {
  if (at_end() || !text_.substr(position_).starts_with(word)) return false;
  position_ += word.size();
  return true;
}

void SafetensorsText::expect(char c) {
  if (!consume(c)) refuse_syntax(std::string{'\'', c, '\''});
}

std::string SafetensorsText::key() {
  if (!consume('"')) refuse_syntax("a key in quotes");
  return decode_string();
}

std::string SafetensorsText::string(Kind kind, const SafetensorsLocation& location) {
  require_value('"', kind, location, "a string");
  return decode_string();
}

void SafetensorsText::enter(char open, Kind kind, const SafetensorsLocation& location) {
  require_value(open, kind, location, open == '{' ? "an object" : "an array");
}

std::uint64_t SafetensorsText::unsigned_integer(const SafetensorsLocation& location,
                                                std::uint64_t max) {
  if (at_end() || !starts_value(text_[position_])) refuse_syntax("a value");
  const auto rest = text_.substr(position_);
  const auto token =
      rest.substr(0, static_cast<std::size_t>(
                         std::ranges::find_if_not(
                             rest, [](char c) { return is_digit(c) || is_one_of(c, "+-.eE"); }) -
                         rest.begin()));
  const bool digits = !token.empty() && std::ranges::all_of(token, is_digit);
  if (!digits || (token.size() > 1 && token[0] == '0')) {
    refuse(Kind::kNotUnsignedInteger, path_, location, " must hold unsigned integers, got ",
           next());
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc() || value > max) {
    refuse(Kind::kIntegerTooLarge, path_, location, " must hold integers up to ", max, ", got ",
           next());
  }
  position_ += token.size();
  return value;
}

void SafetensorsText::skip_value(std::size_t depth) {
  if (consume('"')) {
    decode_string();
    return;
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (consume(word)) return;
  }
  const bool object = consume('{');
  if (!object && !consume('[')) return skip_number();
  if (depth == kMaxSafetensorsDepth) {
    refuse(Kind::kTooDeep, path_, "fields must be at most ", kMaxSafetensorsDepth,
           " levels deep, got more");
  }
  const char close = object ? '}' : ']';
  if (consume(close)) return;
  do {
    if (object) {
      key();
      expect(':');
    }
    skip_value(depth + 1);
  } while (consume(','));
  expect(close);
}

void SafetensorsText::skip_number() {
  const auto begin = position_;
  const auto step_over = [&](std::string_view characters) {
    const bool is_next = position_ < text_.size() && is_one_of(text_[position_], characters);
    if (is_next) ++position_;
    return is_next;
  };
  const auto digits = [&] {
    const auto first = position_;
    while (step_over("0123456789")) continue;
    return position_ > first;
  };
  step_over("-");
  bool valid = step_over("0") || digits();
  if (valid && step_over(".")) valid = digits();
  if (valid && step_over("eE")) {
    step_over("+-");
    valid = digits();
  }
  if (valid) return;
  position_ = begin;
  refuse_syntax("a value");
}

std::string SafetensorsText::next() {
  constexpr std::size_t kShown = 24;
  constexpr std::string_view kPunctuation = ",:[]{}\"";
  if (at_end()) return "the end of the header";
  const auto rest = text_.substr(position_, kShown);
  std::size_t length = 1;
  if (rest[0] == '"') {
    length = std::min(rest.find('"', 1), rest.size() - 1) + 1;
  } else if (!is_one_of(rest[0], kPunctuation)) {
    while (length < rest.size() && !is_space(rest[length]) &&
           !is_one_of(rest[length], kPunctuation)) {
      ++length;
    }
  }
  const auto token = rest.substr(0, length);
  return in_quotes(token.substr(0, valid_utf8_prefix(token)));
}

void SafetensorsText::skip_space() {
  while (position_ < text_.size() && is_space(text_[position_])) ++position_;
}

void SafetensorsText::refuse_syntax(std::string_view expected) {
  const auto found = next();
  refuse(Kind::kInvalidJson, path_, "header must have ", expected, " at ", position_, ", got ",
         found);
}

void SafetensorsText::require_value(char first, Kind kind, const SafetensorsLocation& location,
                                    std::string_view type) {
  if (consume(first)) return;
  if (at_end() || !starts_value(text_[position_])) refuse_syntax("a value");
  refuse(kind, path_, location, " must be ", type, ", got ", next());
}

/// The rest of a string whose opening quote has been read.
std::string SafetensorsText::decode_string() {
  auto end = position_;
  while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) {
    refuse(Kind::kInvalidJson, path_, "header must close the string that starts at ", position_ - 1,
           ", got the end of the header");
  }
  std::string decoded;
  decoded.reserve(end - position_);
  while (position_ < end) {
    const char c = text_[position_];
    if (static_cast<unsigned char>(c) < 0x20) {
      refuse(Kind::kInvalidJson, path_, "header must escape control characters, got byte ",
             static_cast<int>(c), " at ", position_);
    }
    ++position_;
    if (c == '\\') {
      decode_escape(decoded);
    } else {
      decoded.push_back(c);
    }
  }
  ++position_;  // the closing quote
  return decoded;
}

/// The rest of an escape sequence whose backslash has been read. Its string is known to be closed,
/// so there is a next character.
void SafetensorsText::decode_escape(std::string& decoded) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const auto start = position_ - 1;
  const char letter = text_[position_++];
  if (letter != 'u') {
    const auto found = kLetters.find(letter);
    if (found == std::string_view::npos) {
      refuse(Kind::kInvalidJson, path_, "header must have an escape sequence of JSON at ", start,
             ", got ", in_quotes(text_.substr(start, 2)));
    }
    decoded.push_back(kMeanings[found]);
    return;
  }
  auto character = hex_digits();
  if (character == 0) {
    refuse(Kind::kNulCharacter, path_, "header must hold no NUL, got one at ", start);
  }
  if (0xd800 <= character && character < 0xe000) {
    std::uint32_t low = 0;
    if (character < 0xdc00 && text_.substr(position_).starts_with("\\u")) {
      position_ += 2;
      low = hex_digits();
    }
    if (low < 0xdc00 || low >= 0xe000) {
      refuse(Kind::kLoneSurrogate, path_, "header must have surrogates in pairs, got ",
             in_quotes(text_.substr(start, 6)), " alone at ", start);
    }
    character = 0x10000 + ((character - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(decoded, character);
}

std::uint32_t SafetensorsText::hex_digits() {
  constexpr std::size_t kDigits = 4;
  const auto digits = text_.substr(position_, kDigits);
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + kDigits) {
    refuse(Kind::kInvalidJson, path_, "header must have four hexadecimal digits at ", position_,
           ", got ", in_quotes(digits));
  }
  position_ += kDigits;
  return value;
}

}  // namespace moegrad
