// SPDX-License-Identifier: Apache-2.0
#include "train/data/token_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/runtime/mpi_environment.h"
#include "train/data/king_james.h"

namespace moegrad::training {

namespace {

constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 36;
constexpr std::int64_t kBlock = 1 << 20;  // bytes that are read at once

constexpr std::string_view kNumpyMagic = "\x93NUMPY";

// The header of a shard of llm.c, which modded-nanogpt writes, too: 256 int32, of which the first
// three are a magic number, a version, and the number of ids that follow.
constexpr std::int64_t kLlmcHeaderBytes = 1024;
struct LlmcFormat {
  std::int64_t magic, version, id_bytes;
};
constexpr LlmcFormat kLlmcFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

std::int64_t little_endian(std::span<const std::byte> bytes) {
  std::int64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::to_integer<std::int64_t>(bytes[i]) << 8 * i;
  }
  return value;
}

// All three numbers together: each alone may be a pair of ids.
bool is_llmc_header(std::span<const std::byte> begin, std::int64_t bytes) {
  if (bytes < kLlmcHeaderBytes) return false;
  const auto number = [&](std::size_t i) { return little_endian(begin.subspan(4 * i, 4)); };
  return std::ranges::any_of(kLlmcFormats, [&](const LlmcFormat& format) {
    return number(0) == format.magic && number(1) == format.version &&
           number(2) * format.id_bytes == bytes - kLlmcHeaderBytes;
  });
}

void refuse_headers(const InputFile& file, const std::string& path) {
  std::array<std::byte, 12> begin{};
  file.read(0, std::span(begin).first(
                   static_cast<std::size_t>(std::min(std::ssize(begin), file.size()))));
  const std::string_view text(reinterpret_cast<const char*>(begin.data()), begin.size());
  check<ValueError>(!text.starts_with(kNumpyMagic), "data: '", path,
                    "' must be ids alone, got the header of a NumPy file; write them with "
                    "array.tofile(), not with numpy.save()");
  check<ValueError>(!is_llmc_header(begin, file.size()), "data: '", path,
                    "' must be ids alone, got the header of llm.c, ", kLlmcHeaderBytes,
                    " bytes; leave it out, as with tail -c +", kLlmcHeaderBytes + 1);
}

// Whether ids are stored wider than they are read: then an id is followed by its upper part, which
// is 0, or at most what the largest id of the vocabulary has there.
class WidthWatch {
 public:
  WidthWatch(std::int64_t token_bytes, std::int64_t vocab_size)
      : token_bytes_(token_bytes), most_((vocab_size - 1) >> 8 * token_bytes) {}

  void add(std::int64_t id) { large_[static_cast<std::size_t>(count_++ % 4)] |= id > most_; }

  // The bytes that an id seems to take; none if as many as it is read with.
  std::optional<std::int64_t> seems() const {
    constexpr std::int64_t kCertain = 256;  // ids: no text has a 0 at every second position
    const auto [first, second, third, fourth] = large_;
    if (count_ < kCertain || second || fourth || !(first || third)) return std::nullopt;
    return token_bytes_ == 2 && !third ? 8 : 2 * token_bytes_;
  }

  std::string upper_part() const {
    return most_ == 0 ? "0" : "a number up to " + std::to_string(most_);
  }

 private:
  std::int64_t token_bytes_;
  std::int64_t most_;
  std::int64_t count_ = 0;
  std::array<bool, 4> large_ = {};  // by position, modulo 4
};

void check_width(const WidthWatch& watch, const std::string& path,
                 std::optional<TokenDtype> given) {
  const auto seems = watch.seems();
  if (!seems) return;
  const auto what = "got " + watch.upper_part() + " at every second position, as if each took " +
                    std::to_string(*seems) + " bytes";
  const bool is_uint32 = given == TokenDtype::kUInt32;
  const auto must = "data: ids in '" + path + "' must be " + (is_uint32 ? "uint32" : "uint16");
  check<ValueError>(given.has_value(), must, ", ", what,
                    *seems == 4 ? "; say which they are with --data-dtype uint32 or uint16"
                                : "; write them as uint16 or uint32");
  if (is_first_process()) log(LogLevel::kWarning, must + " as --data-dtype says, " + what);
}

}  // namespace

TokenSource TokenSource::text_file(const std::string& path) {
  if (path.empty()) return text(read_king_james(), "King James text");
  return text(read_input_file(path, "text", kMostTextBytes), path);
}

TokenSource TokenSource::text(std::string text, const std::string& name) {
  check<ValueError>(!text.empty(), "text: '", name, "' is empty");
  TokenSource source(name, 1, 256);
  source.text_ = std::move(text);
  source.size_ = std::ssize(source.text_);
  source.checksum_ = crc32c(std::as_bytes(std::span(source.text_)));
  return source;
}

TokenSource TokenSource::tokenized_file(const std::string& path, std::optional<TokenDtype> dtype,
                                        std::int64_t vocab_size) {
  check<ValueError>(dtype || vocab_size <= kMostUInt16Ids, "data: the type of the ids in '", path,
                    "' must be given for a vocab_size above ", kMostUInt16Ids,
                    ", most of which uint16 does not hold, got none for ", vocab_size);
  TokenSource source(path, dtype == TokenDtype::kUInt32 ? 4 : 2, vocab_size);
  source.file_.emplace(path, "data");
  const auto bytes = source.file_->size();
  check<ValueError>(bytes > 0, "data: '", path, "' is empty");
  refuse_headers(*source.file_, path);
  check<ValueError>(bytes % source.token_bytes_ == 0, "data: '", path, "' must be a multiple of ",
                    source.token_bytes_, " bytes long, the size of an id, got ", bytes);
  source.size_ = bytes / source.token_bytes_;
  WidthWatch watch(source.token_bytes_, vocab_size);
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
      watch.add(id);
    }
  }
  check_width(watch, path, dtype);
  return source;
}

void TokenSource::take_target_mask(const std::string& path) {
  mask_.emplace(path, "target mask");
  check<ValueError>(mask_->size() == size_, "target mask: '", path,
                    "' must have a byte for each of the ", size_, " ", unit(), " of '", name_,
                    "', got ", mask_->size());
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < size_; at += std::ssize(block)) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, size_ - at)));
    mask_->read(at, block);
    mask_checksum_ = crc32c(block, mask_checksum_);
  }
}

void TokenSource::leave_out(std::int64_t first, std::span<std::int64_t> targets) const {
  if (!mask_) return;
  constexpr std::int64_t kNoTarget = -100;
  std::vector<std::byte> kept(targets.size());
  mask_->read(first, kept);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (kept[i] == std::byte{0}) targets[i] = kNoTarget;
  }
}

std::int64_t TokenSource::decode(std::span<const std::byte> bytes, std::int64_t index) const {
  return little_endian(bytes.subspan(static_cast<std::size_t>(index * token_bytes_),
                                     static_cast<std::size_t>(token_bytes_)));
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
         " with CRC-32C " + std::to_string(checksum_) +
         (mask_ ? ", target mask with CRC-32C " + std::to_string(mask_checksum_) : "");
}

}  // namespace moegrad::training
