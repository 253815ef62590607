// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moegrad::training {

/// The checksum of a record's parts: CRC-32C rotated right by 15 bits, plus a constant. (The CRC of
/// a text that contains its own CRC is a weak checksum.)
std::uint32_t masked_crc32c(std::string_view bytes);

/// `data` as a record of a TFRecord file:
///
///     length u64 | masked_crc32c(length) u32 | data | masked_crc32c(data) u32    little-endian
///
/// Reference: https://www.tensorflow.org/tutorials/load_data/tfrecord
std::string to_tf_record(std::string_view data);

/// A cursor over the records of a file. Both arguments must outlive this object.
class TfRecordReader {
 public:
  TfRecordReader(std::string_view file, const std::string& who) : file_(file), who_(who) {}

  /// The data of the next record. Nothing at the end, or if the file ends inside a record because
  /// its writer was killed. A wrong checksum throws ValueError
  /// `<who>: record at byte <offset>: checksum of its <part> must be <n>, got <n>`.
  std::optional<std::string_view> next();
  /// The position at which the next record begins.
  std::size_t offset() const { return offset_; }

 private:
  std::string_view file_;
  const std::string& who_;
  std::size_t offset_ = 0;
};

}  // namespace moegrad::training
