// SPDX-License-Identifier: Apache-2.0
// A module as text.
#include <sstream>
#include <string>
#include <utility>

#include "nn/activations.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/module_list.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::nn::module_print_test {
namespace {

std::string text_of(const Module& module) {
  std::ostringstream out;
  out << module;
  return out.str();
}

TEST(ModulePrint, ShowsTheTreeWithShapesAndTheNumberOfParameters) {
  Sequential net;
  net.emplace_back<Linear>({.in_features = 2, .out_features = 3, .bias = true});
  net.emplace_back<GELU>();
  net.emplace_back<RMSNorm>({.dim = 3, .dtype = Dtype::kFloat64});
  EXPECT_EQ(text_of(net),
            "Sequential(\n"
            "  (0): Linear(weight [3, 2], bias [3])\n"
            "  (1): GELU()\n"
            "  (2): RMSNorm(weight [3] float64)\n"
            ")\n"
            "12 parameters");
  EXPECT_EQ(text_of(Linear({.in_features = 1, .out_features = 1})),
            "Linear(weight [1, 1])\n1 parameter");
}

class Block final : public Callable<Block> {
 public:
  explicit Block(std::int64_t size) : linear_({.in_features = size, .out_features = size}) {
    register_parameter("scale", scale_);
    register_buffer("mean", mean_);
    register_module("linear", linear_);
  }
  Tensor forward(const Tensor& x) { return linear_(x); }
  Tensor& scale() { return scale_; }

 private:
  Tensor scale_ = Tensor::ones({2});
  Tensor mean_ = Tensor::zeros({}, Dtype::kInt64);
  Linear linear_;
};

class Model final : public Module {
 public:
  Model() : embedding({.num_embeddings = 5, .embedding_dim = 4}), head(embedding.weight()) {
    register_module("embedding", embedding);
    register_module("blocks", blocks);
    for (const std::int64_t size : {4, 4, 4, 2}) blocks.emplace_back(size);
    register_module("head", head);
  }
  Embedding embedding;
  ModuleList<Block> blocks;
  Linear head;
};

TEST(ModulePrint, CountsWhatIsTiedOnceAndJoinsChildrenThatAreAlike) {
  Model model;
  const std::string rest =
      "    (3): Block(\n"
      "      scale [2]\n"
      "      mean [] int64 buffer\n"
      "      (linear): Linear(weight [2, 2])\n"
      "    )\n"
      "  )\n"
      "  (head): Linear(weight [5, 4] tied to embedding.weight)\n"
      ")\n";
  EXPECT_EQ(text_of(model),
            "Model(\n"
            "  (embedding): Embedding(weight [5, 4])\n"
            "  (blocks): ModuleList<Block>(\n"
            "    (0-2): 3 x Block(\n"
            "      scale [2]\n"
            "      mean [] int64 buffer\n"
            "      (linear): Linear(weight [4, 4])\n"
            "    )\n" +
                rest + "80 parameters");
  model.blocks[1].scale().set_requires_grad(false);
  const auto text = text_of(model);
  EXPECT_NE(text.find("    (1): Block(\n      scale [2] frozen\n"), std::string::npos) << text;
  EXPECT_NE(text.find("    (0): Block("), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(rest + "80 parameters, of which 78 are trained")) << text;
}

TEST(ModulePrint, ShowsTheWholeShapeOfAShard) {
  Linear linear({.in_features = 2, .out_features = 3});
  linear.weight().set_shard_spec(std::make_shared<const ShardSpec>(test::range_spec({6, 2}, 0, 3)));
  EXPECT_EQ(text_of(linear), "Linear(weight [6, 2])\n12 parameters");
}

}  // namespace
}  // namespace moegrad::nn::module_print_test
