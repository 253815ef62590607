// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/last_operations.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/testing.h"

namespace moegrad::last_operations_test {
namespace {

/// A file of this process, removed at the end.
class File {
 public:
  explicit File(const std::string& name = "last_operations")
      : path_(::testing::TempDir() + name + "." + std::to_string(getpid())) {}
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
};

// Without the title, which names host and process.
std::string after_title(const std::string& text) {
  const auto end = text.find("): ");
  return end == text.npos ? text : text.substr(end + 3);
}

TEST(LastOperations, AreWrittenWithTheOldestThatIsNotDoneInTheTitle) {
  const File file;
  LastOperations operations(3, file.path());
  operations.write_file("first");
  EXPECT_EQ(after_title(file.text()),
            "first outside collectives\nlast operations of this rank, the oldest first:\n"
            "  no operation\n");
  EXPECT_TRUE(file.text().starts_with("rank 3 on host "));
  operations.set_state(operations.add("group world  barrier"), "done");
  operations.set_state(operations.add("group world  all_reduce"), "joined");
  operations.add("group pair  barrier");
  operations.write_file("SIGTERM");
  EXPECT_EQ(after_title(file.text()),
            "SIGTERM in group world  all_reduce\nlast operations of this rank, the oldest first:\n"
            "  done      group world  barrier\n"
            "  joined    group world  all_reduce\n"
            "  issued    group pair  barrier\n");
}

TEST(LastOperations, AreTheLastOnesAndOfALimitedLength) {
  const File file;
  LastOperations operations(0, file.path());
  for (int i = 0; i < 100; ++i) {
    operations.set_state(operations.add(std::to_string(i) + std::string(1'000, 'x')), "done");
  }
  operations.write_file("SIGTERM");
  const auto text = file.text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 2 + LastOperations::kLength);
  EXPECT_NE(text.find("  done      68x"), text.npos);
  EXPECT_NE(text.find("  done      99x"), text.npos);
  EXPECT_EQ(text.find("  done      67x"), text.npos);
  EXPECT_LT(text.size(), 12'288U);
}

// A fork of this test gets SIGTERM and would end at once.
TEST(LastOperations, AreWrittenHalfASecondBeforeTheProcessEnds) {
  const File file;
  const auto begin = std::chrono::steady_clock::now();
  const auto child = fork();
  if (child == 0) {
    LastOperations operations(1, file.path());
    operations.add("group world  barrier");
    signal(SIGTERM, SIG_DFL);
    const LastOperations::SignalGuard guard(operations);
    raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_EQ(after_title(file.text()).substr(0, 32), "SIGTERM in group world  barrier\n");
}

TEST(LastOperations, HaveTheTimeAtWhichTheyAreWrittenInTheTitle) {
  const File file;
  const LastOperations operations(0, file.path());
  const auto before = std::time(nullptr);
  ASSERT_TRUE(operations.write_file("failed"));
  const auto after = std::time(nullptr);
  std::array<char, 32> text{};
  bool found = false;
  for (auto seconds = before; seconds <= after; ++seconds) {
    std::tm utc = {};
    gmtime_r(&seconds, &utc);
    std::strftime(text.data(), text.size(), ", %Y-%m-%dT%H:%M:%SZ): failed", &utc);
    found = found || file.text().find(text.data()) != std::string::npos;
  }
  EXPECT_TRUE(found) << file.text();
}

TEST(LastOperations, SayWhetherTheFileCouldBeWritten) {
  EXPECT_FALSE(LastOperations(0, "/proc/last_operations").write_file("failed"));
  EXPECT_FALSE(LastOperations(0, "/dev/full").write_file("failed"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));  // and is still there
  EXPECT_TRUE(LastOperations(0, "").write_file("failed"));
}

// A file that may not grow stands for a full disk.
TEST(LastOperations, LeaveNoHalfOfAFile) {
  const File file;
  const auto child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 10, .rlim_max = 10};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(LastOperations(0, file.path()).write_file("failed") ? 1 : errno == EFBIG ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(std::filesystem::exists(file.path()));
}

// In a folder that is shared with others.
TEST(LastOperations, GoThroughNoLink) {
  const File file, victim("victim");
  std::ofstream(victim.path()) << "precious";
  std::filesystem::create_symlink(victim.path(), file.path());
  EXPECT_FALSE(LastOperations(0, file.path()).write_file("failed"));
  EXPECT_EQ(errno, ELOOP);
  EXPECT_EQ(victim.text(), "precious");
}

TEST(LastOperations, WaitForNoReaderOfAPipe) {
  const File file;
  ASSERT_EQ(mkfifo(file.path().c_str(), 0600), 0);
  EXPECT_FALSE(LastOperations(0, file.path()).write_file("failed"));
  EXPECT_EQ(errno, ENXIO);
}

TEST(LastOperations, KeepTheStateOfOneThatHasTakenTheSlotOfAnother) {
  const File file;
  LastOperations operations(0, file.path());
  const auto first = operations.add("first");
  for (int i = 0; i < LastOperations::kLength; ++i) operations.add(std::to_string(i));
  operations.set_state(first, "failed");
  ASSERT_TRUE(operations.write_file("failed"));
  const auto text = file.text();
  EXPECT_EQ(text.find("failed", text.find('\n')), text.npos) << text;
}

int handled = 0;

TEST(LastOperations, AreWrittenOnSigtermBeforeTheProgramsOwnHandlerRuns) {
  const File file;
  LastOperations operations(1, file.path());
  operations.add("group world  barrier");
  struct sigaction own = {}, before = {};
  own.sa_handler = [](int) { ++handled; };
  sigaction(SIGTERM, &own, &before);
  ::testing::internal::CaptureStderr();
  {
    const LastOperations::SignalGuard guard(operations);
    raise(SIGTERM);
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(said, file.text());
  EXPECT_EQ(after_title(said).substr(0, 32), "SIGTERM in group world  barrier\n");
  std::filesystem::remove(file.path());
  raise(SIGTERM);  // the guard is gone
  EXPECT_EQ(handled, 2);
  EXPECT_FALSE(std::filesystem::exists(file.path()));
  sigaction(SIGTERM, &before, nullptr);
}

TEST(LastOperations, AreTheSameOnStandardErrorAndInTheFileWhileOthersGoOn) {
  const File file;
  LastOperations operations(0, file.path());
  std::atomic<bool> ended = false;
  std::atomic<int> added = 0;
  std::thread others([&] {
    while (!ended) operations.set_state(operations.add(std::to_string(++added)), "done");
  });
  for (int i = 0; i < 20; ++i) {
    for (const int before = added; added == before;) std::this_thread::yield();
    ::testing::internal::CaptureStderr();
    operations.write("SIGTERM");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), file.text());
  }
  ended = true;
  others.join();
}

TEST(LastOperations, LeaveASignalThatIsIgnoredIgnored) {
  const File file;
  LastOperations operations(1, file.path());
  struct sigaction ignored = {}, before = {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGTERM, &ignored, &before);
  {
    const LastOperations::SignalGuard guard(operations);
    raise(SIGTERM);
  }
  EXPECT_FALSE(std::filesystem::exists(file.path()));
  sigaction(SIGTERM, &before, nullptr);
}

TEST(LastOperations, GoToStandardErrorWhereTheFileCannotBeWritten) {
  for (const bool can_be_written : {true, false}) {
    const File file;
    const LastOperations operations(2, can_be_written ? file.path() : "/proc/last_operations",
                                    /*is_process=*/false);
    ::testing::internal::CaptureStderr();
    operations.write_on_sigterm(/*is_handled=*/true);
    const auto printed = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(printed.starts_with("rank 2 on host "), !can_be_written) << printed;
    EXPECT_EQ(file.text().starts_with("rank 2 on host "), can_be_written);
  }
}

TEST(LastOperations, LeaveAHandlerThatTheProgramHasSetMeanwhile) {
  LastOperations operations(0, "");
  struct sigaction own = {}, before = {}, found = {};
  own.sa_handler = [](int) {};
  sigaction(SIGTERM, nullptr, &before);
  {
    const LastOperations::SignalGuard guard(operations);
    sigaction(SIGTERM, &own, nullptr);
  }
  sigaction(SIGTERM, &before, &found);
  EXPECT_EQ(found.sa_handler, own.sa_handler);
}

}  // namespace
}  // namespace moegrad::last_operations_test
