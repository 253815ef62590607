// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "framework/distributed/slow_storage.h"
#include "framework/runtime/grad_mode.h"
#include "fsdp/step_plan.h"
#include "ops/cross_entropy.h"

namespace moegrad::training {

namespace {

/// eval() until the end of the scope.
class EvalGuard {
 public:
  explicit EvalGuard(nn::Module& module) : module_(module), was_training_(module.is_training()) {
    module.eval();
  }
  ~EvalGuard() { module_.train(was_training_); }
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  nn::Module& module_;
  bool was_training_;
};

}  // namespace

double evaluate(models::CausalLM& model, const ValidationData& data,
                const fsdp::GroupRanks& ranks) {
  return evaluate(model, data, ranks, [] { return false; }).value();
}

std::optional<double> evaluate(models::CausalLM& model, const ValidationData& data,
                               const fsdp::GroupRanks& ranks, const std::function<bool()>& stop) {
  const NoGradGuard no_grad;
  const EvalGuard eval(model);
  const auto batches = data.validation_batches();
  const auto each = (batches + ranks.size() - 1) / ranks.size();
  std::vector<double> sums(static_cast<std::size_t>(batches)), targets = sums;
  for (std::int64_t i = ranks.rank() * each; i < (ranks.rank() + 1) * each; ++i) {
    if (stop()) return std::nullopt;
    const auto held_out = [&] {
      if (i >= batches) return no_tokens();  // the last ranks may have fewer
      const SlowStorage storage("reading held-out batches");
      return data.validation_batch(i);
    }();
    const auto output = model(held_out.tokens, held_out.documents);
    if (i >= batches) continue;
    sums[static_cast<std::size_t>(i)] =
        ops::cross_entropy(output.logits, held_out.targets,
                           {.denominator = 1.0, .vocabulary = output.vocabulary})
            .item();
    targets[static_cast<std::size_t>(i)] =
        static_cast<double>(ops::count_targets(held_out.targets));
  }
  const double sum = fsdp::sum_in_order(std::move(sums), ranks);
  return sum / fsdp::sum_in_order(std::move(targets), ranks);
}

}  // namespace moegrad::training
