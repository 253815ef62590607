// SPDX-License-Identifier: Apache-2.0
// Files that another program wrote are read, and written again as they were.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"
#include "tests/framework/io/files.h"
#include "tests/models/causal_lm/golden_data.h"

namespace moegrad::safetensors_golden_test {
namespace {

using namespace test;

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::recursive_directory_iterator(test::golden_folder())) {
    if (file.path().extension() == ".safetensors") files.push_back(file.path());
  }
  std::ranges::sort(files);
  return files;
}

/// Whether the golden data's program and this one lay the tensors out alike: it sorts by element
/// size where the reference, and so this writer, sorts by dtype.
bool same_layout(const std::vector<SafetensorsEntry>& a, const std::vector<SafetensorsEntry>& b) {
  return std::ranges::equal(a, b, {}, &SafetensorsEntry::name, &SafetensorsEntry::name);
}

TEST(SafetensorsGolden, LoadsAndSavesTheSameBytes) {
  const test::TemporaryFolder folder;
  const auto copy = folder / "copy.safetensors";
  const auto files = golden_files();
  int same_bytes = 0;
  for (const auto& path : files) {
    const SafetensorsFile original(path);
    save_safetensors(copy, load_safetensors(path), original.metadata());
    const SafetensorsFile saved(copy);
    EXPECT_EQ(saved.metadata(), original.metadata()) << path;
    ASSERT_EQ(saved.entries().size(), original.entries().size()) << path;
    for (const auto& entry : original.entries()) {
      const auto& other = saved.at(entry.name);
      EXPECT_EQ(other.dtype, entry.dtype) << path << entry.name;
      EXPECT_EQ(other.shape, entry.shape) << path << entry.name;
      EXPECT_TRUE(as_text(saved.bytes(other)) == as_text(original.bytes(entry)))
          << path << entry.name;
    }
    const std::string bytes = read_file(path);
    const bool unchanged = read_file(copy) == bytes;
    const bool spaced = bytes.find(R"("dtype": ")") != std::string::npos;  // the header's JSON
    // Metadata is a map here, so its keys come back sorted.
    EXPECT_TRUE(unchanged || spaced || original.metadata().size() > 1 ||
                !same_layout(saved.entries(), original.entries()))
        << path;
    same_bytes += unchanged ? 1 : 0;
  }
  EXPECT_EQ(files.size(), 22U);
  EXPECT_EQ(same_bytes, 18);
}

}  // namespace
}  // namespace moegrad::safetensors_golden_test
