// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size.
#include "tools/check_golden/golden_block.h"

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "framework/distributed/collectives.h"
#include "framework/distributed/device_mesh.h"
#include "framework/distributed/gather_shards.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm/hf_layout.h"
#include "models/plain_moe.h"
#include "nn/moe.h"
#include "ops/copies.h"
#include "ops/views.h"
#include "tools/check_golden/golden_compare.h"
#include "tools/check_golden/golden_files.h"

namespace moegrad::tools {
namespace {

namespace fs = std::filesystem;

nn::MoE::Config read_block_config(const fs::path& folder, GoldenPath path) {
  const auto keys = read_golden_json(folder / "config.json");
  const auto require_word = [&](const char* key, std::string_view word) {
    if (keys.has(key)) {
      keys[key].require(keys[key].text() == word, "must be \"", word, "\", got ", keys[key]);
    }
  };
  keys["model_type"].require(keys["model_type"].text() == "deepseek_v3",
                             "must be \"deepseek_v3\" beside block.safetensors, got ",
                             keys["model_type"]);
  require_word("hidden_act", "silu");
  require_word("scoring_func", "sigmoid");
  require_word("topk_method", "noaux_tc");
  const auto inner = keys["moe_intermediate_size"].integer();
  return {.hidden_size = keys["hidden_size"].integer(),
          .intermediate_size = inner,
          .num_experts = keys["n_routed_experts"].integer(),
          .top_k = keys["num_experts_per_tok"].integer(),
          .norm_topk_prob = keys["norm_topk_prob"].boolean(),
          .scores = nn::RouterScores::kSigmoid,
          .num_groups = keys["n_group"].integer(),
          .topk_groups = keys["topk_group"].integer(),
          .routed_scaling_factor = keys["routed_scaling_factor"].number(),
          .correction_bias = true,
          .shared_intermediate_size =
              keys.has("n_shared_experts") ? inner * keys["n_shared_experts"].integer() : 0,
          .expert_weights = path == GoldenPath::kPlain ? nn::ExpertWeights::kHuggingFace
                                                       : nn::ExpertWeights::kPretransposed,
          .dtype = Dtype::kFloat64};
}

/// The shape of a weight as transformers 5 stores it.
Shape stored_shape(const nn::ParameterSlot& slot) {
  const auto& stacked = slot.layout.stacked;
  if (stacked.ndim() == 0) return slot.tensor->shape();
  return slot.layout.in_first ? Shape{stacked[0], stacked[2], stacked[1]} : stacked;
}

/// Tensors of the file, and the names of those that it should have and has not.
struct BlockFile {
  explicit BlockFile(const fs::path& folder) : tensors(folder / "block.safetensors") {}

  Tensor take(const std::string& name, const Shape& shape) {
    Tensor tensor = tensors.find(name, shape);
    if (!tensor.defined()) missing.insert("block.safetensors: " + name);
    return tensor;
  }

  GoldenTensors tensors;
  std::set<std::string> missing;
};

void load_block(nn::MoE& block, BlockFile& file) {
  for (const auto& slot : block.parameter_slots()) {
    Tensor values = file.take("param." + slot.name, stored_shape(slot));
    if (!values.defined()) continue;
    if (slot.layout.in_first) values = ops::contiguous(ops::transpose(values, 1, 2));
    Tensor parameter = slot.tensor->detach();
    copy_(parameter, ops::reshape(values, parameter.shape()));
  }
  for (const auto& slot : block.buffer_slots()) {
    const Tensor values = file.take("buffer." + slot.name, slot.tensor->shape());
    if (values.defined()) copy_(*slot.tensor, values);
  }
}

struct BlockResult {
  Tensor y, grad_x;        // [T, H]
  NamedTensors gradients;  // by Hugging Face's names; of rank 0
};

/// Rows [begin, end) of x through the block, and back from their cotangents.
BlockResult run_rows(nn::MoE& block, const nn::MoE::Config& config, GoldenPath path,
                     const Tensor& x, const Tensor& cotangent, std::int64_t begin,
                     std::int64_t end) {
  Tensor rows = clone(ops::narrow(x, 0, begin, end - begin));
  rows.set_requires_grad(true);
  auto tensors = block.named_parameters();
  for (auto& buffer : block.named_buffers()) tensors.push_back(std::move(buffer));
  const auto named = [&](const std::string& name) { return golden_tensor(tensors, name); };
  const Tensor y = path == GoldenPath::kPlain ? models::plain_moe(config, named, rows).hidden
                                              : block(rows).hidden;
  y.backward(ops::contiguous(ops::narrow(cotangent, 0, begin, end - begin)));
  BlockResult result{.y = Tensor::zeros(x.shape(), Dtype::kFloat64),
                     .grad_x = Tensor::zeros(x.shape(), Dtype::kFloat64),
                     .gradients = {}};
  Tensor own_y = Tensor::narrow(result.y, 0, begin, end - begin);
  Tensor own_grad = Tensor::narrow(result.grad_x, 0, begin, end - begin);
  copy_(own_y, y.detach());
  copy_(own_grad, rows.grad());
  return result;
}

NamedTensors whole_gradients(const nn::MoE& block) {
  NamedTensors gradients;
  for (const auto& slot : block.parameter_slots()) {
    const auto& parameter = slot.parameter();
    const auto& spec = parameter.shard_spec();
    const Tensor whole = spec ? gather_shards(parameter.grad(), *spec) : parameter.grad();
    if (!whole.defined()) continue;
    for (auto& tensor :
         models::to_hugging_face(slot.name, slot.layout, whole, models::HfExperts::kFused)) {
      gradients.push_back(std::move(tensor));
    }
  }
  return gradients;
}

BlockResult run_block(const nn::MoE::Config& config, GoldenPath path, int world_size,
                      const fs::path& folder, const Tensor& x, const Tensor& cotangent) {
  BlockResult result;
  launch(path == GoldenPath::kSharded ? world_size : 1, [&](RankContext& context) {
    nn::MoE block(config);
    BlockFile file(folder);
    load_block(block, file);
    const auto ranks = context.world_size(), rank = context.rank();
    if (path == GoldenPath::kSharded) {
      fsdp::fully_shard(block, DeviceMesh::flat(context.group()));
    }
    const auto tokens = x.dim(0);
    auto own = run_rows(block, config, path, x, cotangent, tokens * rank / ranks,
                        tokens * (rank + 1) / ranks);
    own.gradients = whole_gradients(block);
    if (ranks > 1) {
      all_reduce(*context.group(), own.y);  // of zeros but for each rank's own rows
      all_reduce(*context.group(), own.grad_x);
    }
    if (rank == 0) result = std::move(own);
  });
  return result;
}

GoldenCheck relative_check(const std::string& quantity, const NamedTensors& expected,
                           const NamedTensors& values) {
  Worst worst;
  for (const auto& [name, tensor] : expected) {
    const auto [difference, norm] = norms_of(golden_tensor(values, name), tensor);
    worst.include(norm > 0 ? difference / norm : difference, name);
  }
  return worst.check(quantity, kGoldenBlock);
}

}  // namespace

GoldenBlock check_golden_block(const fs::path& folder, GoldenPath path, int world_size) {
  const auto config = read_block_config(folder, path);
  BlockFile file(folder);
  nn::MoE shapes(config);
  load_block(shapes, file);
  const auto rows = [&](const std::string& name, std::int64_t tokens) {
    const Tensor tensor = file.take(name, {1, tokens, config.hidden_size});
    return tensor.defined() ? ops::reshape(tensor, {tokens, config.hidden_size}) : tensor;
  };
  const auto given = file.tensors.shape_of("x");
  check<ShapeError>(!given || given->ndim() == 3,
                    "block.safetensors: 'x' must be [1, tokens, hidden_size], got ",
                    given.value_or(Shape()));
  const auto tokens = given ? (*given)[1] : 0;
  const Tensor x = rows("x", tokens), cotangent = rows("cotangent", tokens);
  const Tensor y = rows("y", tokens), grad_x = rows("grad.x", tokens);
  NamedTensors gradients;
  for (const auto& slot : shapes.parameter_slots()) {
    const Tensor tensor = file.take("grad." + slot.name, stored_shape(slot));
    if (tensor.defined()) gradients.push_back({slot.name, tensor});
  }
  file.tensors.refuse_unread();
  GoldenBlock block{.checks = {}, .missing = {file.missing.begin(), file.missing.end()}};
  if (!file.missing.empty()) return block;

  const auto result = run_block(config, path, world_size, folder, x, cotangent);
  Worst worst;
  worst.include(max_difference(result.y, y));
  block.checks.push_back(worst.check("y", kGoldenBlock));
  block.checks.push_back(relative_check("grad.x", {{"x", grad_x}}, {{"x", result.grad_x}}));
  block.checks.push_back(
      relative_check(counted("gradients", gradients.size()), gradients, result.gradients));
  return block;
}

}  // namespace moegrad::tools
