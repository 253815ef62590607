// SPDX-License-Identifier: Apache-2.0
// Two models that share an embedding, sharded.
#include <cstdint>
#include <memory>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "ops/reduce.h"
#include "optim/sgd.h"
#include "tests/testing.h"

namespace moegrad::fsdp::shared_embedding_test {
namespace {

using namespace test;

class Tower final : public nn::Callable<Tower> {
 public:
  explicit Tower(const Tensor& weight)
      : emb_(weight),
        out_({.in_features = 4, .out_features = 3, .bias = true, .dtype = Dtype::kFloat64}) {
    register_module("emb", emb_);
    register_module("out", out_);
  }
  Tensor forward(const Tensor& ids) { return out_(emb_(ids)); }

 private:
  nn::Embedding emb_;
  nn::Linear out_;
};

class Both final : public nn::Callable<Both> {
 public:
  Both() : a(weight_), b(weight_) {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& ids) { return a(ids) * b(ids); }

 private:
  Tensor weight_ = Tensor::zeros({7, 4}, Dtype::kFloat64);  // 2 ranks do not divide its rows

 public:
  Tower a, b;
};

// Three steps on six tokens, of which each rank has its part.
void train(Both& model, int rank, int ranks) {
  optim::SGD optimizer(model.named_parameters(), {.lr = 0.1});
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{1, 5, 0, 6, 6, 2}, {6});
  const auto part = 6 / ranks;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    ops::sum(model(ids.slice(0, rank * part, (rank + 1) * part))).backward();
    optimizer.step();
  }
}

TEST(SharedEmbedding, TwoTowersOfOneTensorTrainAsWithoutShards) {
  Both plain;
  nn::init_weights(plain, 1, 0.5);
  train(plain, 0, 1);
  const auto want = plain.state_dict();
  ASSERT_EQ(want.size(), 5U);  // the embedding once
  for (const bool one_group : {false, true}) {
    launch(2, [&](RankContext& rank) {
      Both model;
      nn::init_weights(model, 1, 0.5);
      const auto mesh = DeviceMesh::flat(rank.group());
      if (one_group) fully_shard({&model.a, &model.b}, mesh);
      fully_shard(model, mesh);
      train(model, rank.rank(), 2);
      const auto got = full_state_dict(model);  // on rank 0
      ASSERT_EQ(got.size(), rank.rank() == 0 ? want.size() : 0);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].name, want[i].name);
        EXPECT_TRUE(all_close(got[i].tensor, want[i].tensor, 1e-12, 1e-12)) << want[i].name;
      }
    });
  }
}

// The errors on the way there name the next step.
TEST(SharedEmbedding, ErrorsLeadToOneHolder) {
  launch(2, [&](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    const Tensor weight = Tensor::zeros({7, 4}, Dtype::kFloat64);
    Tower a(weight), b(weight);
    fully_shard(a, mesh);
    EXPECT_EQ(
        message_of<Error>([&] { fully_shard(b, mesh); }),
        "fully_shard: parameter 'emb.weight' is tied to one that an earlier fully_shard call "
        "has taken; shard both in one call, by fully_shard({&a, &b}, mesh) and then the module "
        "that holds a and b (or, if that call was for a module above, call fully_shard "
        "bottom-up)");
    Tower c(clone(weight)), d(c.named_parameters()[0].tensor);
    fully_shard({&c, &d}, mesh);
    EXPECT_EQ(
        message_of<Error>([&] { c(Tensor::from(std::vector<std::int64_t>{1}, {1})); }),
        "fully_shard: '' ran forward first, but a group of several modules cannot be the root; "
        "register them in one module, pass that to fully_shard, too, and call it");
  });
}

}  // namespace
}  // namespace moegrad::fsdp::shared_embedding_test
