// SPDX-License-Identifier: Apache-2.0
#include "train/logs/tf_record.h"

#include <bit>
#include <cstring>
#include <span>

#include "framework/io/crc32c.h"
#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kLengthSize = 8, kChecksumSize = 4;

template <class T>
T read_at(std::string_view bytes, std::size_t offset) {
  T value = 0;
  std::memcpy(&value, bytes.substr(offset, sizeof value).data(), sizeof value);
  return value;
}

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8U;
}

std::string to_tf_record(std::string_view data) {
  const std::uint64_t length = data.size();
  const auto length_checksum = masked_crc32c(bytes_of(length));
  const auto data_checksum = masked_crc32c(data);
  std::string record(bytes_of(length));
  record += bytes_of(length_checksum);
  record += data;
  record += bytes_of(data_checksum);
  return record;
}

std::optional<std::string_view> TfRecordReader::next() {
  const auto rest = file_.substr(offset_);
  const auto verify = [&](std::string_view part, std::string_view bytes, std::uint32_t stored) {
    const auto expected = masked_crc32c(bytes);
    check<ValueError>(stored == expected, who_, ": record at byte ", offset_, ": checksum of its ",
                      part, " must be ", expected, ", got ", stored);
  };
  constexpr auto kBefore = kLengthSize + kChecksumSize;
  if (rest.size() < kBefore) return std::nullopt;
  verify("length", rest.substr(0, kLengthSize), read_at<std::uint32_t>(rest, kLengthSize));
  const auto length = read_at<std::uint64_t>(rest, 0);
  const auto after_head = rest.size() - kBefore;
  if (after_head < kChecksumSize || length > after_head - kChecksumSize) return std::nullopt;
  const auto data = rest.substr(kBefore, length);
  verify("data", data, read_at<std::uint32_t>(rest, kBefore + length));
  offset_ += kBefore + length + kChecksumSize;
  return data;
}

}  // namespace moegrad::training
