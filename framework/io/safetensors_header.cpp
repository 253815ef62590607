// SPDX-License-Identifier: Apache-2.0
#include "framework/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <tuple>
#include <utility>

#include "framework/io/safetensors_text.h"
#include "framework/runtime/utf8.h"
#include "framework/tensor/shape.h"

namespace moegrad {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

using Kind = SafetensorsError::Kind;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kAlignment = 8;

/// The number of objects within the outermost one. It is an upper bound of the number of tensors,
/// and their exact number if the header is sound. With it entries are stored without growing a
/// vector, which would take three times their size for a moment.
std::size_t count_tensors(std::string_view header) {
  constexpr std::string_view kSmallest = R"("":{"dtype":"U8","shape":[],"data_offsets":[0,1]})";
  std::size_t objects = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (header[i] == '"') {
      in_string = !in_string;
    } else if (header[i] == '\\') {
      ++i;
    } else if (header[i] == '{' && !in_string) {
      ++objects;
    }
  }
  return std::min(objects, header.size() / kSmallest.size());
}

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& path) : text_(text, path), path_(path) {
    header_.entries.reserve(count_tensors(text));
  }

  SafetensorsHeader parse() {
    text_.enter('{', Kind::kHeaderNotObject, {"header"});
    for_each_member([&](std::string name) {
      if (name == kSafetensorsMetadataKey) {
        parse_metadata();
      } else {
        header_.entries.push_back(parse_entry(std::move(name)));
      }
    });
    if (!text_.at_end()) {
      refuse(Kind::kTextAfterHeader, path_, "header must end after its object, got ", text_.next());
    }
    return std::move(header_);
  }

 private:
  /// The members of the object that has just been entered.
  template <class Member>
  void for_each_member(const Member& member) {
    if (text_.consume('}')) return;
    do {
      std::string key = text_.key();
      text_.expect(':');
      member(std::move(key));
    } while (text_.consume(','));
    text_.expect('}');
  }

  template <class Element>
  void for_each_element(const Element& element) {
    if (text_.consume(']')) return;
    do {
      element();
    } while (text_.consume(','));
    text_.expect(']');
  }

  void parse_metadata() {
    if (has_metadata_) {
      refuse(Kind::kDuplicateMetadata, path_, "header must have one __metadata__, got another");
    }
    has_metadata_ = true;
    if (text_.consume("null")) return;
    text_.enter('{', Kind::kMetadataNotObject, {kSafetensorsMetadataKey});
    for_each_member([&](std::string key) {
      if (header_.metadata.contains(key)) {
        refuse(Kind::kDuplicateMetadata, path_, "keys of __metadata__ must differ, got ",
               in_quotes(key), " twice");
      }
      if (header_.metadata.size() == kMaxSafetensorsMetadata) {
        refuse(Kind::kTooMuchMetadata, path_, "__metadata__ must have at most ",
               kMaxSafetensorsMetadata, " keys, got more");
      }
      std::string value = text_.string(Kind::kMetadataNotString, {"__metadata__ value", key});
      header_.metadata.emplace(std::move(key), std::move(value));
    });
  }

  SafetensorsEntry parse_entry(std::string name) {
    SafetensorsEntry entry;
    entry.name = std::move(name);
    bool has_dtype = false, has_shape = false, has_offsets = false;
    const auto set_once = [&](bool& seen, const std::string& field) {
      if (seen) {
        refuse(Kind::kDuplicateField, path_, "fields of ", in_quotes(entry.name),
               " must differ, got '", field, "' twice");
      }
      seen = true;
    };
    text_.enter('{', Kind::kEntryNotObject, {"entry", entry.name});
    for_each_member([&](const std::string& field) {
      if (field == "dtype") {
        set_once(has_dtype, field);
        entry.dtype = parse_dtype(entry.name);
      } else if (field == "shape") {
        set_once(has_shape, field);
        entry.shape = parse_shape(entry.name);
      } else if (field == "data_offsets") {
        set_once(has_offsets, field);
        std::tie(entry.begin, entry.end) = parse_offsets(entry.name);
      } else {
        text_.skip_value();
      }
    });
    if (!has_dtype || !has_shape || !has_offsets) {
      refuse(Kind::kMissingField, path_, in_quotes(entry.name),
             " must have dtype, shape and data_offsets, got no ",
             !has_dtype   ? "dtype"
             : !has_shape ? "shape"
                          : "data_offsets");
    }
    check_size(entry);
    return entry;
  }

  SafetensorsDtype parse_dtype(const std::string& tensor) {
    const auto name = text_.string(Kind::kDtypeNotString, {"dtype", tensor});
    const auto dtype = safetensors_dtype(name);
    if (!dtype.has_value()) {
      refuse(Kind::kUnknownDtype, path_, "dtype of ", in_quotes(tensor), " must be one of the ",
             kSafetensorsDtypes, " of the format, got ", in_quotes(name));
    }
    return *dtype;
  }

  SafetensorsShape parse_shape(const std::string& tensor) {
    std::array<std::int64_t, kMaxSafetensorsDims> dims = {};
    std::size_t count = 0;
    text_.enter('[', Kind::kShapeNotArray, {"shape", tensor});
    for_each_element([&] {
      const auto dim =
          text_.unsigned_integer({"shape", tensor}, std::numeric_limits<std::int64_t>::max());
      if (count == dims.size()) {
        refuse(Kind::kTooManyDims, path_, "shape of ", in_quotes(tensor), " must have at most ",
               dims.size(), " dimensions, got more");
      }
      dims[count++] = static_cast<std::int64_t>(dim);
    });
    return SafetensorsShape(std::span(dims).first(count));
  }

  std::pair<std::uint64_t, std::uint64_t> parse_offsets(const std::string& tensor) {
    std::array<std::uint64_t, 2> offsets = {};
    std::size_t count = 0;
    text_.enter('[', Kind::kOffsetsNotPair, {"data_offsets", tensor});
    for_each_element([&] {
      const auto offset = text_.unsigned_integer({"data_offsets", tensor},
                                                 std::numeric_limits<std::uint64_t>::max());
      if (count < offsets.size()) offsets[count] = offset;
      ++count;
    });
    if (count != offsets.size()) {
      refuse(Kind::kOffsetsNotPair, path_, "data_offsets of ", in_quotes(tensor),
             " must be two integers, got ", count);
    }
    return {offsets[0], offsets[1]};
  }

  void check_size(const SafetensorsEntry& entry) const {
    const auto& [name, shape, dtype, begin, end] = entry;
    if (begin > end) {
      refuse(Kind::kOffsetsReversed, path_, "data_offsets of ", in_quotes(name),
             " must rise, got [", begin, ", ", end, "]");
    }
    const auto bytes = safetensors_bytes(dtype, shape.dims(), path_, name);
    if (end - begin != bytes) {
      refuse(Kind::kSizeMismatch, path_, "data_offsets of ", in_quotes(name), " must span ", bytes,
             " bytes for ", Shape(shape.dims()), " of ", dtype, ", got [", begin, ", ", end, "]");
    }
  }

  SafetensorsText text_;
  const std::string& path_;
  SafetensorsHeader header_;
  bool has_metadata_ = false;
};

void order_by_offset(std::vector<SafetensorsEntry>& entries) {
  std::ranges::sort(entries, {}, [](const SafetensorsEntry& entry) {
    return std::tie(entry.begin, entry.end, entry.name);
  });
}

/// Checks that the ranges follow each other without gap from 0 to `data_bytes`.
void check_offsets(const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                   const std::string& path) {
  std::uint64_t expected = 0;
  for (const auto& entry : entries) {
    if (entry.begin != expected) {
      const bool hole = entry.begin > expected;
      refuse(hole ? Kind::kHole : Kind::kOverlap, path, in_quotes(entry.name), " must begin at ",
             expected, ", after the tensors before it, got ", entry.begin);
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    refuse(expected > data_bytes ? Kind::kDataMissing : Kind::kDataLeftOver, path,
           "data must have the ", expected, " bytes of its tensors, got ", data_bytes);
  }
}

std::vector<std::uint32_t> order_by_name(const std::vector<SafetensorsEntry>& entries,
                                         const std::string& path) {
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto name = [&](std::uint32_t i) -> const std::string& { return entries[i].name; };
  std::ranges::sort(order, {}, name);
  const auto twice = std::ranges::adjacent_find(order, {}, name);
  if (twice != order.end()) {
    refuse(Kind::kDuplicateTensor, path, "names of tensors must differ, got ",
           in_quotes(name(*twice)), " twice");
  }
  return order;
}

void require_length(std::uint64_t length, const std::string& path) {
  if (length > kMaxSafetensorsHeaderBytes) {
    refuse(Kind::kHeaderTooLong, path, "header must have at most ", kMaxSafetensorsHeaderBytes,
           " bytes, got ", length);
  }
}

/// A string as JSON; escapes what the reference implementation escapes.
void append_json(std::string& text, std::string_view string) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  constexpr std::string_view kHex = "0123456789abcdef";
  text += '"';
  for (const char c : string) {
    const auto byte = static_cast<unsigned char>(c);
    const auto found = kEscaped.find(c);
    if (found != std::string_view::npos) {
      text += '\\';
      text += kLetters[found];
    } else if (byte < 0x20) {
      text += "\\u00";
      text += kHex[byte >> 4];
      text += kHex[byte & 0xf];
    } else {
      text += c;
    }
  }
  text += '"';
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      by_name, name, {}, [&](std::uint32_t i) { return std::string_view(entries[i].name); });
  return found != by_name.end() && entries[*found].name == name ? &entries[*found] : nullptr;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& path) {
  if (file.size() < kLengthBytes) {
    refuse(Kind::kFileTooShort, path, "file must have at least ", kLengthBytes, " bytes, got ",
           file.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const auto after_length = file.size() - kLengthBytes;
  require_length(length, path);
  if (length > after_length) {
    refuse(Kind::kHeaderPastEnd, path, "header must end within the ", after_length,
           " bytes after its length, got ", length);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  return parse_safetensors_header(text, after_length - length, path);
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& path) {
  require_length(text.size(), path);
  SafetensorsHeader header = HeaderParser(text, path).parse();
  header.data_begin = kLengthBytes + text.size();
  order_by_offset(header.entries);
  // Names are checked first: a tensor that appears twice should not be reported as an overlap.
  header.by_name = order_by_name(header.entries, path);
  check_offsets(header.entries, data_bytes, path);
  return header;
}

std::string format_safetensors_header(const std::vector<SafetensorsEntry>& entries,
                                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&] {
    if (text.back() != '{') text += ',';
  };
  if (!metadata.empty()) {
    append_json(text, kSafetensorsMetadataKey);
    text += ":{";
    for (const auto& [key, value] : metadata) {
      separate();
      append_json(text, key);
      text += ':';
      append_json(text, value);
    }
    text += '}';
  }
  for (const auto& [name, shape, dtype, begin, end] : entries) {
    separate();
    append_json(text, name);
    text.append(R"(:{"dtype":")").append(to_string(dtype)).append(R"(","shape":[)");
    const auto dims = shape.dims();
    for (std::size_t i = 0; i < dims.size(); ++i) {
      text.append(i == 0 ? "" : ",").append(std::to_string(dims[i]));
    }
    text.append(R"(],"data_offsets":[)").append(std::to_string(begin));
    text.append(",").append(std::to_string(end)).append("]}");
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

}  // namespace moegrad
