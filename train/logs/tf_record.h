// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

}  // namespace moegrad::training
