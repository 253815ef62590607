// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size.
#include "tools/check_golden/golden_block.h"

#include <Eigen/QR>
#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "framework/distributed/collectives.h"
#include "framework/distributed/device_mesh.h"
#include "framework/distributed/gather_shards.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm/hf_layout.h"
#include "models/plain_moe.h"
#include "nn/moe.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/views.h"
#include "parallel/expert/expert_parallel.h"
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

/// What the block is given: [T, H], but for the routing weights [T, K].
struct BlockInput {
  Tensor x, cotangent, weights;
};

struct BlockResult {
  Tensor y, grad_x;        // [T, H]
  NamedTensors gradients;  // by Hugging Face's names; of rank 0
};

/// The block's y for x [T, H] with these routing weights [T, K].
Tensor run_nodes(nn::MoE& block, const Tensor& x, const Tensor& weights) {
  auto routed = block.call_method(&nn::MoE::route, x, Tensor());
  routed.weights = routed.weights + (weights - routed.weights.detach());
  const Tensor branch = block.shared_input(x);
  const auto dispatched = block.call_method(&nn::MoE::dispatch, x, routed);
  const Tensor rows = block.call_method(&nn::MoE::experts, dispatched);
  const Tensor y = block.call_method(&nn::MoE::combine, rows, dispatched);
  return branch.defined() ? y + block.call_method(&nn::MoE::shared, branch) : y;
}

/// Rows [begin, end) of x through the block, and back from their cotangents.
BlockResult run_rows(nn::MoE& block, const nn::MoE::Config& config, GoldenPath path,
                     const BlockInput& input, std::int64_t begin, std::int64_t end) {
  const auto& [x, cotangent, all_weights] = input;
  Tensor rows = clone(ops::narrow(x, 0, begin, end - begin));
  rows.set_requires_grad(true);
  const Tensor weights = clone(ops::narrow(all_weights, 0, begin, end - begin));
  const auto tensors = models::plain_tensors(block);
  const auto named = [&](const std::string& name) { return golden_tensor(tensors, name); };
  const Tensor y = path == GoldenPath::kPlain
                       ? models::plain_moe(config, named, rows, {}, weights).hidden
                       : run_nodes(block, rows, weights);
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

BlockResult run_block(const nn::MoE::Config& config, GoldenPath path, const ParallelDims& dims,
                      const fs::path& folder, const BlockInput& input) {
  BlockResult result;
  launch(path == GoldenPath::kSharded ? dims.ranks() : 1, [&](RankContext& context) {
    nn::MoE block(config);
    BlockFile file(folder);
    load_block(block, file);
    const auto ranks = context.world_size(), rank = context.rank();
    if (path == GoldenPath::kSharded) {
      const auto meshes = make_meshes(context.group(), dims);
      parallel::expert_parallel(block, meshes.expert);
      fsdp::fully_shard(block, meshes.fsdp(), {.expert_mesh = meshes.expert_fsdp()});
    }
    const auto tokens = input.x.dim(0);
    auto own =
        run_rows(block, config, path, input, tokens * rank / ranks, tokens * (rank + 1) / ranks);
    own.gradients = whole_gradients(block);
    if (ranks > 1) {
      all_reduce(*context.group(), own.y);  // of zeros but for each rank's own rows
      all_reduce(*context.group(), own.grad_x);
    }
    if (rank == 0) result = std::move(own);
  });
  return result;
}

/// The routing weights that the reference had: Note [A router in float32]. `routing`: the block's
/// own, in plain operations; y: [T, H].
Tensor weights_in(const Tensor& y, const nn::MoE::Output& routing, const nn::MoE::Config& config,
                  const NamedTensors& tensors, const Tensor& x) {
  const NoGradGuard no_grad;
  const auto named = [&](const std::string& name) { return golden_tensor(tensors, name); };
  const auto tokens = x.dim(0), hidden = x.dim(1), k = config.top_k;
  const auto outputs_with = [&](const Tensor& weights) {  // [T, H]
    return models::plain_moe(config, named, x, routing.expert_indices, weights).hidden;
  };
  const Tensor none = Tensor::zeros({tokens, k}, Dtype::kFloat64);
  const Tensor shared = outputs_with(none);
  TensorList outputs;  // [T, H], of each token's j-th expert
  for (std::int64_t j = 0; j < k; ++j) {
    Tensor one = clone(none);
    for (std::int64_t t = 0; t < tokens; ++t) {
      one.mutable_data<double>()[static_cast<std::size_t>(t * k + j)] = 1;
    }
    outputs.push_back(outputs_with(one) - shared);
  }
  const Tensor of_experts = y - shared;
  const auto row = [&](const Tensor& tensor, std::int64_t t) {
    return Eigen::Map<const Eigen::VectorXd>(tensor.data<double>().data() + t * hidden, hidden);
  };
  Tensor weights = clone(none);
  for (std::int64_t t = 0; t < tokens; ++t) {
    Eigen::MatrixXd equations(hidden, k);
    for (std::int64_t j = 0; j < k; ++j) {
      equations.col(j) = row(outputs[static_cast<std::size_t>(j)], t);
    }
    const Eigen::VectorXd solved = equations.colPivHouseholderQr().solve(row(of_experts, t));
    std::copy_n(solved.data(), k, weights.mutable_data<double>().data() + t * k);
  }
  return weights;
}

GoldenCheck relative_check(const std::string& quantity, const NamedTensors& expected,
                           const NamedTensors& values, double limit) {
  Worst worst;
  for (const auto& [name, tensor] : expected) {
    const auto [difference, norm] = norms_of(golden_tensor(values, name), tensor);
    worst.include(norm > 0 ? difference / norm : difference, name);
  }
  return worst.check(quantity, limit);
}

}  // namespace

GoldenBlock check_golden_block(const fs::path& folder, GoldenPath path, const ParallelDims& ranks) {
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

  auto plain_config = config;
  plain_config.expert_weights = nn::ExpertWeights::kHuggingFace;
  nn::MoE plain(plain_config);
  load_block(plain, file);
  const auto tensors = models::plain_tensors(plain);
  const auto named = [&](const std::string& name) { return golden_tensor(tensors, name); };
  const auto routing = models::plain_moe(plain_config, named, x);
  const Tensor weights = weights_in(y, routing, plain_config, tensors, x);

  NamedTensors of_router, others;
  for (const auto& gradient : gradients) {
    (gradient.name == "gate.weight" ? of_router : others).push_back(gradient);
  }
  const auto result =
      run_block(config, path, ranks, folder, {.x = x, .cotangent = cotangent, .weights = weights});
  Worst of_weights, of_y;
  of_weights.include(max_difference(routing.routing_weights.detach(), weights));
  of_y.include(max_difference(result.y, y));
  block.checks = {
      of_weights.check("routing weights", kGoldenRouter), of_y.check("y", kGoldenBlock),
      relative_check(counted("gradients", others.size()), others, result.gradients, kGoldenBlock),
      relative_check("grad.x", {{"x", grad_x}}, {{"x", result.grad_x}}, kGoldenRouter),
      relative_check("grad.gate.weight", of_router, result.gradients, kGoldenRouter)};
  return block;
}

}  // namespace moegrad::tools
