// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>

#include "framework/io/safetensors_format.h"

namespace moegrad {

/// Throws SafetensorsError `safetensors: <path>: <parts>` of that kind.
template <class... Parts>
[[noreturn]] void refuse(SafetensorsError::Kind kind, const std::string& path,
                         const Parts&... parts) {
  std::ostringstream message;
  message << "safetensors: " << path << ": ";
  (message << ... << parts);
  throw SafetensorsError(kind, message.str());
}

/// A value of the header, as messages name it: "dtype of 'a'".
struct SafetensorsLocation {
  std::string_view field;
  std::string_view tensor = {};  // may be empty
};
std::ostream& operator<<(std::ostream& out, const SafetensorsLocation& location);

/// A cursor over a header's JSON. Every function first skips white space, and throws
/// SafetensorsError for what is not JSON.
///
/// Tokens are decoded straight from the mapped header. Only the strings that are asked for are
/// copied, so memory is bounded by what the header really contains, even if it is one token of
/// 100 MB. (A general parser buffers each token first: nlohmann's takes 4 to 10 times its size.)
class SafetensorsText {
 public:
  using Kind = SafetensorsError::Kind;

  /// Refuses text that starts with a byte order mark, is not UTF-8 or holds a NUL. Both arguments
  /// must outlive this object.
  SafetensorsText(std::string_view text, const std::string& path);

  bool at_end();
  /// Steps over `c` if it is next.
  bool consume(char c);
  /// Steps over the word if it is next.
  bool consume(std::string_view word);
  /// Steps over `c`, which JSON demands here.
  void expect(char c);
  /// The string that JSON demands here: a key.
  std::string key();

  /// The string value that follows. A value of another type is refused with `kind`: "<location>
  /// must be a string, got <its first characters>".
  std::string string(Kind kind, const SafetensorsLocation& location);
  std::uint64_t unsigned_integer(const SafetensorsLocation& location, std::uint64_t max);
  /// Steps over the '{' or '[' that opens an object or an array.
  void enter(char open, Kind kind, const SafetensorsLocation& location);

  /// Steps over any value. Its arrays and objects may be kMaxSafetensorsDepth levels deep.
  void skip_value(std::size_t depth = 0);

  /// The first characters of what follows, for messages.
  std::string next();

 private:
  void skip_space();
  [[noreturn]] void refuse_syntax(std::string_view expected);
  void require_value(char first, Kind kind, const SafetensorsLocation& location,
                     std::string_view type);
  void skip_number();
  std::string decode_string();
  void decode_escape(std::string& decoded);
  std::uint32_t hex_digits();

  std::string_view text_;
  std::size_t position_ = 0;
  const std::string& path_;
};

}  // namespace moegrad
