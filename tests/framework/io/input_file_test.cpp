// SPDX-License-Identifier: Apache-2.0
#include "framework/io/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::input_file_test {
namespace {

using namespace test;

std::string read(const InputFile& file, std::int64_t offset, std::size_t size) {
  std::string text(size, ' ');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(InputFile, ReadsAnyPart) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  write_file(path, "0123456789");
  const InputFile file(path, "test");
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(read(file, 3, 4), "3456");
  EXPECT_EQ(read(file, 10, 0), "");
  EXPECT_EQ(message_of<Error>([&] { read(file, 8, 3); }),
            "test: " + path.string() + ": bytes [8, 11) must be within 10");
  std::filesystem::remove(path);
  EXPECT_EQ(read(file, 0, 2), "01");
}

TEST(InputFile, NoticesThatItIsCutShortExtendedOrWrittenAnew) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const auto after = [&](auto change) {
    write_file(path, std::string(10000, 'a'));
    std::filesystem::last_write_time(path,
                                     std::filesystem::file_time_type() + std::chrono::hours(1));
    const InputFile file(path, "test");
    change();
    return message_of<Error>([&] { read(file, 0, 100); });
  };
  const auto must = "test: " + path.string() + ": must not change while it is read, got ";
  EXPECT_EQ(after([&] { std::filesystem::resize_file(path, 50); }), must + "50 bytes after 10000");
  EXPECT_EQ(after([&] { std::filesystem::resize_file(path, 20000); }),
            must + "20000 bytes after 10000");
  EXPECT_EQ(
      after([&] { std::fstream(path, std::ios::in | std::ios::out) << std::string(10000, 'b'); }),
      must + "other contents");
}

TEST(InputFile, OfALogThatGrowsHasTheBytesThatItHadAtFirst) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  write_file(path, "01234");
  std::filesystem::last_write_time(path, std::filesystem::file_time_type() + std::chrono::hours(1));
  const InputFile file(path, "test", InputChanges::kGrowth);
  std::ofstream(path, std::ios::app) << "56789";
  EXPECT_EQ(file.size(), 5);
  EXPECT_EQ(read(file, 0, 5), "01234");
  std::filesystem::resize_file(path, 4);
  EXPECT_EQ(message_of<Error>([&] { read(file, 0, 3); }),
            "test: " + path.string() + ": must not change while it is read, got 4 bytes after 5");
}

TEST(InputFile, IsARegularFileOfASensibleSize) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto refusal = [](const std::filesystem::path& path) {
    return message_of<Error>([&] { read_input_file(path, "test", 5); });
  };
  const auto must = std::string(": must be a readable regular file, got ");
  EXPECT_EQ(refusal("/dev/zero"), "test: /dev/zero" + must + "a device");
  EXPECT_EQ(refusal(folder / "pipe"), "test: " + (folder / "pipe").string() + must + "a pipe");
  EXPECT_EQ(refusal("/"), "test: /" + must + "a folder");
  EXPECT_EQ(refusal("/nowhere"), "test: /nowhere" + must + "No such file or directory");
  write_file(folder / "file", "123456");
  EXPECT_EQ(refusal(folder / "file"),
            "test: " + (folder / "file").string() + ": must be of at most 5 bytes, got 6");
  write_file(folder / "file", "12345");
  EXPECT_EQ(read_input_file(folder / "file", "test", 5), "12345");
}

}  // namespace
}  // namespace moegrad::input_file_test
