// SPDX-License-Identifier: Apache-2.0
#include "parallel/tensor/check_division.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "framework/distributed/compare_checksums.h"
#include "framework/distributed/shard_runs.h"
#include "framework/distributed/shard_spec.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "nn/experts.h"
#include "nn/linear.h"
#include "parallel/parts.h"
#include "parallel/tensor/partial_parameters.h"

namespace moegrad::parallel {
namespace {

// Whether the part of each rank of a sum of so many terms is a subtree (Note [Sums by halving]).
bool is_subtree_of_ranks(std::int64_t terms, int ranks, bool in_bfloat16) {
  const std::int64_t unit = in_bfloat16 ? 32 : 16, chain = in_bfloat16 ? 256 : 128;
  return std::has_single_bit(static_cast<unsigned>(ranks)) && terms % (unit * ranks) == 0 &&
         2 * terms / ranks > chain;
}

}  // namespace

std::vector<std::string> inexact_sums(nn::Module& module, const DeviceMesh& mesh,
                                      std::int64_t tokens) {
  check_one_axis("inexact_sums", mesh);
  const int ranks = mesh.size();
  std::vector<std::string> inexact;
  if (ranks == 1) return inexact;
  const auto add = [&](const std::string& path, std::string_view what, std::int64_t terms,
                       bool in_bfloat16) {
    if (is_subtree_of_ranks(terms, ranks, in_bfloat16)) return;
    inexact.push_back(path + ": sums over " + std::to_string(terms) + " " + std::string(what));
  };
  for (const auto& [path, below] : module.named_modules()) {
    const bool in_bfloat16 = below->compute_dtype() == Dtype::kBFloat16;
    if (const auto* const layer = dynamic_cast<const nn::Linear*>(below);
        layer && layer->division()) {
      const auto& shape = global_shape(layer->weight());
      if (layer->division()->side == nn::LinearDivision::Side::kColumns) {
        add(path, "out-features", shape[0], in_bfloat16);
      } else {
        add(path, "in-features", shape[1], in_bfloat16);
      }
    }
    const auto* const partial = below->extension<PartialParameters>();
    if (partial == nullptr) continue;
    if (!partial->divided()) {
      inexact.push_back(path + ": sums over heads that several ranks have");
    } else if (*partial->divided() == 0 && nn::expert_blocks(*below).empty()) {
      add(path, "tokens", tokens, /*in_bfloat16=*/false);
    }
  }
  return inexact;
}

void check_replicated_gradients(const nn::Module& module, const DeviceMesh& mesh) {
  check_one_axis("check_replicated_gradients", mesh);
  const auto& group = mesh.group();
  if (group->size() == 1) return;
  constexpr std::int64_t kNoGradient = kNoChecksum - 1;
  std::vector<std::string> names;
  std::vector<std::int64_t> checksums;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const auto& spec = parameter.shard_spec();
    if (spec == nullptr) continue;
    const bool alike = std::ranges::any_of(spec->placements, [&](const Placement& placement) {
      return !placement.dim && placement.group != nullptr &&
             std::ranges::equal(placement.group->ranks(), group->ranks());
    });
    if (!alike) continue;
    const Tensor grad = parameter.grad();
    names.push_back("the gradient of " + name);
    checksums.push_back(grad.defined() ? std::int64_t{crc32c(grad.bytes())} : kNoGradient);
  }
  check(std::ranges::any_of(checksums, [](std::int64_t sum) { return sum != kNoGradient; }),
        "check_replicated_gradients: must be called after backward, got no gradient");
  compare_checksums("check_replicated_gradients", *group, names, checksums);
}

}  // namespace moegrad::parallel
