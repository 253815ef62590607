// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/tensor/documents.h"
#include "framework/tensor/named_tensor.h"
#include "models/causal_lm/config.h"
#include "tools/check_golden/golden_kind.h"

namespace moegrad::tools {

// Note [Golden folders]
// A folder contains a model, inputs, and the results of Hugging Face's code for them. Its files
// tell its kind.
//
// kTraining: a model with values that are exact to float64. Values whose names end in _f64 come
// from a run in float64; everything is compared with these.
//
//     config.json             as Hugging Face writes it
//     model.safetensors       weights under Hugging Face's names
//     input.json              input_ids and labels [B][S] (unshifted, -100 ignored), position_ids;
//                             packed: one row of several sequences, with cu_seqlens
//     expected.safetensors    logits_f64 [B, S, V], loss_f64, loss_ce_f64, aux_loss_f64 [1],
//                             hidden_f64.i [B, S, H] (0 the embeddings, then after layer i, the
//                             last after the final norm), grad.<parameter> of the total loss, and
//                             per mixture layer L router_logits_f64.L [B*S, E], topk_indices.L,
//                             topk_weights_f64.L [B*S, K]
//     expected.json           fp64.{loss, loss_ce, aux_loss}, tokens_per_expert, min_router_margin,
//                             and of each parameter's gradient l2, sum, max_abs and dot_cos =
//                             sum_i g_i cos(i), of the total loss and of the cross-entropy alone
//     expected_packed.safetensors, and packed in expected.json: the same for the packed row (logits
//                             [T, V]), and losses of its sequences alone as seq1., seq2., ...
//     train.json              batches, and per variant of AdamW the losses, gradient norms and
//                             learning rates of each step, the losses on the input afterwards
//                             (final_eval), and the same four figures of each parameter. Another
//                             float32 run of the reference, fp32_alt_order, shows how large
//                             rounding errors may become; so does tolerance_measurements in
//                             expected.json
//     train_final.safetensors <variant>/<parameter> after training
//
// Tensors stored in float32 are roundings of float64 values. Values named _f32 and _f64_rope32 are
// not read; any other name that is not listed here is refused.
//
// A missing expectation is reported as a failure, because nothing would be compared with it. A
// folder may be compact. Then grad_tensors_not_stored in expected.json names the parameters whose
// gradient has figures but no tensor, all of them of experts. A compact folder may also lack all of
// hidden_f64, the experts' gradients of the packed row, and train_final.safetensors. That file
// contains the parameters of adamw_const and adamw_clip_cosine, and optionally of other variants.
// The expected variants are those in tolerance_measurements, at least one, else adamw_const,
// adamw_clip_cosine, adamw_clip_cosine_nodecay1d and adamw_const_skip_missing_grad.
//
// kPretrained: a model as transformers 5 saves it, without training.
//
//     config.json, model.safetensors
//     expected.safetensors    input_ids int64 [B, S], which are their own labels, and of a run P in
//                             float64 (f64) and of one in float32 (f32): logits_P [B, S, V], loss_P
//                             [1], grad_P.<parameter> with experts fused: mlp.experts.gate_up_proj
//                             [E, 2I, H] and down_proj [E, H, I]. The loss has the balance loss in
//                             it if output_router_logits in config.json is true
//     generate.json           several prompts, the tokens that greedy generation in float32 wrote
//                             after each, and the smallest gap of the best two logits on the way
//
// The run in float64 still computes norms, softmax, router and rotary tables in float32. So even
// its values are only good to float32's precision.
//
// kOptim: what optimizers and schedules of learning rates computed.

/// Sequences one after the other.
struct GoldenRow {
  Tensor tokens, positions;  // int64 [T]
  Tensor targets;            // int64 [T], the label after each token, -100 where there is none
  Documents documents;
  std::int64_t num_targets = 0;
};

struct GoldenLosses {
  std::optional<double> loss, ce, aux;
};

/// Four figures of a tensor: its elements g_i in row-major order, i from 0.
struct GoldenStats {
  double l2 = 0;
  double sum = 0;
  double max_abs = 0;
  double dot_cos = 0;  // sum_i g_i cos(i)
};
using NamedStats = std::map<std::string, GoldenStats>;

/// The expected values of one forward and backward. Values that the folder lacks are empty.
struct GoldenValues {
  std::vector<GoldenLosses> losses;  // from each file that contains them
  Tensor logits;                     // [T, V]
  TensorList hidden;                 // [T, H] each; undefined if the folder has none
  std::map<std::int64_t, Tensor> router_logits, topk_indices, topk_weights;  // by layer
  std::map<std::int64_t, std::vector<std::int64_t>> tokens_per_expert;       // by layer
  std::optional<double> router_margin;  // smallest gap of the k-th and the next router logit
  NamedTensors gradients;               // float64, or rounded to float32
  NamedStats gradient_stats, ce_gradient_stats;
  std::optional<double> gradient_l2, ce_gradient_l2;  // over all parameters
};

struct GoldenOptimizer {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  std::optional<double> clip;  // maximal norm of the gradients
  bool cosine = false;         // else constant
  std::int64_t warmup_steps = 0;
  bool no_decay_1d = false;        // no decay of vectors
  bool skip_missing_grad = false;  // experts without tokens are left alone
};

/// The errors of another float32 run of the reference; zero or empty if the folder has none.
struct GoldenOtherRun {
  std::vector<double> loss, grad_norm;  // per step
  double aux_error = 0;         // largest difference of the auxiliary loss from the float64 run's
  double parameters_error = 0;  // ||difference|| / ||expected|| over all parameters, at the end
  double parameter_error = 0;   // largest |difference| of a parameter, at the end
};

struct GoldenVariant {
  std::string name;
  GoldenOptimizer optimizer;
  std::vector<double> lr, loss, ce, aux, grad_norm;  // per step
  GoldenLosses final_eval = {};
  NamedStats final_stats = {};
  NamedTensors final_parameters = {};  // rounded to float32
  GoldenOtherRun other_run = {};
};

/// What greedy generation wrote after a prompt.
struct GoldenGeneration {
  std::vector<std::int64_t> prompt, tokens;
  double smallest_margin = 0;  // of the largest logit and the next, over all tokens
};

struct GoldenCase {
  std::filesystem::path folder;
  std::string name;
  GoldenKind kind = GoldenKind::kTraining;
  models::CausalLMConfig config = {};
  GoldenRow batch = {};
  GoldenValues expected = {};
  GoldenValues expected_float32 = {};              // kPretrained: of the reference's float32 run
  std::vector<GoldenGeneration> generations = {};  // kPretrained
  std::optional<GoldenRow> packed = {};
  GoldenValues expected_packed = {};
  std::vector<GoldenRow> alone = {};  // the packed sequences
  std::vector<GoldenValues> expected_alone = {};
  std::vector<GoldenRow> steps = {};  // the batches of training
  std::vector<GoldenVariant> variants = {};
  std::vector<std::string> variant_names = {};         // variants that should be there
  std::vector<std::string> gradients_not_stored = {};  // parameters, in a compact folder
  bool has_figures = false;                            // whether there is an expected.json
  std::vector<std::string> missing = {};               // expectations that should be there
};

/// The name that reports give a folder: its last one.
std::string name_of(const std::filesystem::path& folder);

/// Reads a folder of the kind kTraining; throws an Error that names the file and what is wrong with
/// it.
GoldenCase read_golden_case(const std::filesystem::path& folder);

}  // namespace moegrad::tools
