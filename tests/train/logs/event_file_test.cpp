// SPDX-License-Identifier: Apache-2.0
#include "train/logs/event_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/framework/io/watched_calls.h"
#include "tests/testing.h"
#include "tests/train/logs/event_reader.h"
#include "tests/train/logs/event_samples.h"

namespace moegrad::training::event_file_test {
namespace {

using namespace test;

/// 1.5, then one second later at each call.
std::function<double()> clock_from(double start = 1.5) {
  return [now = start - 1]() mutable { return now += 1; };
}

TEST(EventFileWriter, WritesTheBytesOfTheFormat) {
  const TemporaryFolder folder;
  double now = 1.5;
  EventFileWriter writer(folder / "run", [&] { return now; });
  now = 2.5;
  writer.add_scalar("loss", 2.5, 300);
  now = 3;
  writer.add_scalar("loss", -0.1, -2);
  now = 4;
  writer.add_histogram("load", std::vector<std::int64_t>{0, 3, 0, 1, 0}, 7);
  now = 5;
  writer.start_session(128);
  EXPECT_EQ(read_file(writer.path()), event_file_bytes());
}

// Readers take files in the order of their names.
TEST(EventFileWriter, NamesAFileAfterEarlierOnesThoughTheClockHasBeenSetBack) {
  const TemporaryFolder folder;
  auto last = EventFileWriter(folder / "", clock_from(1000)).path();
  for (int i = 0; i < 12; ++i) {
    const EventFileWriter next(folder / "", clock_from(999));
    EXPECT_GT(next.path(), last);
    last = next.path();
  }
  const EventFileWriter later(folder / "", clock_from(2000));
  EXPECT_EQ(later.path().filename(), "events.out.tfevents.0000002000.moegrad.0");
}

TEST(EventFileWriter, IsReadBack) {
  const TemporaryFolder folder;
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EventFileWriter writer(folder / "a" / "b", clock_from(100));
  const std::vector<std::int64_t> none = {0, 0}, many(200, 1000);
  writer.add_scalar("loss/ü", 1e300, 0);
  writer.add_scalar(std::string(300, 'x'), -INFINITY, kMost);
  writer.add_scalar("nan", NAN, 1);
  writer.add_histogram("none", none, 2);
  writer.add_histogram("many", many, -kMost - 1);
  const auto [events, left_out] = read_event_file(writer.path());
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(left_out, 0U);
  EXPECT_EQ(events[0], (LogEvent{.wall_time = 101, .step = 0, .scalars = {{"loss/ü", INFINITY}}}));
  EXPECT_EQ(
      events[1],
      (LogEvent{.wall_time = 102, .step = kMost, .scalars = {{std::string(300, 'x'), -INFINITY}}}));
  EXPECT_TRUE(std::isnan(events[2].scalars.at(0).value));
  EXPECT_EQ(events[3].histograms.at(0),
            (LoggedHistogram{.tag = "none", .limits = {0.5, 1.5}, .counts = {0, 0}}));
  EXPECT_EQ(events[4].step, -kMost - 1);
  EXPECT_EQ(events[4].histograms.at(0).num, 200'000);
  EXPECT_EQ(events[4].histograms.at(0).limits.back(), 199.5);
}

TEST(EventFileWriter, AddsAFileForEachRunInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  const auto run = folder / "run";
  const EventFileWriter first(run, clock_from(987'654'321)), second(run, clock_from(987'654'321)),
      third(run, clock_from(1'000'000'000.9));
  EXPECT_EQ(first.path(), run / "events.out.tfevents.0987654321.moegrad.0");
  EXPECT_EQ(second.path(), run / "events.out.tfevents.0987654322.moegrad.0");
  EXPECT_EQ(third.path(), run / "events.out.tfevents.1000000000.moegrad.0");
  const auto before = system_wall_time();
  EXPECT_GT(before, 1.6e9);
  EXPECT_GE(EventFileWriter(run).path().filename(),
            "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(before)));
}

TEST(EventFileWriter, RefusesWhatTensorBoardCannotShow) {
  const TemporaryFolder folder;
  EventFileWriter writer(folder / "run", clock_from());
  const auto size = std::filesystem::file_size(writer.path());
  const std::vector<std::int64_t> none, some = {1, 2}, negative = {3, -1};
  EXPECT_EQ(message_of<ValueError>([&] { writer.add_scalar("", 1, 1); }),
            "event_file: tag must be UTF-8 and not empty, got ''");
  EXPECT_EQ(message_of<ValueError>([&] { writer.add_histogram("a\xff", some, 1); }).substr(0, 45),
            "event_file: tag must be UTF-8 and not empty, ");
  EXPECT_EQ(message_of<ValueError>([&] { writer.add_histogram("load", none, 1); }),
            "event_file: 'load': histogram must have a bin, got none");
  EXPECT_EQ(message_of<ValueError>([&] { writer.add_histogram("load", negative, 1); }),
            "event_file: 'load': count 1 must be at least 0, got -1");
  EXPECT_EQ(std::filesystem::file_size(writer.path()), size);
}

TEST(EventFileWriter, NamesAFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  test::write_file(folder / "file", "");
  const auto path = folder / "file" / "run";
  EXPECT_EQ(message_of<Error>([&] { const EventFileWriter writer(path); }),
            "event_file: cannot create " + path.string() + ": Not a directory");
}

TEST(EventFileWriter, LeavesNoPartOfAnEventThatCannotBeWritten) {
  const TemporaryFolder folder;
  EventFileWriter writer(folder / "run", clock_from());
  const std::vector<std::int64_t> counts(100, 1);
  {
    WatchedCalls watched;
    watched.shorten_writes(50);
    watched.fail(3, ENOSPC);
    EXPECT_EQ(message_of<Error>([&] { writer.add_histogram("load", counts, 1); }),
              "event_file: cannot write " + writer.path().string() + ": No space left on device");
  }
  EXPECT_EQ(std::filesystem::file_size(writer.path()), kVersionRecord.size() / 2);
  {
    WatchedCalls watched;
    watched.shorten_writes(5);
    watched.fail(1, EINTR);
    writer.add_scalar("loss", 2.5, 1);
  }
  const auto file = read_event_file(writer.path());
  ASSERT_EQ(file.events.size(), 1U);
  EXPECT_EQ(file.events[0].scalars, (std::vector<LoggedScalar>{{"loss", 2.5F}}));
  EXPECT_EQ(file.bytes_left_out, 0U);
}

TEST(EventFileWriter, LeavesNoHoleWhereItsFileWasEmptied) {
  const TemporaryFolder folder;
  EventFileWriter writer(folder / "run", clock_from());
  writer.add_scalar("loss", 1.5, 0);
  const auto begin = read_file(writer.path());
  std::filesystem::resize_file(writer.path(), 0);
  writer.add_scalar("loss", 2.5, 1);
  const auto left = read_file(writer.path());
  EXPECT_FALSE(left.empty() || left[0] == '\0');
  EXPECT_LT(left.size(), begin.size());
}

TEST(EventFileWriter, SaysThatItsFileWasRemoved) {
  const TemporaryFolder folder;
  EventFileWriter writer(folder / "run", clock_from());
  std::filesystem::remove_all(folder / "run");
  EXPECT_EQ(message_of<Error>([&] { writer.add_scalar("loss", 2.5, 1); }),
            "event_file: cannot write " + writer.path().string() + ": No such file or directory");
}

TEST(EventFileWriter, ClosesItsFileIfTheFirstEventCannotBeWritten) {
  const TemporaryFolder folder;
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  const auto path = folder / "run";
  std::filesystem::create_directory(path);
  WatchedCalls watched;
  watched.fail(0, EIO);
  EXPECT_EQ(message_of<Error>([&] { const EventFileWriter writer(path, clock_from(10)); }),
            "event_file: cannot write " + path.string() +
                "/events.out.tfevents.0000000010.moegrad.0: Input/output error");
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace moegrad::training::event_file_test
