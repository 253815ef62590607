// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/checkpoint_policy.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "framework/autograd/bytes_source.h"
#include "framework/autograd/function.h"
#include "framework/autograd/scope.h"
#include "framework/autograd/swapped.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace detail {

struct PolicyInForce {
  CheckpointPolicyFunction policy;
  std::shared_ptr<SwapSpace> swap;
};

// An op that may run again. It is no entry of the tape, but saves its inputs as those do.
class Recipe final : public Function, public BytesSource {
 public:
  Recipe(std::string_view op, ForwardAgain again, const TensorList& inputs)
      : name_(op), again_(std::move(again)) {
    for (const auto& input : inputs) {
      inputs_.emplace_back(*this) = input.defined() ? input.detach() : Tensor();
    }
  }

  std::string_view name() const override { return name_; }
  bool reads_nz(std::size_t /*i*/) const override { return true; }
  TensorList backward(const TensorList& /*grads*/, InputMask /*needs*/) override { return {}; }

  Tensor output(std::size_t i) override {
    const std::lock_guard lock(mutex_);
    if (results_.empty()) {
      TensorList inputs;
      for (const auto& input : inputs_) inputs.push_back(input.unpack());
      const NoGradGuard no_grad;
      const SpanGuard span(SpanKind::kFunction, Lane::kCompute, "forward again ", name_);
      results_ = again_(inputs);
      ++RankContext::current().counters().recomputed_ops;
      again_ = nullptr;
      release_saved();
    }
    return results_[i];
  }

 private:
  std::string name_;
  std::mutex mutex_;
  ForwardAgain again_;
  std::deque<SavedTensor> inputs_;  // a deque: a SavedTensor cannot be moved
  TensorList results_;              // once it has run again
};

namespace {

// Where a result comes back from that a policy does not want kept.
struct Origin : BytesOrigin {
  explicit Origin(const Tensor& result)
      : shape(result.shape()), version(result.storage().version()) {}

  /// Null where the tensor must be kept.
  virtual std::shared_ptr<BytesSource> source(const Tensor& tensor, bool saves) const = 0;

  std::size_t output = 0;
  Shape shape;
  std::uint64_t version;  // of the bytes that the op has written
};

struct RecipeOrigin final : Origin {
  RecipeOrigin(std::shared_ptr<Recipe> from, std::size_t i, const Tensor& result)
      : Origin(result), recipe(std::move(from)) {
    output = i;
  }

  std::shared_ptr<BytesSource> source(const Tensor& /*tensor*/, bool /*saves*/) const override {
    if (policy != ThreadState::current().checkpoint_policy) return nullptr;
    return recipe;
  }

  std::shared_ptr<Recipe> recipe;
  std::shared_ptr<const PolicyInForce> policy = ThreadState::current().checkpoint_policy;
};

}  // namespace

struct SwapOrigin final : Origin {
  SwapOrigin(std::shared_ptr<SwapSpace> space, std::string of, const Tensor& result)
      : Origin(result), swap(std::move(space)), path(std::move(of)) {}

  std::shared_ptr<BytesSource> source(const Tensor& tensor, bool saves) const override {
    const std::lock_guard lock(mutex);
    if (auto swapped = held.lock()) return swapped;
    if (!saves) return nullptr;
    auto swapped = swap->send(tensor, path);
    held = swapped;
    return swapped;
  }

  std::shared_ptr<SwapSpace> swap;
  std::string path;
  mutable std::mutex mutex;
  mutable std::weak_ptr<Swapped> held;
};

namespace {

bool shares_bytes(const Tensor& result, const TensorList& inputs) {
  return std::ranges::any_of(inputs, [&](const Tensor& input) {
    return input.defined() && &input.storage() == &result.storage();
  });
}

// Why a result cannot be made again; empty if it can.
std::string_view obstacle(const Function& function, const Tensor& result, const TensorList& inputs,
                          bool can_be_copied) {
  if (shares_bytes(result, inputs)) return "it is a view of an input";
  if (function.recomputes()) return "the op recomputes already";
  if (!function.may_run_again()) return "the op is a collective, or runs once for another reason";
  return can_be_copied ? "" : "an argument cannot be copied, or refers to what belongs to others";
}

// Why a result cannot be swapped; empty if it can.
std::string_view obstacle_to_swap(const Tensor& result, const TensorList& inputs) {
  if (shares_bytes(result, inputs)) return "it is a view of an input";
  const auto& storage = result.storage();
  if (storage.tag() == MemoryTag::kParameters) return "it is a parameter";
  if (result.layout() == Layout::kNZ) return "it is FRACTAL_NZ";
  return storage.is_meta() || storage.bytes() == 0 ? "it has no bytes" : "";
}

}  // namespace

bool asks_policy() { return ThreadState::current().checkpoint_policy != nullptr && grad_enabled(); }

void offer_results(const Function& function, const TensorList& inputs, const TensorList& results,
                   const std::function<ForwardAgain()>& again) {
  const auto in_force = ThreadState::current().checkpoint_policy;
  const NoGradGuard no_grad;  // nobody asks about what the policy runs, or hooks of saved tensors
  const auto scope = ScopeGuard::current();
  const std::string path = scope == nullptr ? std::string() : scope->path();
  std::shared_ptr<Recipe> recipe;
  const auto recipe_of = [&](std::size_t i) {
    if (auto way = function.shorter_way(i, inputs, results)) {
      const auto own =
          std::make_shared<Recipe>(function.name(), std::move(way->forward), way->inputs);
      return std::make_shared<RecipeOrigin>(own, 0, results[i]);
    }
    if (recipe == nullptr) recipe = std::make_shared<Recipe>(function.name(), again(), inputs);
    return std::make_shared<RecipeOrigin>(recipe, i, results[i]);
  };
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto wanted = in_force->policy({function.name(), path, results[i], i});
    if (wanted == CheckpointPolicy::kMustSave) continue;
    const bool swaps = wanted == CheckpointPolicy::kPreferCpuOffload ||
                       wanted == CheckpointPolicy::kMustCpuOffload;
    const bool must =
        wanted == CheckpointPolicy::kMustRecompute || wanted == CheckpointPolicy::kMustCpuOffload;
    check(!swaps || in_force->swap != nullptr, function.name(), ": result ", i,
          " is to be offloaded by its policy, which has no SwapSpace; give it one");
    const auto why = swaps ? obstacle_to_swap(results[i], inputs)
                           : obstacle(function, results[i], inputs, again != nullptr);
    check(why.empty() || !must, function.name(), ": result ", i, " must be ",
          swaps ? "offloaded" : "recomputed", " by its policy, but cannot: ", why, "; return ",
          swaps ? "kPreferCpuOffload" : "kPreferRecompute", " or kMustSave for it");
    if (!why.empty()) continue;
    auto& storage = results[i].storage();
    if (swaps) {
      storage.set_origin(std::make_shared<SwapOrigin>(in_force->swap, path, results[i]));
    } else {
      storage.set_origin(recipe_of(i));
    }
    // The op may have saved its own result.
    for (auto* const saved : function.saved()) {
      if (saved->storage() == &storage) *saved = saved->unpack();
    }
  }
}

WayBack WayBack::to(const Tensor& tensor, bool saves) {
  WayBack way;
  const auto* const origin = dynamic_cast<const Origin*>(tensor.storage().origin());
  if (origin == nullptr || origin->version != tensor.storage().version()) return way;
  if (tensor.layout() == Layout::kNZ && !(tensor.shape() == origin->shape)) return way;
  way.source_ = origin->source(tensor, saves);
  way.output_ = origin->output;
  way.layout_ = tensor.layout();
  way.shape_ = tensor.shape();
  if (way.layout_ == Layout::kND) {
    way.strides_ = tensor.strides();
    way.offset_ = tensor.offset();
  }
  return way;
}

Tensor WayBack::tensor() const {
  const Tensor made = source_->output(output_);
  if (layout_ == Layout::kNZ) return made;
  return Tensor::as_strided(made, shape_, strides_, offset_);
}

}  // namespace detail

CheckpointPolicyGuard::CheckpointPolicyGuard(CheckpointPolicyFunction policy,
                                             std::shared_ptr<SwapSpace> swap)
    : guard_(std::make_shared<const detail::PolicyInForce>(
          detail::PolicyInForce{std::move(policy), std::move(swap)})) {
  check<ValueError>(ThreadState::current().checkpoint_policy->policy != nullptr,
                    "checkpoint policy: must be a function, got an empty one");
}

}  // namespace moegrad
