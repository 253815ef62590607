// SPDX-License-Identifier: Apache-2.0

// Checkpoints of several ranks: saved at one world size, read at another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_manifest.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_saver.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "tests/framework/distributed/collective_testing.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/framework/io/checkpoint_samples.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using namespace test;
using ::testing::ElementsAre;

TEST(Checkpoint, IsReadBitForBitAtAnyWorldSize) {
  for (const int saved : {1, 3, 4}) {
    const TemporaryFolder root;
    save_at(root / "", saved);
    for (const int loaded : test::kWorldSizes) expect_at(root / "", loaded);
  }
}

TEST(Checkpoint, HoldsOneReplica) {
  const TemporaryFolder root;
  launch(4, [&](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"replicate", 2}, {"shard", 2}});
    const auto parts = parts_of(samples(), mesh);
    save_now(root / "", 7, {.tensors = parts, .values = {{"text", "of step 7"}}}, context.group());
  });
  const CheckpointReader reader(root / "step-00000007");
  EXPECT_EQ(reader.manifest().world_size, 4);
  EXPECT_EQ(reader.manifest().files.size(), 2U);
  expect_at(root / "", 3);
}

TEST(Checkpoint, LeavesItsFolderItsManifestAndALink) {
  const TemporaryFolder root;
  save_at(root / "", 2);
  EXPECT_EQ(root.count(), 2);
  EXPECT_EQ(fs::read_symlink(root / "latest"), "step-00000007");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root / "step-00000007")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("manifest.json", "rank-00000.safetensors",
                                                     "rank-00001.safetensors"));
}

Tensor newest_w(const fs::path& root, std::vector<std::string>* skipped = nullptr) {
  Tensor w = Tensor::zeros({8}, Dtype::kFloat32);
  auto reader = open_newest_checkpoint(root, nullptr, [&](const std::string& reason) {
    ASSERT_NE(skipped, nullptr) << reason;
    skipped->push_back(reason);
  });
  if (reader.has_value()) reader->read("w", w);
  return w;
}

/// Changes a bit of the last byte.
void damage(const fs::path& path) {
  auto bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 64);
  test::write_file(path, bytes);
}

TEST(Checkpoint, KeepsTheNewest) {
  const TemporaryFolder root;
  for (const auto step : {3, 100'000'000, 20, 1}) {
    save_now(root / "", step, one_tensor(1), nullptr, {.keep = 0});
  }
  EXPECT_THAT(steps_in(root / ""), ElementsAre(100'000'000, 20, 3, 1));
  save_now(root / "", 21, one_tensor(1), nullptr, {.keep = 2});
  EXPECT_THAT(steps_in(root / ""), ElementsAre(100'000'000, 21, 20));  // later ones are not its own
  EXPECT_EQ(root.count(), 4);
}

TEST(Checkpoint, IsReplacedByOneOfTheSameStep) {
  const TemporaryFolder root;
  save_now(root / "", 5, one_tensor(1), nullptr);
  save_now(root / "", 5, one_tensor(2), nullptr);
  EXPECT_TRUE(bitwise_equal(newest_w(root / ""), one_tensor(2).tensors[0].tensor));
  EXPECT_EQ(root.count(), 2);
}

TEST(Checkpoint, RemovesWhatEarlierProcessesLeft) {
  const TemporaryFolder root;
  for (const auto* name : {".step-00000004.tmp", ".step-00000002.old.tmp", "step-00000009x"}) {
    fs::create_directory(root / name);
    std::ofstream(root / name / "rank-00000.safetensors") << "half";
  }
  EXPECT_TRUE(steps_in(root / "").empty());
  save_now(root / "", 4, one_tensor(1), nullptr);
  EXPECT_EQ(root.count(), 3);  // what is not ours stays
}

TEST(Checkpoint, OfAnAbsentFolderIsNone) {
  const TemporaryFolder root;
  EXPECT_FALSE(open_newest_checkpoint(root / "absent", nullptr, fail_if_skipped).has_value());
  EXPECT_FALSE(open_newest_checkpoint(root / "", nullptr, fail_if_skipped).has_value());
}

TEST(Checkpoint, WithAnyByteChangedIsPassedOver) {
  const TemporaryFolder root;
  save_now(root / "", 1, one_tensor(1), nullptr, {.keep = 0});
  save_now(root / "", 2, one_tensor(2), nullptr, {.keep = 0});
  for (const auto* name : {"rank-00000.safetensors", "manifest.json"}) {
    const auto path = root / "step-00000002" / name;
    const auto good = read_file(path);
    for (std::size_t i = 0; i < good.size(); i += test::kSanitized ? 7 : 1) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      test::write_file(path, bad);
      std::vector<std::string> skipped;
      const Tensor w = newest_w(root / "", &skipped);
      // White space of the manifest says nothing.
      const bool space = good[i] == ' ' || good[i] == '\n';
      if (skipped.empty() && space) continue;
      ASSERT_EQ(skipped.size(), 1U) << name << " byte " << i;
      EXPECT_TRUE(skipped[0].starts_with("checkpoint: " + path.string() + ": ")) << skipped[0];
      EXPECT_TRUE(bitwise_equal(w, one_tensor(1).tensors[0].tensor));
    }
    test::write_file(path, good);
  }
  EXPECT_TRUE(bitwise_equal(newest_w(root / ""), one_tensor(2).tensors[0].tensor));
}

TEST(Checkpoint, SaysWhatIsDamaged) {
  const TemporaryFolder root;
  save_now(root / "", 0, one_tensor(1), nullptr);
  save_now(root / "", 1, one_tensor(1), nullptr);
  const auto folder = root / "step-00000001";
  const auto path = folder / "rank-00000.safetensors";
  const auto good = read_file(path);
  const auto reason = [&] {
    std::vector<std::string> skipped;
    newest_w(root / "", &skipped);
    return skipped.empty() ? "" : skipped[0];
  };
  damage(path);
  const auto start =
      "checkpoint: " + path.string() + ": must be of " + std::to_string(good.size()) + " bytes";
  EXPECT_TRUE(reason().starts_with(start + " with CRC-32C ")) << reason();
  test::write_file(path, good.substr(1));
  EXPECT_EQ(reason(), start + ", got " + std::to_string(good.size() - 1));
  fs::remove(path);
  EXPECT_EQ(reason(),
            "checkpoint: " + path.string() + ": must be readable, got No such file or directory");
  test::write_file(path, good);
  fs::remove(folder / "manifest.json");
  EXPECT_EQ(reason(), "checkpoint: " + (folder / "manifest.json").string() +
                          ": must be a readable regular file, got No such file or directory");
}

TEST(Checkpoint, IsPassedOverOnAllRanksIfOneFindsItDamaged) {
  const TemporaryFolder root;
  save_at(root / "", 3);
  const auto path = root / "step-00000007" / "rank-00002.safetensors";
  damage(path);
  std::atomic<int> reasons = 0;
  launch(3, [&](RankContext& context) {
    const auto message = message_of<Error>([&] {
      open_newest_checkpoint(root / "", context.group(), [&](const auto& reason) {
        reasons += reason.starts_with("checkpoint: " + path.string()) ? 1 : 0;
      });
    });
    EXPECT_TRUE(message.starts_with("checkpoint: " + (root / "").string() +
                                    " must have a sound checkpoint or none at all, got none "
                                    "that could be read:\n  checkpoint: " +
                                    path.string() + ": must be of "))
        << message;
  });
  EXPECT_EQ(reasons, 3);
}

TEST(Checkpoint, ThatOneRankAloneCannotReadIsPassedOverWithTheRank) {
  for (const std::string rank : {"0", "1"}) {  // each of two ranks reads one file of two
    const TemporaryFolder root;
    save_at(root / "", 2);
    const auto path = root / "step-00000007" / ("rank-0000" + rank + ".safetensors");
    auto bytes = read_file(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);  // its size stays
    test::write_file(path, bytes);
    launch(2, [&](RankContext& context) {
      std::vector<std::string> reasons;
      EXPECT_THROW(open_newest_checkpoint(root / "", context.group(),
                                          [&](const auto& reason) { reasons.push_back(reason); }),
                   Error);
      EXPECT_THAT(reasons, ::testing::ElementsAre(::testing::MatchesRegex(
                               "checkpoint: .*rank-0000" + rank + ".*CRC-32C.*, on rank " + rank)));
    });
  }
}

TEST(Checkpoint, WhereAllAreDamagedIsAnErrorWithTheReasonOfEach) {
  const TemporaryFolder root;
  for (const auto step : {1, 2}) save_now(root / "", step, one_tensor(1), nullptr);
  fs::remove(root / "step-00000001" / "manifest.json");
  test::write_file(root / "step-00000002" / "rank-00000.safetensors", "short");
  const auto bytes =
      CheckpointManifest(
          parse_checkpoint_manifest(read_file(root / "step-00000002" / "manifest.json"), "test"))
          .files.at("rank-00000.safetensors")
          .bytes;
  EXPECT_EQ(message_of<Error>(
                [&] { open_newest_checkpoint(root / "", nullptr, [](const std::string&) {}); }),
            "checkpoint: " + (root / "").string() +
                " must have a sound checkpoint or none at all, got none that could be read:\n"
                "  checkpoint: " +
                (root / "step-00000002" / "rank-00000.safetensors").string() + ": must be of " +
                std::to_string(bytes) + " bytes, got 5\n  checkpoint: " +
                (root / "step-00000001" / "manifest.json").string() +
                ": must be a readable regular file, got No such file or directory");
}

TEST(Checkpoint, ThatIsDamagedNeitherCountsNorGoesWhenOlderOnesAreRemoved) {
  const TemporaryFolder root;
  std::vector<std::string> warnings;
  const CheckpointOptions options = {.keep = 2,
                                     .warn = [&](const auto& text) { warnings.push_back(text); }};
  for (const auto step : {1, 2, 3, 4}) {
    save_now(root / "", step, one_tensor(1), nullptr, {.keep = 0});
  }
  // The newest cannot be opened, and so does not count; of step 2 a byte has changed.
  fs::remove(root / "step-00000004" / "manifest.json");
  const auto path = root / "step-00000002" / "rank-00000.safetensors";
  damage(path);
  save_now(root / "", 5, one_tensor(1), nullptr, options);
  EXPECT_THAT(steps_in(root / ""), ElementsAre(5, 4, 3, 2));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings[0].starts_with(
      "checkpoint: a damaged checkpoint stays: checkpoint: " + path.string() + ": must be of "))
      << warnings[0];
  save_now(root / "", 6, one_tensor(1), nullptr, options);
  EXPECT_THAT(steps_in(root / ""), ElementsAre(6, 5, 4, 2));
}

TEST(Checkpoint, OfAnotherStepThanItsFolderIsRefused) {
  const TemporaryFolder root;
  save_now(root / "", 7, one_tensor(1), nullptr);
  fs::copy(root / "step-00000007", root / "step-00000009");
  for (const auto& folder : {root / "step-00000009", root / "step-00000009" / ""}) {
    EXPECT_EQ(message_of<Error>([&] { CheckpointReader reader(folder); }),
              "checkpoint: " + folder.string() +
                  ": must be of step 9, as its name says, got 7 in manifest.json");
  }
  std::vector<std::string> skipped;
  newest_w(root / "", &skipped);
  EXPECT_EQ(skipped.size(), 1U);
  // A name that says no step may be anything.
  fs::rename(root / "step-00000009", root / "best");
  EXPECT_EQ(CheckpointReader(root / "best").manifest().step, 7);
  EXPECT_EQ(CheckpointReader(root / "latest").manifest().step, 7);
}

TEST(Checkpoint, WhosePiecesNameEachOthersFilesIsRefused) {
  const TemporaryFolder root;
  save_at(root / "", 2);
  const auto folder = root / "step-00000007";
  auto manifest = parse_checkpoint_manifest(read_file(folder / "manifest.json"), "test");
  auto& pieces = manifest.tensors.at("rows").pieces;
  ASSERT_EQ(pieces.size(), 2U);
  std::swap(pieces[0].file, pieces[1].file);  // of one shape: nothing else would show it
  test::write_file(folder / "manifest.json", to_json(manifest));
  const auto expected = "checkpoint: " + (folder / "rank-00001.safetensors").string() +
                        ": 'rows' must begin at [0,0] as in the manifest, got [8,0]";
  EXPECT_EQ(message_of<Error>([&] { CheckpointReader(folder).verify(); }), expected);
  const Tensor rows = Tensor::zeros({16, 5}, Dtype::kFloat32);
  EXPECT_EQ(message_of<Error>([&] { CheckpointReader(folder).read("rows", rows); }), expected);
  // Also where two ranks share the work of verifying; the first one's failure is said.
  const auto expected_of_rank_0 = "checkpoint: " + (folder / "rank-00000.safetensors").string() +
                                  ": 'rows' must begin at [8,0] as in the manifest, got [0,0]";
  launch(2, [&](RankContext& context) {
    EXPECT_TRUE(message_of<Error>([&] {
                  open_newest_checkpoint(root / "", context.group(), [](const auto&) {});
                }).ends_with(expected_of_rank_0));
  });
}

TEST(Checkpoint, OfAVersionWhoseFilesDoNotSayWhereTheirPiecesBeginIsRead) {
  const TemporaryFolder root;
  save_now(root / "", 7, one_tensor(1), nullptr);
  const auto folder = root / "step-00000007";
  const auto path = folder / "rank-00000.safetensors";
  save_safetensors(path, load_safetensors(path));  // without metadata
  auto manifest = parse_checkpoint_manifest(read_file(folder / "manifest.json"), "test");
  manifest.files.begin()->second = describe_file(path);
  test::write_file(folder / "manifest.json", to_json(manifest));
  EXPECT_TRUE(bitwise_equal(newest_w(root / ""), one_tensor(1).tensors[0].tensor));
}

// Ranks on hosts that do not see one folder: the last of three has its own, of another run.
TEST(Checkpoint, OfAnotherRunOnOneRankIsAnErrorOnAll) {
  const TemporaryFolder shared, own;
  save_at(shared / "", 2, /*seed=*/1);
  save_at(own / "", 2, /*seed=*/2);
  const auto root_of = [&](const RankContext& context) {
    return context.rank() == 2 ? own / "" : shared / "";
  };
  const auto open = [&](const RankContext& context) {
    return open_newest_checkpoint(root_of(context), context.group(), fail_if_skipped);
  };
  launch(3, [&](RankContext& context) {
    EXPECT_EQ(message_of<Error>([&] { open(context); }),
              "checkpoint: " + (root_of(context) / "step-00000007/manifest.json").string() +
                  " must be the same on all ranks, got another on rank 2 than "
                  "on rank 0; all ranks must see one folder");
  });
  // A copy is as good as the folder itself.
  fs::remove_all(own / "step-00000007");
  fs::copy(shared / "step-00000007", own / "step-00000007");
  launch(3, [&](RankContext& context) { EXPECT_TRUE(open(context).has_value()); });
  // Without the first rank's, all would begin anew.
  fs::remove_all(shared / "step-00000007");
  launch(3, [&](RankContext& context) {
    EXPECT_EQ(message_of<Error>([&] { open(context); }),
              "checkpoint: " + root_of(context).string() +
                  " must be the same folder on all ranks, got none on rank 0 "
                  "and step-00000007 on rank 2");
  });
}

// A rank of another host writes into what a killed run has left on that host's own disk.
TEST(Checkpoint, IsNotPublishedWithoutTheFileOfARankThatSeesAnotherFolder) {
  const TemporaryFolder shared, own;
  fs::create_directory(own / ".step-00000004.tmp");
  launch(2, [&](RankContext& context) {
    const auto parts = parts_of(samples(), DeviceMesh::flat(context.group()));
    const auto root = context.rank() == 1 ? own / "" : shared / "";
    EXPECT_EQ(message_of<Error>([&] { save_now(root, 4, {.tensors = parts}, context.group()); }),
              "checkpoint: saving step 4 failed on rank 0: checkpoint: " +
                  (shared / ".step-00000004.tmp/rank-00001.safetensors").string() +
                  ": must be readable, got No such file or directory");
  });
  EXPECT_EQ(shared.count(), 0);
  EXPECT_TRUE(fs::exists(own / ".step-00000004.tmp/rank-00001.safetensors"));
}

TEST(Checkpoint, SaysThatMemoryRanOut) {
  const TemporaryFolder root;
  launch(2, [&](RankContext& context) {
    const CheckpointOptions options = {.observe = [&](CheckpointPoint point) {
      if (point == CheckpointPoint::kFileWritten && context.rank() == 1) throw std::bad_alloc();
    }};
    const auto message =
        message_of<Error>([&] { save_now(root / "", 3, one_tensor(1), context.group(), options); });
    EXPECT_THAT(message, ::testing::MatchesRegex(
                             "checkpoint: saving step 3 failed on rank 1: out of memory, "
                             "[0-9]+ MB in use.*"));
  });
}

TEST(Checkpoint, RefusesTensorsThatItDoesNotHave) {
  const TemporaryFolder root;
  save_now(root / "", 1, {.tensors = {{"w", randn({2, 3})}, {"v", randn({1})}}}, nullptr);
  const auto folder = root / "step-00000001";
  CheckpointReader reader(folder);
  const Tensor v = Tensor::zeros({1}, Dtype::kFloat64), w = Tensor::zeros({2, 3}, Dtype::kFloat64);
  const auto subject = "checkpoint: " + folder.string();
  const auto read = [&](const std::string& name, const Tensor& into) {
    return [&, name, into] { reader.read(name, into); };
  };
  const auto read_all = [&](const NamedTensors& tensors) {
    return [&, tensors] { reader.read_all(tensors); };
  };
  EXPECT_EQ(message_of<ValueError>(read("x", v)), subject + " must have 'x', got none");
  EXPECT_EQ(message_of<ValueError>(read_all({{"w", w}})),
            subject + " has an unexpected tensor 'v'");
  EXPECT_EQ(message_of<ValueError>(read_all({{"w", w}, {"w", w}})),
            "checkpoint: 'w' is asked for twice");
  EXPECT_EQ(message_of<ShapeError>(read("w", Tensor::zeros({3, 2}, Dtype::kFloat64))),
            "checkpoint: 'w' must be [2, 3] as in " + folder.string() + ", got [3, 2]");
  EXPECT_EQ(message_of<DtypeError>(read("w", Tensor::zeros({2, 3}, Dtype::kFloat32))),
            "checkpoint: 'w' must be float64 as in " + folder.string() + ", got float32");
  EXPECT_EQ(message_of<LayoutError>(read("w", Tensor::as_strided(w, {2, 3}, {1, 2}, 0))),
            "checkpoint: 'w' must be contiguous ND");
  const Tensor cut = Tensor::zeros({1, 3}, Dtype::kFloat64);
  cut.set_shard_spec(std::make_shared<ShardSpec>(test::range_spec({2, 3}, 0, 2)));
  EXPECT_EQ(message_of<ShapeError>(read("w", cut)),
            "checkpoint: 'w' must be a shard as its spec says, got [1, 3]");
  reader.read_all({{"w", w}, {"v", v}});
  EXPECT_TRUE(bitwise_equal(w, randn({2, 3})));
}

TEST(Checkpoint, RefusesStateThatItCannotHold) {
  const TemporaryFolder root;
  const auto refusal = [&](const NamedTensors& tensors) {
    return [&, tensors] { write_checkpoint(root / "", 0, {.tensors = tensors}, nullptr); };
  };
  const std::string subject = "checkpoint: saving step 0 failed on rank 0: checkpoint: ";
  const Tensor w = randn({2, 3});
  EXPECT_EQ(message_of<Error>(refusal({{"w", w}, {"w", w}})), subject + "'w' is given twice");
  EXPECT_EQ(message_of<Error>(refusal({{"w", Tensor::as_strided(w, {3, 2}, {1, 3}, 0)}})),
            subject + "'w' must be contiguous ND");
  const Tensor cut = randn({1, 3});
  cut.set_shard_spec(std::make_shared<ShardSpec>(test::range_spec({2, 3}, 0, 2)));
  EXPECT_EQ(message_of<Error>(refusal({{"w", cut}})), subject + "'w' must be [2, 3], got [1, 3]");
  EXPECT_EQ(message_of<Error>([&] {
              save_now(root / "", 0, {.tensors = {{"w", Tensor()}}}, nullptr);
            }),
            "checkpoint: saving step 0 failed on rank 0: tensor: undefined tensor used");
  EXPECT_EQ(message_of<ValueError>([&] { save_now(root / "", -1, {}, nullptr); }),
            "checkpoint: step must not be negative, got -1");
  EXPECT_EQ(
      message_of<ValueError>([&] { const CheckpointSaver bad(root / "", nullptr, {.keep = -1}); }),
      "checkpoint: keep must not be negative, got -1");
}

TEST(Checkpoint, OfRanksThatDisagreeIsAnErrorOnAll) {
  const TemporaryFolder root;
  std::atomic<int> refused = 0;
  launch(3, [&](RankContext& context) {
    const CheckpointState state = {.values = {{"rank", context.rank() == 2 ? "2" : "0 or 1"}}};
    const auto message = message_of<Error>([&] { save_now(root / "", 7, state, context.group()); });
    EXPECT_EQ(message,
              "checkpoint: saving step 7 failed on rank 0: checkpoint: rank 2 must have the step "
              "and values of rank 0");
    ++refused;
  });
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(root.count(), 0);
}

}  // namespace
}  // namespace moegrad::checkpoint_test
