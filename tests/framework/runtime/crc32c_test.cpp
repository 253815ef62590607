// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/framework/io/files.h"

namespace moegrad::crc32c_test {
namespace {

using test::as_bytes;

// One bit after the other, as the definition has it.
std::uint32_t by_definition(std::string_view message) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : message) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

// RFC 3720, appendix B.4, and the check value that every description of the checksum gives.
TEST(Crc32c, HasThePublishedValues) {
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(as_bytes(std::string(32, '\0'))), 0x8a9136aaU);
  EXPECT_EQ(crc32c(as_bytes(std::string(32, '\xff'))), 0x62a8ab43U);
  EXPECT_EQ(crc32c(as_bytes(ascending)), 0x46dd794eU);
  EXPECT_EQ(crc32c(as_bytes(descending)), 0x113fdb5cU);
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, OfEveryLengthAndInTwoPiecesIsThatOfTheDefinition) {
  std::string message;
  for (int i = 0; i < 70; ++i) {
    const auto whole = by_definition(message);
    EXPECT_EQ(crc32c(as_bytes(message)), whole) << i;
    for (const std::size_t cut : {std::size_t{0}, message.size() / 3, message.size()}) {
      const auto first = crc32c(as_bytes(message.substr(0, cut)));
      EXPECT_EQ(crc32c(as_bytes(message.substr(cut)), first), whole) << i << " cut at " << cut;
    }
    message += static_cast<char>(i * 73 + 41);
  }
}

}  // namespace
}  // namespace moegrad::crc32c_test
