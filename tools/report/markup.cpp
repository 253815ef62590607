// SPDX-License-Identifier: Apache-2.0
#include "tools/report/markup.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "framework/runtime/utf8.h"

namespace moegrad::tools {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '&':
      out += "&amp;";
      return;
    case '<':
      out += "&lt;";
      return;
    case '>':
      out += "&gt;";
      return;
    case '"':
      out += "&quot;";
      return;
    case '\'':
      out += "&#39;";
      return;
    default:
      break;
  }
  const auto byte = static_cast<unsigned char>(c);
  const bool control = byte < 0x20 && c != '\t' && c != '\n' && c != '\r';
  if (control) {
    out += kReplacement;
  } else {
    out += c;
  }
}

// Whether the text starts with U+FFFE or U+FFFF, which are UTF-8 but not characters of XML.
bool starts_with_noncharacter(std::string_view text) {
  return text.starts_with("\xEF\xBF\xBE") || text.starts_with("\xEF\xBF\xBF");
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto valid = text.substr(0, valid_utf8_prefix(text));
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (starts_with_noncharacter(valid.substr(i))) {
        out += kReplacement;
        i += 2;
      } else {
        append_escaped(out, valid[i]);
      }
    }
    text.remove_prefix(valid.size());
    if (text.empty()) break;
    out += kReplacement;
    text.remove_prefix(1);
  }
  return out;
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  // Room for the largest double.
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fixed(bytes, unit == 0 ? 0 : 2) + kUnits[unit];
}

std::string format_seconds(double seconds) {
  if (seconds >= 7200) return fixed(seconds / 3600, 1) + " h";
  if (seconds >= 120) return fixed(seconds / 60, 1) + " min";
  return fixed(seconds, 1) + " s";
}

}  // namespace moegrad::tools
