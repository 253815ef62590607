// SPDX-License-Identifier: Apache-2.0
#include "train/logs/tf_record.h"

#include <bit>
#include <span>

#include "framework/runtime/crc32c.h"

namespace moegrad::training {
namespace {

static_assert(std::endian::native == std::endian::little);

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

}  // namespace moegrad::training
