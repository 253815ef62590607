// SPDX-License-Identifier: Apache-2.0
#include "examples/token_source.h"

#include <utility>

#include "examples/king_james.h"
#include "framework/io/crc32c.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {

TokenSource TokenSource::text_file(const std::string& path) {
  if (path.empty()) return text(read_king_james(), "King James text");
  TokenSource source(path, 1);
  source.file_.emplace(path, "text");
  check<ValueError>(source.size() > 0, "text: '", path, "' is empty");
  source.checksum_ = crc32c(source.bytes());
  return source;
}

TokenSource TokenSource::text(std::string text, const std::string& name) {
  check<ValueError>(!text.empty(), "text: '", name, "' is empty");
  TokenSource source(name, 1);
  source.text_ = std::move(text);
  source.checksum_ = crc32c(source.bytes());
  return source;
}

TokenSource TokenSource::tokenized_file(const std::string& path, TokenDtype dtype,
                                        std::int64_t vocab_size) {
  TokenSource source(path, dtype == TokenDtype::kUInt16 ? 2 : 4);
  source.file_.emplace(path, "data");
  const auto bytes = std::ssize(source.bytes());
  check<ValueError>(bytes > 0, "data: '", path, "' is empty");
  check<ValueError>(bytes % source.token_bytes_ == 0, "data: '", path, "' must be a multiple of ",
                    source.token_bytes_, " bytes long, the size of an id, got ", bytes);
  for (std::int64_t i = 0; i < source.size(); ++i) {
    check<ValueError>(source[i] < vocab_size, "data: ids in '", path,
                      "' must be below the model's vocab_size ", vocab_size, ", got ", source[i],
                      " at position ", i);
  }
  source.checksum_ = crc32c(source.bytes());
  return source;
}

std::int64_t TokenSource::operator[](std::int64_t index) const {
  const auto* const token = bytes().data() + index * token_bytes_;
  std::int64_t id = 0;
  for (std::int64_t i = 0; i < token_bytes_; ++i) {
    id |= std::to_integer<std::int64_t>(token[i]) << 8 * i;
  }
  return id;
}

std::string_view TokenSource::as_text() const {
  check(is_text(), "data: '", name_, "' holds token ids, no text");
  return {reinterpret_cast<const char*>(bytes().data()), bytes().size()};
}

std::string TokenSource::describe() const {
  return std::to_string(size()) +
         (is_text() ? " bytes" : " ids of " + std::to_string(token_bytes_) + " bytes") +
         " with CRC-32C " + std::to_string(checksum_);
}

std::span<const std::byte> TokenSource::bytes() const {
  return file_ ? file_->bytes() : std::as_bytes(std::span(text_));
}

}  // namespace moegrad::examples
