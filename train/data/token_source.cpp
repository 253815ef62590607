// SPDX-License-Identifier: Apache-2.0
#include "train/data/token_source.h"

#include <algorithm>
#include <utility>

#include "framework/io/crc32c.h"
#include "framework/runtime/error.h"
#include "train/data/king_james.h"

namespace moegrad::training {

namespace {

constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 36;
constexpr std::int64_t kBlock = 1 << 20;  // bytes that are read at once

}  // namespace

TokenSource TokenSource::text_file(const std::string& path) {
  if (path.empty()) return text(read_king_james(), "King James text");
  return text(read_input_file(path, "text", kMostTextBytes), path);
}

TokenSource TokenSource::text(std::string text, const std::string& name) {
  check<ValueError>(!text.empty(), "text: '", name, "' is empty");
  TokenSource source(name, 1);
  source.text_ = std::move(text);
  source.size_ = std::ssize(source.text_);
  source.checksum_ = crc32c(std::as_bytes(std::span(source.text_)));
  return source;
}

TokenSource TokenSource::tokenized_file(const std::string& path, TokenDtype dtype,
                                        std::int64_t vocab_size) {
  TokenSource source(path, dtype == TokenDtype::kUInt16 ? 2 : 4);
  source.file_.emplace(path, "data");
  const auto bytes = source.file_->size();
  check<ValueError>(bytes > 0, "data: '", path, "' is empty");
  check<ValueError>(bytes % source.token_bytes_ == 0, "data: '", path, "' must be a multiple of ",
                    source.token_bytes_, " bytes long, the size of an id, got ", bytes);
  source.size_ = bytes / source.token_bytes_;
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < bytes; at += std::ssize(block)) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, bytes - at)));
    source.file_->read(at, block);
    source.checksum_ = crc32c(block, source.checksum_);
    for (std::int64_t i = 0; i < std::ssize(block) / source.token_bytes_; ++i) {
      const auto id = source.decode(block, i);
      check<ValueError>(id < vocab_size, "data: ids in '", path,
                        "' must be below the model's vocab_size ", vocab_size, ", got ", id,
                        " at position ", at / source.token_bytes_ + i);
    }
  }
  return source;
}

std::int64_t TokenSource::decode(std::span<const std::byte> bytes, std::int64_t index) const {
  const auto token = bytes.subspan(static_cast<std::size_t>(index * token_bytes_));
  std::int64_t id = 0;
  for (std::int64_t i = 0; i < token_bytes_; ++i) {
    id |= std::to_integer<std::int64_t>(token[static_cast<std::size_t>(i)]) << 8 * i;
  }
  return id;
}

std::vector<std::int64_t> TokenSource::read(std::int64_t first, std::int64_t count) const {
  std::vector<std::byte> from_file;
  auto bytes = std::as_bytes(std::span(text_));
  if (file_) {
    from_file.resize(static_cast<std::size_t>(count * token_bytes_));
    file_->read(first * token_bytes_, from_file);
    bytes = from_file;
  } else {
    bytes = bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = decode(bytes, i);
  return tokens;
}

std::string_view TokenSource::as_text() const {
  check(is_text(), "data: '", name_, "' holds token ids, no text");
  return text_;
}

std::string TokenSource::describe() const {
  return std::to_string(size()) +
         (is_text() ? " bytes" : " ids of " + std::to_string(token_bytes_) + " bytes") +
         " with CRC-32C " + std::to_string(checksum_);
}

}  // namespace moegrad::training
