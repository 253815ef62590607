// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state_dict.h"

#include <algorithm>
#include <string>
#include <vector>

#include "framework/distributed/to_local.h"
#include "framework/io/safetensors.h"
#include "framework/runtime/arena.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/hand_sharded.h"
#include "tests/fsdp/models.h"

namespace moegrad::fsdp::state_dict_test {
namespace {

using namespace test;

/// Parameters that no number of ranks divides, ones that many do, experts, and a tied pair.
class Toy final : public nn::Module {
 public:
  explicit Toy(std::uint64_t seed, Dtype dtype = Dtype::kFloat32)
      : embed_(randn({7, 5}, seed, dtype)),
        linear_(randn({3, 24}, seed + 1, dtype)),
        norm_(randn({5}, seed + 2, dtype)),
        experts_(randn({2 * 3, 48}, seed + 3, dtype)),
        head_(embed_) {
    register_parameter("embed", embed_);
    register_parameter("linear", linear_);
    register_parameter("norm", norm_);
    register_parameter("experts", experts_, {.stacked = {2, 3, 48}, .in_first = true});
    register_parameter("head", head_);
  }

  const Tensor& embed() const { return embed_; }
  const Tensor& head() const { return head_; }

 private:
  Tensor embed_, linear_, norm_, experts_, head_;
};

struct Layout {
  int replicas = 1, shards = 1;
  std::int64_t dim = 0;
  int expert_replicas = 1, expert_shards = 0;  // 0: as the rest

  int world_size() const { return replicas * shards; }
};

const std::vector<Layout> kLayouts = {
    {1, 1},    {1, 2},    {1, 3},    {1, 4},    {1, 8},    {2, 2},          {2, 4},
    {1, 2, 1}, {1, 3, 1}, {1, 4, 1}, {1, 8, 1}, {2, 2, 1}, {1, 4, 0, 2, 2}, {1, 8, 1, 4, 2}};

/// The toy in shards on every rank of a layout; then `body`.
template <class Body>
void on_ranks(const Layout& layout, std::uint64_t seed, const Body& body) {
  launch(layout.world_size(), [&](RankContext& context) {
    Toy toy(seed);
    const auto mesh_of = [&](int replicas, int shards) {
      return DeviceMesh(context.group(), {{"replicate", replicas}, {"shard", shards}});
    };
    const auto dense = mesh_of(layout.replicas, layout.shards);
    const bool apart = layout.expert_shards > 0;
    test::shard_by_hand(toy, dense,
                        apart ? mesh_of(layout.expert_replicas, layout.expert_shards) : dense,
                        layout.dim);
    body(toy, context.rank() == 0);
  });
}

/// Each parameter is what its spec says of the whole one.
void expect_holds(const nn::Module& module, const NamedTensors& whole) {
  const auto parameters = module.named_parameters();
  ASSERT_EQ(parameters.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto& parameter = parameters[i].tensor;
    const auto& spec = parameter.shard_spec();
    const Tensor expected =
        spec != nullptr ? clone(shard_view(whole[i].tensor, *spec)) : whole[i].tensor;
    EXPECT_TRUE(bitwise_equal(parameter.detach(), expected)) << whole[i].name;
  }
}

TEST(FullStateDict, GoesFromAnyMeshToAnyOther) {
  const auto expected = Toy(1).state_dict();
  for (const auto& from : kLayouts) {
    NamedTensors state;
    on_ranks(from, 1, [&](Toy& toy, bool first) {
      auto own = full_state_dict(toy);
      if (first) {
        state = std::move(own);
      } else {
        EXPECT_TRUE(own.empty());
      }
    });
    ASSERT_EQ(state.size(), expected.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(state[i].name, expected[i].name);
      EXPECT_TRUE(bitwise_equal(state[i].tensor, expected[i].tensor)) << state[i].name;
    }
    for (const auto& to : kLayouts) {
      on_ranks(to, 100, [&](Toy& toy, bool first) {
        load_full_state_dict(toy, first ? state : NamedTensors());
        expect_holds(toy, expected);
        EXPECT_TRUE(toy.head().is(toy.embed()));
      });
    }
  }
}

TEST(FullStateDict, IsACopyOnAnyNumberOfRanks) {
  for (const int world_size : {1, 2}) {
    launch(world_size, [](RankContext&) {
      Toy toy(1);  // whole on every rank
      const auto state = full_state_dict(toy);
      for (const auto& value : state) {
        for (const auto& parameter : toy.named_parameters()) {
          EXPECT_NE(&value.tensor.storage(), &parameter.tensor.storage());
        }
      }
    });
  }
}

TEST(FullStateDict, IsLoadedIntoWholeParametersAndOtherDtypes) {
  launch(3, [](RankContext& context) {
    Toy toy(100 + static_cast<std::uint64_t>(context.rank()));
    const auto state = Toy(1, Dtype::kFloat64).state_dict();
    load_full_state_dict(toy, context.rank() == 0 ? state : NamedTensors());
    expect_holds(toy, Toy(1, Dtype::kFloat32).state_dict());
  });
}

/// Every rank's message; nothing may have been written.
template <class E>
std::string message_on_all_ranks(const NamedTensors& state) {
  std::string message;
  on_ranks({2, 2}, 1, [&](Toy& toy, bool first) {
    const auto own =
        message_of<E>([&] { load_full_state_dict(toy, first ? state : NamedTensors()); });
    expect_holds(toy, Toy(1).state_dict());
    const auto first_letter = static_cast<std::int64_t>(own.empty() ? 0 : own.front());
    EXPECT_EQ(first_letter, 'l');
    if (first) message = own;
  });
  return message;
}

TEST(FullStateDict, ThatDoesNotFitIsAnErrorOnEveryRank) {
  const auto state = Toy(2).state_dict();
  auto wrong = state;
  wrong.erase(wrong.begin() + 1);
  EXPECT_EQ(message_on_all_ranks<Error>(wrong), "load_full_state_dict: missing key 'linear'");
  wrong = state;
  wrong.push_back({"head", state[0].tensor});
  EXPECT_EQ(message_on_all_ranks<Error>(wrong), "load_full_state_dict: unexpected key 'head'");
  wrong = state;
  wrong.push_back(state[2]);
  EXPECT_EQ(message_on_all_ranks<Error>(wrong), "load_full_state_dict: key 'norm' is given twice");
  wrong = state;
  wrong[3].tensor = randn({2, 3, 48});
  EXPECT_EQ(message_on_all_ranks<ShapeError>(wrong),
            "load_full_state_dict: 'experts' must be [6, 48], got [2, 3, 48]");
}

TEST(FullStateDict, NeedsRoomForOneWholeParameterOnTheFirstRank) {
  std::int64_t all = 0, largest = 0;
  for (const auto& [name, value] : Toy(1).state_dict()) {
    const auto bytes = value.numel() * size_of(value.dtype());
    all += bytes;
    largest = std::max(largest, bytes);
  }
  for (const std::int64_t dim : {0, 1}) {
    on_ranks({1, 4, dim}, 1, [&](Toy& toy, bool first) {
      auto& arena = *RankContext::current().arena();
      const auto peak = [&](const auto& body) {
        const auto live = arena.live().total();
        arena.reset_peak();
        body();
        return arena.peak().total() - live;
      };
      NamedTensors state;
      const auto saving = peak([&] { state = full_state_dict(toy); });
      // The experts come last.
      EXPECT_EQ(saving, !first ? 0 : dim == 0 ? all : all + largest);
      EXPECT_EQ(peak([&] { load_full_state_dict(toy, state); }), first ? largest : 0);
    });
  }
}

models::CausalLMConfig tied_config() {
  auto config = test::sharded_toy_config();
  config.tie_word_embeddings = true;
  return config;
}

TEST(StateDict, OfAShardedModelGoesToAnyNumberOfRanks) {
  const auto config = tied_config();
  const auto expected = models::CausalLM(config, 3).state_dict();
  for (const int from : {1, 2, 3, 8}) {
    NamedTensors state;
    launch(from, [&](RankContext& context) {
      models::CausalLM model(config, 3);
      training::shard_model(model, DeviceMesh::flat(context.group()), {});
      auto own = full_state_dict(model);
      if (context.rank() == 0) state = std::move(own);
    });
    ASSERT_EQ(state.size(), expected.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(state[i].tensor, expected[i].tensor)) << state[i].name;
    }
    for (const int to : {1, 4, 8}) {
      launch(to, [&](RankContext& context) {
        models::CausalLM model(config, 8);
        training::shard_model(model, DeviceMesh::flat(context.group()), {});
        load_full_state_dict(model, context.rank() == 0 ? state : NamedTensors());
        expect_holds(model, expected);
      });
    }
  }
}

// A forward whose backward never comes leaves parameters gathered, here rounded to what travelled.
TEST(StateDict, IsThatOfTheShardsWhileParametersAreGathered) {
  const auto config = tied_config();
  const Policy policy = {.reshard_after_forward = false,
                         .mixed_precision = {.wire_dtype = Dtype::kBFloat16}};
  const auto expected = models::CausalLM(config, 3).state_dict();
  const auto batch = test::toy_batch(config.vocab_size);
  launch(3, [&](RankContext& context) {
    models::CausalLM model(config, 3);
    training::shard_model(model, DeviceMesh::flat(context.group()), policy);
    const auto gather = [&] {
      model(batch.tokens, batch.documents);
      EXPECT_EQ(model.parameter_slots()[0].tensor->shard_spec(), nullptr);
    };
    gather();
    const auto state = full_state_dict(model);
    if (context.rank() == 0) {
      EXPECT_TRUE(bitwise_equal(state[0].tensor, expected[0].tensor));
    }
    gather();
    load_full_state_dict(model, state);
    expect_holds(model, expected);
  });
}

// A file of one rank's shards has the names and, here, the shapes of what a rank holds.
TEST(StateDict, OfShardsIsNoFileAndAFileOfShardsIsNotLoaded) {
  const TemporaryFolder folder;
  const auto path = (folder / "model.safetensors").string();
  launch(2, [&](RankContext& context) {
    const auto mesh = DeviceMesh::flat(context.group());
    models::CausalLM model(tied_config(), 3), other(tied_config(), 8);
    training::shard_model(model, mesh, {});
    training::shard_model(other, mesh, {});
    const auto state = model.state_dict();
    const auto& [name, first] = state.front();
    const auto own = part_text(*first.shard_spec());
    const auto file = path + std::to_string(context.rank());
    EXPECT_EQ(
        message_of<ValueError>([&] { save_safetensors(file, state); }),
        "safetensors: " + file + ": '" + name + "' must be a whole tensor, got " + own +
            "; fsdp::full_state_dict gathers whole tensors, and CheckpointSaver saves shards");
    NamedTensors local = state;
    for (auto& [key, tensor] : local) tensor = to_local(tensor);
    save_safetensors(file, local);
    const auto before = full_state_dict(other);
    EXPECT_EQ(message_of<ValueError>([&] { other.load_state_dict(load_safetensors(file)); }),
              "load_state_dict: '" + name + "' must be " + own + ", got " +
                  part_text(whole_spec(first.shape())));
    const auto after = full_state_dict(other);
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(after[i].tensor, before[i].tensor)) << after[i].name;
    }
    // Whole tensors go to rank 0 and come from there.
    const auto whole = full_state_dict(model);
    if (context.rank() == 0) save_safetensors(path, whole);
    load_full_state_dict(other, context.rank() == 0 ? load_safetensors(path) : NamedTensors());
    expect_holds(other, models::CausalLM(tied_config(), 3).state_dict());
  });
}

TEST(StateDict, OfShardsIsTheLiveShardsAndComesBackBitwise) {
  const auto config = tied_config();
  for (const int world_size : {1, 3, 4}) {
    launch(world_size, [&](RankContext& context) {
      const auto mesh = DeviceMesh::flat(context.group());
      models::CausalLM model(config, 3), other(config, 8);
      training::shard_model(model, mesh, {});
      training::shard_model(other, mesh, {});
      const auto state = model.state_dict();
      const auto parameters = model.named_parameters();
      ASSERT_EQ(state.size(), parameters.size());
      for (std::size_t i = 0; i < state.size(); ++i) {
        EXPECT_EQ(&state[i].tensor.storage(), &parameters[i].tensor.storage());
      }
      other.load_state_dict(state);
      expect_holds(other, models::CausalLM(config, 3).state_dict());
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::state_dict_test
