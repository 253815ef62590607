// SPDX-License-Identifier: Apache-2.0
#include "train/logs/event_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "tests/train/logs/event_samples.h"
#include "train/logs/tf_record.h"

namespace moegrad::training::event_reader_test {
namespace {

using test::message_of;
using test::TemporaryFolder;

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
  for (const auto record : {kVersionRecord, kLossRecord, kNegativeStepRecord, kLoadRecord}) {
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
      const auto message = message_of<ValueError>([&] { read_event_file(path); });
      EXPECT_NE(message.find(": checksum of its "), std::string::npos) << i << ' ' << message;
    }
  }
  auto flipped = bytes;
  flipped[40 + 12] = 0;
  test::write_file(path, flipped);
  EXPECT_EQ(
      message_of<ValueError>([&] { read_event_file(path); }).substr(0, path.string().size() + 55),
      "event_reader: " + path.string() + ": record at byte 40: checksum of its data");
}

TEST(EventReader, StepsOverWhatItDoesNotKnow) {
  const TemporaryFolder folder;
  using namespace std::literals;
  // wall_time, source_metadata = 10, then a summary of an image (4), a value that has metadata (9)
  // and a field 2 of the summary.
  const auto event =
      "\x09\0\0\0\0\0\0\xf8\x3f\x52\x03\x0a\x01w"s
      "\x2a\x19\x0a\x07\x0a\x01i\x22\x02\x08\x01\x0a\x0c\x0a\x01s\x15\0\0\0\x40\x4a\x02\x12\0\x10\x05"s;
  test::write_file(folder / "file", from_hex(kVersionRecord) + to_tf_record(event));
  EXPECT_EQ(read_event_file(folder / "file").events,
            (std::vector<LogEvent>{{.wall_time = 1.5, .scalars = {{"s", 2}}}}));
}

TEST(EventReader, RefusesWhatIsNoEventFile) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const auto refusal = [&](const std::string& bytes) {
    test::write_file(path, bytes);
    const auto message = message_of<ValueError>([&] { read_event_file(path); });
    return message.substr(message.find(path.string()) + path.string().size());
  };
  EXPECT_EQ(refusal(to_tf_record("\x1a\x0d"
                                 "brain.Event:1")),
            ": file version must be 'brain.Event:2', got 'brain.Event:1'");
  EXPECT_EQ(refusal(to_tf_record("")), ": file version must be 'brain.Event:2', got ''");
  EXPECT_EQ(refusal(from_hex(kVersionRecord) + to_tf_record("\x2a\x05\x0a\x03\x0a\x01")),
            ": record at byte 40: must be a protocol buffer, got a field cut short");
  EXPECT_EQ(refusal(from_hex(kVersionRecord) + to_tf_record("\x12\x01\x01")),
            ": record at byte 40: field 2 must have wire type 0, got 2");
  EXPECT_EQ(message_of<Error>([&] { read_event_file(folder / "absent"); }),
            "event_reader: " + (folder / "absent").string() +
                ": must be a readable regular file, got No such file or directory");
}

}  // namespace
}  // namespace moegrad::training::event_reader_test
