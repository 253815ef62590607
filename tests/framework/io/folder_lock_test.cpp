// SPDX-License-Identifier: Apache-2.0
#include "framework/io/folder_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::folder_lock_test {
namespace {

using namespace test;

std::string this_host() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

TEST(FolderLock, KeepsASecondWriterOfTheProcessOut) {
  const TemporaryFolder base;
  const auto folder = base / "a/b";
  std::optional<FolderLock> lock(std::in_place, folder);
  EXPECT_EQ(message_of<Error>([&] { FolderLock second(folder); }),
            "lock: " + folder.string() +
                " must be written by one program at a time, got another writer of this process at "
                "work in it");
  lock.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const FolderLock third(folder);
}

TEST(FolderLock, AKilledProcessLeavesNone) {
  const TemporaryFolder folder;
  write_file(folder / ".lock", "process 1 on elsewhere\n");  // as a killed one leaves it
  const FolderLock lock(folder / "");
  EXPECT_EQ(test::read_file(folder / ".lock"),
            "process " + std::to_string(getpid()) + " on " + this_host() + "\n");
}

TEST(FolderLock, IsRefusedWithControlCharactersEscaped) {
  const TemporaryFolder folder;
  write_file(folder / ".lock", "process 7 on \x1b[2J\nmore\n");
  const int held = open((folder / ".lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  EXPECT_NE(
      message_of<Error>([&] { FolderLock lock(folder / ""); }).find("process 7 on \\x1b[2J at"),
      std::string::npos);
  close(held);
}

TEST(FolderLock, SaysWhyItCannot) {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  const auto path = folder / "file/below";
  EXPECT_EQ(message_of<Error>([&] { FolderLock lock(path); }),
            "lock: cannot create " + path.string() + ": Not a directory");
}

TEST(FolderLock, WritesThroughNoLink) {
  const TemporaryFolder folder;
  write_file(folder / "precious", "weights");
  std::filesystem::create_symlink("precious", folder / ".lock");
  EXPECT_EQ(
      message_of<Error>([&] { FolderLock lock(folder / ""); }),
      "lock: cannot open " + (folder / ".lock").string() + ": Too many levels of symbolic links");
  EXPECT_EQ(test::read_file(folder / "precious"), "weights");
}

}  // namespace
}  // namespace moegrad::folder_lock_test
