// SPDX-License-Identifier: Apache-2.0
#include "framework/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/framework/io/watched_calls.h"
#include "tests/testing.h"

namespace moegrad::atomic_file_test {
namespace {

using namespace test;

TEST(AtomicFile, AppearsWhenItIsCommitted) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  AtomicFile file(path);
  file.write_at(4, as_bytes("efg"));
  EXPECT_FALSE(std::filesystem::exists(path));
  file.write_at(0, as_bytes("ab"));
  file.commit();
  EXPECT_EQ(read_file(path), std::string("ab\0\0efg", 7));
  EXPECT_EQ(folder.count(), 1);
  EXPECT_EQ(message_of<Error>([&] { file.commit(); }),
            "atomic_file: " + path.string() + " must be committed once, got again");
}

TEST(AtomicFile, LeavesNothingBehindWhenItIsDropped) {
  const TemporaryFolder folder;
  write_file(folder / "file", "earlier");
  {
    AtomicFile file(folder / "file");
    file.write_at(0, as_bytes("new"));
    const AtomicFile moved = std::move(file);
    EXPECT_EQ(folder.count(), 2);
  }
  EXPECT_EQ(folder.count(), 1);
  EXPECT_EQ(read_file(folder / "file"), "earlier");
}

TEST(AtomicFile, FlushesTheFileBeforeAndTheFolderAfterTheRename) {
  const TemporaryFolder folder;
  const WatchedCalls watched;
  write_file_atomically(folder / "file", "contents");
  EXPECT_EQ(watched.calls(), "write fsync(file) rename fsync(folder)");
  EXPECT_EQ(read_file(folder / "file"), "contents");
}

TEST(AtomicFile, KeepsTheEarlierFileWhenAStepFails) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const auto fail = [&](int call, int error) {
    WatchedCalls watched;
    watched.fail(call, error);
    return message_of<Error>([&] { write_file_atomically(path, "new"); });
  };
  write_file(path, "earlier");
  const auto subject = "atomic_file: cannot ";
  EXPECT_EQ(fail(0, ENOSPC), subject + ("write " + path.string()) + ": No space left on device");
  EXPECT_EQ(fail(1, EIO), subject + ("flush " + path.string()) + ": Input/output error");
  EXPECT_EQ(fail(2, EACCES), subject + ("rename " + path.string()) + ": Permission denied");
  EXPECT_EQ(folder.count(), 1);
  EXPECT_EQ(read_file(path), "earlier");

  EXPECT_EQ(fail(3, EIO),
            subject + ("flush " + path.parent_path().string()) + ": Input/output error");
  EXPECT_EQ(folder.count(), 1);
  EXPECT_EQ(read_file(path), "new");
}

TEST(AtomicFile, ContinuesShortAndInterruptedWrites) {
  const TemporaryFolder folder;
  WatchedCalls watched;
  watched.shorten_writes(3);
  watched.fail(1, EINTR);
  write_file_atomically(folder / "file", "contents");
  EXPECT_EQ(watched.calls(), "write write write write fsync(file) rename fsync(folder)");
  EXPECT_EQ(read_file(folder / "file"), "contents");
}

TEST(AtomicFile, NamesAFolderThatDoesNotExist) {
  const TemporaryFolder folder;
  const auto path = folder / "absent" / "file";
  EXPECT_EQ(message_of<Error>([&] { const AtomicFile file(path); }),
            "atomic_file: cannot create " + path.string() + ": No such file or directory");
}

TEST(AtomicFile, MayHaveTheLongestNameAndNoLongerOne) {
  const TemporaryFolder folder;
  const auto longest = folder / std::string(255, 'n'), longer = folder / std::string(256, 'n');
  write_file_atomically(longest, "contents");
  EXPECT_EQ(read_file(longest), "contents");
  EXPECT_EQ(message_of<FileError>([&] { const AtomicFile file(longer); }),
            "atomic_file: cannot create " + longer.string() + ": File name too long");
  EXPECT_EQ(folder.count(), 1);
}

TEST(AtomicFile, FlushesAgainWhenASignalInterrupts) {
  const TemporaryFolder folder;
  WatchedCalls watched;
  watched.fail(1, EINTR);
  write_file_atomically(folder / "file", "contents");
  EXPECT_EQ(watched.calls(), "write fsync(file) fsync(file) rename fsync(folder)");
  EXPECT_EQ(read_file(folder / "file"), "contents");
}

TEST(AtomicFile, StepsOverTemporaryFilesOfEarlierProcesses) {
  const TemporaryFolder folder;
  const auto stale = [&](int number) {
    return folder / ("file.tmp." + std::to_string(getpid()) + "." + std::to_string(number));
  };
  constexpr int kStale = 200;  // this program has made fewer so far
  for (int i = 0; i < kStale; ++i) write_file(stale(i), "stale");
  write_file_atomically(folder / "file", "contents");
  EXPECT_EQ(read_file(folder / "file"), "contents");
  EXPECT_EQ(folder.count(), kStale + 1);
  for (int i = 0; i < kStale; ++i) EXPECT_EQ(read_file(stale(i)), "stale");
}

TEST(AtomicFile, HasTheUsualPermissions) {
  const TemporaryFolder folder;
  write_file(folder / "usual", "");
  write_file_atomically(folder / "file", "");
  EXPECT_EQ(std::filesystem::status(folder / "file").permissions(),
            std::filesystem::status(folder / "usual").permissions());
}

TEST(AtomicFile, FollowsLinksAndKeepsThePermissionsOfTheFileThatItReplaces) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "other");
  write_file(folder / "other/real", "earlier");
  using std::filesystem::perms;
  std::filesystem::permissions(folder / "other/real", perms::owner_read | perms::owner_write);
  std::filesystem::create_symlink("other/real", folder / "one");
  std::filesystem::create_symlink(folder / "one", folder / "two");
  std::filesystem::create_symlink("other/new", folder / "dangling");
  write_file_atomically(folder / "two", "new");
  write_file_atomically(folder / "dangling", "made");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "two"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "dangling"));
  EXPECT_EQ(read_file(folder / "other/real"), "new");
  EXPECT_EQ(read_file(folder / "other/new"), "made");
  EXPECT_EQ(std::filesystem::status(folder / "other/real").permissions(),
            perms::owner_read | perms::owner_write);
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_EQ(message_of<Error>([&] { write_file_atomically(folder / "loop", "x"); }),
            "atomic_file: cannot follow the links of " + (folder / "loop").string() +
                ": Too many levels of symbolic links");
}

TEST(AtomicFile, ReplacesNothingButRegularFiles) {
  const TemporaryFolder folder;
  const auto path = folder / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto must = " must be a regular file, got ";
  EXPECT_EQ(message_of<Error>([&] { write_file_atomically(path, "x"); }),
            "atomic_file: " + path.string() + must + "a device");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  std::filesystem::create_directory(folder / "folder");
  EXPECT_EQ(message_of<Error>([&] { write_file_atomically(folder / "folder", "x"); }),
            "atomic_file: " + (folder / "folder").string() + must + "a folder");
}

TEST(AtomicFile, AcceptsANameWithoutFolder) {
  const auto name = "moegrad_atomic_file_test." + std::to_string(getpid());
  write_file_atomically(name, "contents");
  EXPECT_EQ(read_file(name), "contents");
  std::filesystem::remove(name);
}

}  // namespace
}  // namespace moegrad::atomic_file_test
