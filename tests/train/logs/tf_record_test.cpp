// SPDX-License-Identifier: Apache-2.0
#include "train/logs/tf_record.h"

#include <gtest/gtest.h>

#include <string>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::training::tf_record_test {
namespace {

using test::little_endian;
using test::message_of;

// The checksum of length 24 stands in the first line of every event file that TensorFlow writes.
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

TEST(TfRecord, AreReadOneAfterTheOther) {
  const auto file = to_tf_record("first") + to_tf_record("") + to_tf_record(std::string(999, 'x'));
  const std::string who = "here";
  TfRecordReader records(file, who);
  EXPECT_EQ(records.next(), "first");
  EXPECT_EQ(records.offset(), 21U);
  EXPECT_EQ(records.next(), "");
  EXPECT_EQ(records.next(), std::string(999, 'x'));
  EXPECT_EQ(records.next(), std::nullopt);
  EXPECT_EQ(records.offset(), file.size());
}

TEST(TfRecord, ThatIsIncompleteIsNotRead) {
  const std::string who = "here";
  const auto whole = to_tf_record("first");
  const auto cut = to_tf_record("second");
  for (std::size_t size = 0; size < cut.size(); ++size) {
    const auto file = whole + cut.substr(0, size);
    TfRecordReader records(file, who);
    EXPECT_EQ(records.next(), "first");
    EXPECT_EQ(records.next(), std::nullopt) << size;
    EXPECT_EQ(records.offset(), whole.size());
  }
  // A length that no file has, and its checksum.
  for (const auto length : {~0ULL, ~0ULL - 3, ~0ULL - 15, 1ULL << 63}) {
    auto file = little_endian(length);
    file += little_endian(masked_crc32c(file)).substr(0, 4) + "data and more";
    TfRecordReader records(file, who);
    EXPECT_EQ(records.next(), std::nullopt) << length;
  }
}

TEST(TfRecord, WithAWrongChecksumIsRefusedWithItsPlace) {
  const std::string who = "here";
  const auto whole = to_tf_record("first");
  auto file = whole + to_tf_record("123456789");
  file[whole.size() + 12 + 9 + 3] ^= 1;
  TfRecordReader records(file, who);
  records.next();
  EXPECT_EQ(message_of<ValueError>([&] { records.next(); }),
            "here: record at byte 21: checksum of its data must be 3347755237, got 3330978021");
  file = to_tf_record(std::string(24, 'x')).substr(0, 12);
  file[11] ^= 1;
  TfRecordReader head(file, who);
  EXPECT_EQ(message_of<ValueError>([&] { head.next(); }),
            "here: record at byte 0: checksum of its length must be 575373219, got 592150435");
}

}  // namespace
}  // namespace moegrad::training::tf_record_test
