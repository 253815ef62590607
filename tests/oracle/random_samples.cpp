// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/random_samples.h"

#include <algorithm>
#include <cmath>

#include "framework/runtime/random.h"

namespace moegrad::test {
namespace {

// Integers one after the other.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed, "oracle sizes") {}

  /// Uniform in [low, high].
  std::int64_t roll(std::int64_t low, std::int64_t high) {
    return low + random_.integer(next_++, high - low + 1);
  }
  bool flip() { return roll(0, 1) == 1; }
  /// Ascending, from 0 to `total`, with pieces that may be empty.
  std::vector<std::int64_t> cuts(std::int64_t pieces, std::int64_t total) {
    std::vector<std::int64_t> ends{0, total};
    for (std::int64_t i = 1; i < pieces; ++i) ends.push_back(roll(0, total));
    std::ranges::sort(ends);
    return ends;
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

Input indices(const Shape& shape, std::int64_t bound, bool distinct = false) {
  return {
      .shape = shape, .draw = distinct ? Draw::kDistinctIndices : Draw::kIndices, .bound = bound};
}

OpSample attention_sample(Dice& dice) {
  const auto tokens = dice.roll(1, 130), kv_heads = dice.roll(1, 3), d = dice.roll(1, 20);
  const Shape query{tokens, kv_heads * dice.roll(1, 4), d}, key{tokens, kv_heads, d};
  return {.inputs = {{.shape = query}, {.shape = key}, {.shape = key}},
          .args = {{"cu_seqlens", dice.cuts(dice.roll(1, 6), tokens)},
                   {"scale", 1 / std::sqrt(static_cast<double>(d))}}};
}

OpSample grouped_matmul_sample(Dice& dice) {
  const auto rows = dice.roll(0, 60), k = dice.roll(1, 40), n = dice.roll(1, 40);
  const auto experts = dice.roll(1, 9);
  const bool transposed = dice.flip();
  return {.inputs = {{.shape = {rows, k}},
                     {.shape = transposed ? Shape{experts, n, k} : Shape{experts, k, n}}},
          .args = {{"offsets", dice.cuts(experts, rows)}, {"transpose_weight", transposed}}};
}

OpSample npu_gmm_sample(Dice& dice) {
  const auto rows = dice.roll(0, 60), k = dice.roll(1, 40), n = dice.roll(1, 40);
  const auto experts = dice.roll(1, 9);
  const auto ends = dice.cuts(experts, rows);
  std::vector<std::int64_t> counts;
  for (std::size_t e = 1; e < ends.size(); ++e) counts.push_back(ends[e] - ends[e - 1]);
  const Shape weight = dice.flip() ? Shape{experts, k, n} : Shape{experts * k, n};
  return {.inputs = {{.shape = weight}, {.shape = {rows, k}}},
          .args = {{"tokens_per_expert", counts}}};
}

OpSample topk_softmax_sample(Dice& dice) {
  const auto tokens = dice.roll(1, 40), experts = dice.roll(1, 40), k = dice.roll(1, experts);
  OpSample sample{.inputs = {{.shape = {tokens, experts}}},
                  .args = {{"k", k}, {"normalize", dice.flip()}}};
  if (dice.flip()) sample.inputs.push_back(indices({tokens, k}, experts, true));
  return sample;
}

OpSample unpermute_rows_sample(Dice& dice) {
  const auto tokens = dice.roll(1, 40), experts = dice.roll(1, 12), k = dice.roll(1, experts);
  return {
      .inputs = {{.shape = {tokens * k, dice.roll(1, 50)}}, indices({tokens, k}, experts, true)},
      .args = {{"experts", experts}}};
}

OpSample permute_rows_sample(Dice& dice) {
  const auto tokens = dice.roll(1, 40), experts = dice.roll(1, 12), k = dice.roll(1, experts);
  return {.inputs = {{.shape = {tokens, dice.roll(1, 50)}}, indices({tokens, k}, experts, true)},
          .args = {{"experts", experts}}};
}

OpSample load_balancing_sample(Dice& dice) {
  const auto layers = dice.roll(1, 4), tokens = dice.roll(1, 40), experts = dice.roll(1, 20);
  const auto k = dice.roll(1, experts);
  OpSample sample{.args = {{"layers", layers}}};
  for (std::int64_t i = 0; i < layers; ++i) sample.inputs.push_back({.shape = {tokens, experts}});
  for (std::int64_t i = 0; i < layers; ++i) {
    sample.inputs.push_back(indices({tokens, k}, experts, true));
  }
  if (dice.flip()) {
    sample.inputs.push_back({.shape = {tokens}, .draw = Draw::kPositive, .has_gradient = false});
  }
  return sample;
}

OpSample cross_entropy_sample(Dice& dice) {
  const auto tokens = dice.roll(1, 40), classes = dice.roll(1, 300);
  std::vector<double> targets;
  for (std::int64_t t = 0; t < tokens; ++t) {
    targets.push_back(dice.roll(0, 4) == 0 ? -100 : static_cast<double>(dice.roll(0, classes - 1)));
  }
  OpSample sample{.inputs = {{.shape = {tokens, classes}}, indices({tokens}, classes)}};
  sample.inputs[1].given = targets;
  if (dice.flip()) sample.args["denominator"] = static_cast<double>(dice.roll(1, 100));
  if (dice.flip()) sample.args["smoothing"] = static_cast<double>(dice.roll(0, 10)) / 10;
  if (dice.flip()) sample.args["ignore_index"] = dice.roll(0, classes - 1);
  if (dice.flip()) {
    sample.inputs.push_back({.shape = {classes}, .draw = Draw::kPositive, .has_gradient = false});
  }
  // The rows that -100 marks are ignored by that number alone.
  for (auto& target : sample.inputs[1].given) {
    if (sample.args.contains("ignore_index") && target < 0) target = sample.args["ignore_index"];
  }
  return sample;
}

std::string drawn_reduction(Dice& dice) {
  return std::vector<std::string>{"mean", "sum", "none"}[static_cast<std::size_t>(dice.roll(0, 2))];
}

OpSample pair_sample(Dice& dice) {
  const Shape shape{dice.roll(1, 20), dice.roll(1, 30)};
  return {.inputs = {{.shape = shape}, {.shape = shape}},
          .args = {{"reduction", drawn_reduction(dice)}}};
}

OpSample kl_div_sample(Dice& dice) {
  auto sample = pair_sample(dice);
  sample.inputs[1].has_gradient = false;
  sample.args["log_target"] = true;
  return sample;
}

OpSample layer_norm_sample(Dice& dice) {
  const Shape shape{dice.roll(1, 40), dice.roll(2, 70)};
  const bool weight = dice.flip(), bias = dice.flip();
  OpSample sample{.inputs = {{.shape = shape}},
                  .args = {{"eps", 1e-5}, {"weight", weight}, {"bias", bias}}};
  if (weight) sample.inputs.push_back({.shape = {shape[1]}});
  if (bias) sample.inputs.push_back({.shape = {shape[1]}});
  return sample;
}

OpSample bmm_sample(Dice& dice) {
  const auto batch = dice.roll(1, 6), k = dice.roll(1, 40);
  return {
      .inputs = {{.shape = {batch, dice.roll(1, 40), k}}, {.shape = {batch, k, dice.roll(1, 40)}}}};
}

OpSample sort_sample(Dice& dice) {
  return {.inputs = {{.shape = {dice.roll(1, 20), dice.roll(1, 20)}}},
          .args = {{"dim", dice.roll(-2, 1)}, {"descending", dice.flip()}}};
}

OpSample chunk_sample(Dice& dice) {
  return {.inputs = {{.shape = {dice.roll(1, 20), dice.roll(1, 20)}}},
          .args = {{"dim", dice.roll(-2, 1)}, {"n", dice.roll(1, 9)}}};
}

OpSample embedding_sample(Dice& dice) {
  const auto words = dice.roll(1, 30);
  return {.inputs = {indices({dice.roll(1, 5), dice.roll(1, 40)}, words),
                     {.shape = {words, dice.roll(1, 50)}}}};
}

OpSample rms_norm_sample(Dice& dice) {
  const Shape shape{dice.roll(1, 40), dice.roll(1, 5), dice.roll(1, 70)};
  return {.inputs = {{.shape = shape}, {.shape = {shape[2]}}}, .args = {{"eps", 1e-6}}};
}

OpSample add_rms_norm_sample(Dice& dice) {
  auto sample = rms_norm_sample(dice);
  sample.inputs.insert(sample.inputs.begin(), sample.inputs[0]);
  return sample;
}

OpSample linear_sample(Dice& dice) {
  const Shape shape{dice.roll(1, 5), dice.roll(1, 30), dice.roll(1, 50)};
  return {.inputs = {{.shape = shape}, {.shape = {dice.roll(1, 50), shape[2]}}}};
}

OpSample matmul_sample(Dice& dice) {
  const auto batch = dice.roll(1, 4), m = dice.roll(1, 30), k = dice.roll(1, 30);
  const auto n = dice.roll(1, 30);
  return {.inputs = {{.shape = dice.flip() ? Shape{batch, m, k} : Shape{m, k}},
                     {.shape = dice.flip() ? Shape{batch, k, n} : Shape{k, n}}}};
}

OpSample softmax_sample(Dice& dice) {
  return {.inputs = {{.shape = {dice.roll(1, 20), dice.roll(1, 30), dice.roll(1, 9)}}},
          .args = {{"dim", dice.roll(-3, 2)}}};
}

OpSample topk_sample(Dice& dice) {
  const auto n = dice.roll(1, 40);
  return {.inputs = {{.shape = {dice.roll(1, 20), n}}},
          .args = {{"k", dice.roll(0, n)}, {"dim", 1}, {"largest", dice.flip()}}};
}

OpSample gather_sample(Dice& dice) {
  const auto rows = dice.roll(1, 9), columns = dice.roll(1, 20);
  return {.inputs = {{.shape = {rows, columns, 3}},
                     indices({dice.roll(1, rows), dice.roll(1, 30), dice.roll(1, 3)}, columns)},
          .args = {{"dim", 1}}};
}

OpSample scatter_add_sample(Dice& dice) {
  auto sample = gather_sample(dice);
  sample.inputs.push_back({.shape = sample.inputs[1].shape});
  return sample;
}

OpSample statistics_sample(Dice& dice) {
  return {.inputs = {{.shape = {dice.roll(2, 20), dice.roll(2, 20)}}},
          .args = {{"dim", dice.roll(0, 1)}, {"keepdim", dice.flip()}, {"correction", 1}}};
}

OpSample cumsum_sample(Dice& dice) {
  return {.inputs = {{.shape = {dice.roll(1, 20), dice.roll(1, 20)}}},
          .args = {{"dim", dice.roll(0, 1)}}};
}

OpSample row_sample(Dice& dice) {
  return {.inputs = {{.shape = {dice.roll(1, 60), dice.roll(1, 90)}}}};
}

OpSample swiglu_sample(Dice& dice) {
  const auto rows = dice.roll(1, 60);
  OpSample sample{.inputs = {{.shape = {rows, 2 * dice.roll(1, 40)}}}};
  if (dice.flip()) sample.inputs.push_back({.shape = {rows}});
  return sample;
}

OpSample rope_sample(Dice& dice) {
  const auto tokens = dice.roll(1, 40), half = dice.roll(1, 20);
  const Input table{.shape = {tokens, half}, .has_gradient = false};
  return {.inputs = {{.shape = {tokens, dice.roll(1, 5), 2 * half}}, table, table}};
}

OpSample rms_norm_rope_sample(Dice& dice) {
  auto sample = rope_sample(dice);
  sample.inputs.insert(sample.inputs.begin() + 1, {.shape = {sample.inputs[0].shape[2]}});
  sample.args["eps"] = 1e-6;
  return sample;
}

// Two shapes that broadcast: of each dimension, either may be 1 or missing in front.
OpSample binary_sample(Dice& dice) {
  Shape a, b;
  const auto ndim = dice.roll(0, 4), missing = dice.roll(0, ndim);
  for (std::int64_t i = 0; i < ndim; ++i) {
    const auto size = dice.roll(1, 7), repeated = dice.roll(0, 4);
    a.push_back(repeated == 0 ? 1 : size);
    if (i >= missing) b.push_back(repeated == 1 ? 1 : size);
  }
  if (dice.flip()) std::swap(a, b);
  return {.inputs = {{.shape = a, .draw = Draw::kAwayFromZero},
                     {.shape = b, .draw = Draw::kAwayFromZero}}};
}

OpSample where_sample(Dice& dice) {
  auto sample = binary_sample(dice);
  sample.inputs.insert(sample.inputs.begin(),
                       {.shape = sample.inputs[dice.flip() ? 0 : 1].shape, .draw = Draw::kMask});
  return sample;
}

OpSample reduction_sample(Dice& dice) {
  const Shape shape{dice.roll(1, 20), dice.roll(1, 20), dice.roll(1, 20)};
  return {.inputs = {{.shape = shape}},
          .args = {{"dim", dice.roll(-3, 2)}, {"keepdim", dice.flip()}}};
}

}  // namespace

std::vector<std::pair<std::string, OpSample>> random_samples(std::uint64_t seed) {
  constexpr int kOfEach = 4;
  const std::vector<std::pair<std::string, OpSample (*)(Dice&)>> makers{
      {"add(Tensor, Tensor)", binary_sample},
      {"add_rms_norm", add_rms_norm_sample},
      {"argmax(Tensor, int64, bool)", reduction_sample},
      {"argmin(Tensor)", row_sample},
      {"attention", attention_sample},
      {"bmm", bmm_sample},
      {"chunk", chunk_sample},
      {"cross_entropy", cross_entropy_sample},
      {"div", binary_sample},
      {"embedding", embedding_sample},
      {"grouped_matmul(Tensor, Tensor, vector<int64>, bool)", grouped_matmul_sample},
      {"gelu", row_sample},
      {"gelu_tanh", row_sample},
      {"kl_div", kl_div_sample},
      {"layer_norm", layer_norm_sample},
      {"linear", linear_sample},
      {"load_balancing_loss", load_balancing_sample},
      {"cumsum", cumsum_sample},
      {"gather", gather_sample},
      {"log_softmax", softmax_sample},
      {"logsumexp", reduction_sample},
      {"maximum(Tensor, Tensor)", binary_sample},
      {"min(Tensor, int64, bool)", reduction_sample},
      {"matmul", matmul_sample},
      {"max(Tensor, int64, bool)", reduction_sample},
      {"mean(Tensor, int64, bool)", reduction_sample},
      {"mul(Tensor, Tensor)", binary_sample},
      {"mse_loss", pair_sample},
      {"npu_gmm(Tensor, Tensor, vector<int64>)", npu_gmm_sample},
      {"permute_rows", permute_rows_sample},
      {"rms_norm", rms_norm_sample},
      {"rms_norm_rope", rms_norm_rope_sample},
      {"rope", rope_sample},
      {"scatter_add", scatter_add_sample},
      {"softmax", softmax_sample},
      {"softplus", row_sample},
      {"sort", sort_sample},
      {"std(Tensor, int64, double, bool)", statistics_sample},
      {"sub", binary_sample},
      {"sum(Tensor, int64, bool)", reduction_sample},
      {"swiglu", swiglu_sample},
      {"tanh", row_sample},
      {"topk", topk_sample},
      {"topk_softmax", topk_softmax_sample},
      {"unpermute_rows", unpermute_rows_sample},
      {"var(Tensor)", row_sample},
      {"var(Tensor, int64, double, bool)", statistics_sample},
      {"where(Tensor, Tensor, Tensor)", where_sample},
      {"z_loss", row_sample},
  };
  Dice dice(seed);
  std::vector<std::pair<std::string, OpSample>> samples;
  for (const auto& [key, make] : makers) {
    for (int i = 0; i < kOfEach; ++i) {
      samples.emplace_back(key, make(dice));
      samples.back().second.what = "random sizes " + std::to_string(i);
    }
  }
  return samples;
}

}  // namespace moegrad::test
