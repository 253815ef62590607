// SPDX-License-Identifier: Apache-2.0

// Files that ranks must see alike. Ranks are threads here, with folders of their own as on hosts.

#include "framework/io/same_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/rank_context.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::same_files_test {
namespace {

namespace fs = std::filesystem;
using namespace test;

const std::vector<std::string> kNames = {"index.json", "one.safetensors", "two.safetensors"};

void write_all(const TemporaryFolder& folder) {
  for (const auto& name : kNames) write_file(folder / name, "the bytes of " + name);
}

std::vector<fs::path> files_in(const TemporaryFolder& folder) {
  std::vector<fs::path> files;
  for (const auto& name : kNames) files.push_back(folder / name);
  return files;
}

// Five ranks, of which the odd ones see `other`.
void check_on_five(const TemporaryFolder& folder, const TemporaryFolder& other,
                   std::vector<std::string>* said = nullptr) {
  launch(5, [&](RankContext& rank) {
    const auto files = files_in(rank.rank() % 2 == 0 ? folder : other);
    const auto check = [&] { check_same_files("weights", rank.group(), files); };
    if (said == nullptr) return check();
    (*said)[static_cast<std::size_t>(rank.rank())] = message_of<ValueError>(check);
  });
}

// What all of them say.
std::string message(const TemporaryFolder& folder, const TemporaryFolder& other) {
  std::vector<std::string> said(5);
  check_on_five(folder, other, &said);
  for (const auto& text : said) EXPECT_EQ(text, said[0]);
  return said[0];
}

TEST(SameFiles, MayBeCopies) {
  const TemporaryFolder folder, other;
  write_all(folder);
  write_all(other);
  EXPECT_NO_THROW(check_on_five(folder, folder));
  EXPECT_NO_THROW(check_on_five(folder, other));
  EXPECT_NO_THROW(check_same_files("weights", nullptr, files_in(folder)));
  EXPECT_NO_THROW(check_same_files("weights", nullptr, {folder / "absent"}));  // nobody to ask
}

// A folder, which has a size and cannot be read, stands for a file.
TEST(SameFiles, AreNotReadWhereAllRanksSeeTheSame) {
  const TemporaryFolder folder;
  EXPECT_NO_THROW(launch(
      3, [&](RankContext& rank) { check_same_files("weights", rank.group(), {folder / "."}); }));
}

TEST(SameFiles, HaveTheSameBytes) {
  const TemporaryFolder folder, other;
  write_all(folder);
  for (const auto& name : kNames) {
    write_all(other);
    auto bytes = test::read_file(other / name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(other / name, bytes);
    EXPECT_EQ(message(folder, other), "weights: all ranks must read the same '" + name +
                                          "', got others than rank 0's on rank 1, 3");
  }
}

TEST(SameFiles, HaveTheSameSizesAndNames) {
  const TemporaryFolder folder, other;
  write_all(folder);
  write_all(other);
  write_file(other / "two.safetensors", "short");
  EXPECT_EQ(
      message(folder, other),
      "weights: all ranks must read the same files, rank 0 has 'two.safetensors' of 28 bytes, "
      "rank 1 has 'two.safetensors' of 5 bytes");
  // Other numbers of files.
  const auto counts = [&](bool first_has_more) {
    std::vector<std::string> said(2);
    launch(2, [&](RankContext& rank) {
      auto files = files_in(folder);
      if ((rank.rank() == 0) != first_has_more) files.pop_back();
      said[static_cast<std::size_t>(rank.rank())] =
          message_of<ValueError>([&] { check_same_files("weights", rank.group(), files); });
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  EXPECT_EQ(
      counts(true),
      "weights: all ranks must read the same files, rank 0 has 'two.safetensors' of 28 bytes, "
      "rank 1 has no more");
  EXPECT_EQ(counts(false),
            "weights: all ranks must read the same files, rank 0 has no more, rank 1 has "
            "'two.safetensors' of 28 bytes");
}

TEST(SameFiles, MustBeThere) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of<Error>([&] {
              launch(2, [&](RankContext& rank) {
                check_same_files("weights", rank.group(), {folder / "absent"});
              });
            }),
            "weights: " + (folder / "absent").string() +
                " must be readable, got No such file or directory");
}

}  // namespace
}  // namespace moegrad::same_files_test
