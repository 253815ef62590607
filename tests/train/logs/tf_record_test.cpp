// SPDX-License-Identifier: Apache-2.0
#include "train/logs/tf_record.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/framework/io/files.h"

namespace moegrad::training::tf_record_test {
namespace {

using test::little_endian;

// The checksum of length 24 is in the first line of every event file that TensorFlow writes.
// The others come from the definition, computed bit by bit elsewhere.
TEST(TfRecord, MasksTheChecksum) {
  EXPECT_EQ(masked_crc32c(little_endian(24)), 0x224b7fa3U);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5U);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8U);
}

TEST(TfRecord, IsLengthDataAndAChecksumOfEach) {
  const std::string expected("\x09\0\0\0\0\0\0\0", 8);
  const auto record = to_tf_record("123456789");
  ASSERT_EQ(record.size(), 8U + 4 + 9 + 4);
  EXPECT_EQ(record.substr(0, 8), expected);
  EXPECT_EQ(record.substr(12), "123456789\xe5\xb0\x8a\xc7");
}

}  // namespace
}  // namespace moegrad::training::tf_record_test
