// SPDX-License-Identifier: Apache-2.0
#include "tests/train/logs/event_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "tests/train/logs/event_samples.h"

namespace moegrad::training::event_reader_test {
namespace {

using namespace test;

TEST(EventReader, ReadsTheBytesOfTheFormat) {
  const TemporaryFolder folder;
  test::write_file(folder / "file", event_file_bytes());
  const auto file = read_event_file(folder / "file");
  EXPECT_EQ(file.events, events_of_the_file());
  EXPECT_EQ(file.bytes_left_out, 0U);
}

TEST(EventReader, StopsBeforeAnIncompleteRecordWhereverItIsCut) {
  const TemporaryFolder folder;
  const auto bytes = event_file_bytes();
  const auto events = events_of_the_file();
  std::vector<std::size_t> ends;  // of the records
  for (const auto record : kRecords) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + record.size() / 2);
  }
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    test::write_file(folder / "file", bytes.substr(0, size));
    const auto file = read_event_file(folder / "file");
    std::size_t whole = 0, end = 0;
    while (whole < ends.size() && ends[whole] <= size) end = ends[whole++];
    const auto count = whole == 0 ? 0 : whole - 1;
    EXPECT_EQ(file.events, std::vector(events.begin(), events.begin() + std::ssize(file.events)));
    EXPECT_EQ(file.events.size(), count) << size;
    EXPECT_EQ(file.bytes_left_out, size - end) << size;
  }
}

TEST(EventReader, RefusesEveryFlippedBit) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const auto bytes = event_file_bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      test::write_file(path, flipped);
      const auto message = message_of<Error>([&] { read_event_file(path); });
      EXPECT_TRUE(message.starts_with("event_reader: checksum of ")) << i << ' ' << message;
    }
  }
}

}  // namespace
}  // namespace moegrad::training::event_reader_test
