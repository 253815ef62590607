// SPDX-License-Identifier: Apache-2.0
#include "models/hf_checkpoint.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/launch.h"
#include "models/causal_lm/load_pretrained.h"
#include "nn/module.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::models::hf_checkpoint_test {
namespace {

using nlohmann::json;
using namespace test;

// ---- the index by itself

std::string with_size(const std::string& size) {
  return R"({"metadata": {"total_size": )" + size + R"(}, "weight_map": {}})";
}

std::string with_file(const std::string& file) {
  return R"({"metadata": {}, "weight_map": {"w": )" + file + "}}";
}

TEST(HfIndex, NamesWhatIsWrong) {
  const std::string type = "weight_map 'w' must be a string, got ";
  const std::string file = "weight_map 'w' must be a .safetensors file of the same folder, got ";
  const std::pair<std::string, std::string> cases[] = {
      {"", "must be JSON, got an error at column 1"},
      {R"({"metadata": {)", "must be JSON, got an error at column 15"},
      {with_size("0") + " x", "must be JSON, got an error at column 51"},
      {"\xef\xbb\xbf" + with_size("0"), "must start with its value, got a byte order mark"},
      {with_file("\"\xff\""), "must be UTF-8, got an invalid byte at column 39"},
      {with_size("0") + std::string(1, '\0'), "must hold no NUL, got one at column 50"},
      {with_file(R"("\ud800.safetensors")"), "must be JSON, got an error at column 45"},
      {with_size("1e999"), "numbers must fit in a double, got 1e999"},
      {std::string(17, '['), "must be at most 16 levels deep, got more"},
      {"[]", "must be an object, got []"},
      {"null", "must be an object, got null"},
      {R"({"weight_map": {}})", "must have metadata, got none"},
      {R"({"metadata": null, "weight_map": {}})", "metadata must be an object, got null"},
      {R"({"metadata": [1], "weight_map": {}})", "metadata must be an object, got [1]"},
      {R"({"metadata": {}, "metadata": {}, "weight_map": {}})",
       "keys of an object must differ, got 'metadata' twice"},
      {R"({"metadata": {"total_size": 0, "total_size": 0}, "weight_map": {}})",
       "keys of an object must differ, got 'total_size' twice"},
      {R"({"metadata": {}})", "must have weight_map, got none"},
      {R"({"metadata": {}, "weight_map": null})", "weight_map must be an object, got null"},
      {R"({"metadata": {}, "weight_map": []})", "weight_map must be an object, got []"},
      {R"({"metadata": {}, "weight_map": {"w": "a.safetensors", "\u0077": "b"}})",
       "keys of an object must differ, got 'w' twice"},
      {with_file("1"), type + "1"},
      {with_file("null"), type + "null"},
      {with_file(R"(["a.safetensors"])"), type + R"(["a.safetensors"])"},
      {with_file(R"("")"), file + "\"\""},
      {with_file(R"("..")"), file + "\"..\""},
      {with_file(R"("../a.safetensors")"), file + "\"../a.safetensors\""},
      {with_file(R"("/etc/a.safetensors")"), file + "\"/etc/a.safetensors\""},
      {with_file(R"("b/a.safetensors")"), file + "\"b/a.safetensors\""},
      {with_file(R"("b\\a.safetensors")"), file + R"("b\\a.safetensors")"},
      {with_file(R"("a\u0000.safetensors")"), file + R"("a\u0000.safetensors")"},
      {with_file(R"("a.safetensors/")"), file + "\"a.safetensors/\""},
      {with_file(R"(".safetensors")"), file + "\".safetensors\""},
      {with_file(R"("config.json")"), file + "\"config.json\""},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(message_of<ValueError>([&, &text = text] { parse_hf_index(text, "index"); }),
              "index: " + message)
        << text;
  }
}

TEST(HfIndex, IsReadWhereItIsWellFormed) {
  const auto index = parse_hf_index(
      R"({"weight_map": {"b": "x.safetensors", "a": "..safetensors.safetensors"}, "other": [[1]],
          "metadata": {"total_size": 18446744073709551615, "total_parameters": 3}})",
      "index");
  EXPECT_EQ(index.total_size, "18446744073709551615");
  EXPECT_EQ(index.weight_map, (std::map<std::string, std::string>{
                                  {"a", "..safetensors.safetensors"}, {"b", "x.safetensors"}}));
  const auto without_size = parse_hf_index(R"({"metadata": {}, "weight_map": {}})", "index");
  EXPECT_EQ(without_size.total_size, "");
  EXPECT_TRUE(without_size.weight_map.empty());
}

// ---- index and files

/// A module that has the tensors of the checkpoint.
class Vectors final : public nn::Module {
 public:
  Vectors() {
    register_parameter("a", a);
    register_parameter("b", b);
    register_parameter("c", c);
  }
  Tensor a = Tensor::zeros({3}), b = Tensor::zeros({2}), c = Tensor::zeros({1});
};

/// "a" and "b" in the first file, "c" in the second: 12 + 8 + 4 bytes.
class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() {
    const auto values = [](std::int64_t n) { return test::randn({n}, 1, Dtype::kFloat32); };
    save_safetensors(folder_ / kFirst, {{"a", values(3)}, {"b", values(2)}});
    save_safetensors(folder_ / kSecond, {{"c", values(1)}});
    write_index(kGood);
  }

  void write_index(const std::string& text) { write_file(index(), text); }
  /// The good index with other values in it; null takes a key away.
  void change_index(const json& changes) {
    auto index = json::parse(kGood);
    index.merge_patch(changes);
    write_index(index.dump());
  }
  void write_size(const std::string& size) {
    auto index = json::parse(kGood);
    index["metadata"]["total_size"] = json::parse(size);
    write_index(index.dump());
  }
  std::filesystem::path index() const { return folder_ / std::string(kIndexFile); }
  std::filesystem::path root() const { return index().parent_path(); }
  /// What is wrong with the checkpoint at a path.
  template <class E>
  static std::string message(const std::filesystem::path& path) {
    return message_of<E>([&] { const HfCheckpoint checkpoint(path); });
  }
  static std::string unreadable(const std::filesystem::path& path, const std::string& found) {
    return path.string() + ": must be a readable regular file, got " + found;
  }

  static constexpr auto* kFirst = "model-00001-of-00002.safetensors";
  static constexpr auto* kSecond = "model-00002-of-00002.safetensors";
  static constexpr auto* kGood = R"({"metadata": {"total_size": 24}, "weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
      "c": "model-00002-of-00002.safetensors"}})";
  TemporaryFolder folder_;
};

TEST_F(Checkpoint, OfSeveralFilesIsReadThroughItsIndex) {
  for (const auto& path : {root(), index()}) {
    const HfCheckpoint checkpoint(path);
    EXPECT_EQ(checkpoint.path(), index());
    EXPECT_EQ(checkpoint.tensors().size(), 3U);
    ASSERT_NE(checkpoint.find("c"), nullptr);
    EXPECT_EQ(checkpoint.find("c")->file->path(), folder_ / kSecond);
    const Tensor c = load_safetensors(folder_ / kSecond)[0].tensor;
    const auto bytes = checkpoint.find("c")->bytes();
    ASSERT_EQ(bytes.size(), 4U);
    EXPECT_EQ(std::memcmp(bytes.data(), c.storage().data(), 4), 0);
    EXPECT_EQ(checkpoint.find("d"), nullptr);
  }
}

TEST_F(Checkpoint, OfOneFileNeedsNoIndex) {
  const HfCheckpoint checkpoint(folder_ / kFirst);
  EXPECT_EQ(checkpoint.tensors().size(), 2U);
  EXPECT_EQ(checkpoint.find("b")->entry->shape, (SafetensorsShape{2}));
}

TEST_F(Checkpoint, PrefersTheSingleFileAsTransformersDoes) {
  write_index("broken");
  save_safetensors(folder_ / std::string(kSingleFile), {{"d", test::randn({1})}});
  const HfCheckpoint checkpoint(root());
  EXPECT_EQ(checkpoint.path(), folder_ / std::string(kSingleFile));
  EXPECT_NE(checkpoint.find("d"), nullptr);
}

TEST_F(Checkpoint, WithoutTotalSizeIsAccepted) {
  change_index({{"metadata", {{"total_size", nullptr}}}});
  EXPECT_EQ(HfCheckpoint(root()).tensors().size(), 3U);
}

// transformers does not read it, and other programs write what they like.
TEST_F(Checkpoint, WithWrongTotalSizeIsReadWithAWarning) {
  for (const auto* size : {"0", "3", "12", "23", "25", "-24", "23.5", "18446744073709551616",
                           "null", "true", "\"24\""}) {
    write_size(size);
    const HfCheckpoint checkpoint(root());
    EXPECT_EQ(checkpoint.tensors().size(), 3U);
    EXPECT_EQ(checkpoint.warning(),
              index().string() + ": total_size should be the bytes of all tensors, 24, got " +
                  json::parse(size).dump());
  }
  for (const auto* size : {"24", "24.0", "2.4e1"}) {
    write_size(size);
    EXPECT_EQ(HfCheckpoint(root()).warning(), "");
  }
}

TEST_F(Checkpoint, WithWrongTotalSizeIsLoadedByEachRankWithOneWarning) {
  write_size("0");
  ::testing::internal::CaptureStderr();
  launch(2, [&](RankContext&) {
    Vectors module;
    load_pretrained(module, root());
    EXPECT_TRUE(test::bitwise_equal(module.c, load_safetensors(folder_ / kSecond)[0].tensor));
  });
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_THAT(said, ::testing::HasSubstr("load_pretrained: " + index().string() +
                                         ": total_size should be the bytes of all tensors, 24, got "
                                         "0\n"));
}

TEST_F(Checkpoint, HasAChecksumOfItsTensorsWhateverFilesTheyAreIn) {
  const auto checksum = checkpoint_checksum(root());
  EXPECT_EQ(checkpoint_checksum(index()), checksum);
  auto tensors = load_safetensors(folder_ / kFirst);
  tensors.push_back(load_safetensors(folder_ / kSecond)[0]);
  const auto of = [&] {
    save_safetensors(folder_ / "one.safetensors", tensors);
    return checkpoint_checksum(folder_ / "one.safetensors");
  };
  EXPECT_EQ(of(), checksum);
  tensors[0].name = "d";
  EXPECT_NE(of(), checksum);
  tensors[0].name = "a";
  tensors[2].tensor = Tensor::full({1}, 0.5, Dtype::kFloat32);
  EXPECT_NE(of(), checksum);
}

// A large tensor is told apart by its beginning, its end and what is between.
TEST_F(Checkpoint, HasAChecksumOfPiecesOfALargeTensor) {
  constexpr std::int64_t kSize = 1 << 20;
  const auto of = [&](std::int64_t changed) {
    Tensor values = Tensor::zeros({kSize}, Dtype::kFloat32);
    if (changed >= 0) values.mutable_data<float>()[static_cast<std::size_t>(changed)] = 1;
    save_safetensors(folder_ / "one.safetensors", {{"a", values}});
    return checkpoint_checksum(folder_ / "one.safetensors");
  };
  const auto zeros = of(-1);
  for (const auto changed : {std::int64_t{0}, kSize / 3, 2 * kSize / 3, kSize - 1}) {
    EXPECT_NE(of(changed), zeros) << changed;
  }
}

TEST_F(Checkpoint, WhoseIndexIsWrongAboutATensorIsRefused) {
  const std::string first = std::string("'") + kFirst + "'",
                    second = std::string("'") + kSecond + "'";
  const std::pair<json, std::string> cases[] = {
      {json{{"d", kSecond}}, "tensor 'd' must be in " + second + ", got none there"},
      {json{{"c", kFirst}, {"b", kSecond}},
       "tensor 'b' must be in " + second + " alone, got it in " + first},
      {json{{"b", nullptr}},
       "weight_map must list every tensor of its files, got no 'b' of " + first},
  };
  for (const auto& [files, wrong] : cases) {
    change_index({{"weight_map", files}});
    EXPECT_EQ(message<ValueError>(root()), index().string() + ": " + wrong) << files;
  }
}

TEST_F(Checkpoint, WithATensorInTwoFilesIsRefused) {
  save_safetensors(folder_ / kSecond, {{"c", test::randn({1})}, {"a", test::randn({1})}});
  EXPECT_EQ(message<ValueError>(root()), index().string() + ": tensor 'a' must be in '" + kFirst +
                                             "' alone, got it in '" + kSecond + "'");
}

TEST_F(Checkpoint, WithAMissingFileIsRefused) {
  std::filesystem::remove(folder_ / kSecond);
  EXPECT_EQ(message<SafetensorsError>(root()),
            "safetensors: " + unreadable(folder_ / kSecond, "No such file or directory"));
}

TEST_F(Checkpoint, WithAFolderForAFileIsRefused) {
  std::filesystem::remove(folder_ / kSecond);
  std::filesystem::create_directory(folder_ / kSecond);
  EXPECT_EQ(message<SafetensorsError>(root()),
            "safetensors: " + unreadable(folder_ / kSecond, "a folder"));
}

TEST_F(Checkpoint, WithATruncatedFileIsRefused) {
  const auto bytes = read_file(folder_ / kFirst);
  write_file(folder_ / kFirst, bytes.substr(0, bytes.size() - 1));
  EXPECT_THROW(HfCheckpoint{root()}, SafetensorsError);
}

TEST_F(Checkpoint, WithAFileNameBeyondTheSystemsLimitIsRefused) {
  const std::string name = std::string(300, 'x') + ".safetensors";
  write_index(R"({"metadata": {}, "weight_map": {"a": ")" + name + "\"}}");
  EXPECT_EQ(message<SafetensorsError>(root()),
            "safetensors: " + unreadable(folder_ / name, "File name too long"));
}

TEST_F(Checkpoint, ThroughASymbolicLinkIsRead) {
  std::filesystem::rename(folder_ / kSecond, folder_ / "blob");
  std::filesystem::create_symlink("blob", folder_ / kSecond);  // as in Hugging Face's cache
  EXPECT_EQ(HfCheckpoint(root()).tensors().size(), 3U);
}

TEST_F(Checkpoint, ThatIsNotThereIsNamed) {
  const TemporaryFolder empty;
  const auto folder = (empty / "x").parent_path();
  EXPECT_EQ(message<ValueError>(folder),
            "checkpoint: " + folder.string() +
                " must hold model.safetensors or model.safetensors.index.json, got neither");
  EXPECT_EQ(message<SafetensorsError>(empty / "x"),
            "safetensors: " + unreadable(empty / "x", "No such file or directory"));
  EXPECT_EQ(message<Error>(empty / "x.json"),
            "checkpoint: " + unreadable(empty / "x.json", "No such file or directory"));
}

/// What an index says, by a second reading of its bytes: nothing unless it is a valid one for the
/// files of the fixture.
bool describes_the_files(const std::string& text) {
  bool distinct = true;
  std::vector<std::set<std::string>> keys;
  const auto index = json::parse(
      text,
      [&](int, json::parse_event_t event, json& parsed) {
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key) {
          distinct = distinct && keys.back().insert(parsed.get<std::string>()).second;
        }
        return true;
      },
      /*allow_exceptions=*/false);
  if (!distinct || !index.is_object()) return false;
  const json files = {{"a", "model-00001-of-00002.safetensors"},
                      {"b", "model-00001-of-00002.safetensors"},
                      {"c", "model-00002-of-00002.safetensors"}};
  if (!index.contains("metadata") || !index["metadata"].is_object()) return false;
  return index.contains("weight_map") && index["weight_map"] == files;
}

TEST_F(Checkpoint, EveryTruncationOfItsIndexIsRefused) {
  const std::string good = kGood;
  for (std::size_t length = 0; length < good.size(); ++length) {
    write_index(good.substr(0, length));
    EXPECT_THROW(HfCheckpoint{root()}, ValueError) << length;
  }
}

TEST_F(Checkpoint, EveryBitFlipOfItsIndexIsRefusedOrMeansWhatItSays) {
  const std::string good = kGood;
  ASSERT_TRUE(describes_the_files(good));
  int accepted = 0, refused = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string text = good;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    write_index(text);
    try {
      const HfCheckpoint checkpoint(root());
      ++accepted;
      EXPECT_TRUE(describes_the_files(text)) << text;
      EXPECT_EQ(checkpoint.tensors().size(), 3U);
    } catch (const Error& error) {
      ++refused;
      EXPECT_FALSE(describes_the_files(text)) << error.what() << '\n' << text;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 50);  // flips in total_size, which may be absent and anything
}

}  // namespace
}  // namespace moegrad::models::hf_checkpoint_test
