// SPDX-License-Identifier: Apache-2.0
#include "nn/recompute.h"

#include <memory>
#include <utility>

#include "framework/autograd/checkpoint.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"

namespace moegrad::nn {
namespace {

class Recompute final : public ModuleExtension {
 public:
  explicit Recompute(const Module& module) : module_(module) {}

  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    if (!grad_enabled()) return call.run(inputs);
    const auto again = [run = call.repeatable(), &module = module_,
                        dtype = module_.compute_dtype()](const TensorList& given) {
      auto outputs = run(given);  // which finds out if the module is gone
      check(module.compute_dtype() == dtype,
            "recompute: a module must compute in backward in the dtype that it had in forward, "
            "got compute_in() in between");
      return outputs;
    };
    return checkpoint(again, inputs);
  }

 private:
  const Module& module_;
};

class Policy final : public ModuleExtension {
 public:
  Policy(CheckpointPolicyFunction policy, std::shared_ptr<SwapSpace> swap)
      : policy_(std::move(policy)), swap_(std::move(swap)) {}

  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    const CheckpointPolicyGuard guard(policy_, swap_);
    return call.run(inputs);
  }

 private:
  CheckpointPolicyFunction policy_;
  std::shared_ptr<SwapSpace> swap_;
};

}  // namespace

void checkpoint_with(Module& module, CheckpointPolicyFunction policy,
                     std::shared_ptr<SwapSpace> swap) {
  check(module.extension<Policy>() == nullptr,
        "checkpoint_with: the module must not have a policy already");
  module.attach(std::make_shared<Policy>(std::move(policy), std::move(swap)));
}

void recompute(Module& module) {
  check(module.extension<Recompute>() == nullptr,
        "recompute: the module must not be recomputed already");
  module.attach(std::make_shared<Recompute>(module));
}

int recompute(Module& root, const std::function<bool(std::string_view path)>& picks) {
  int count = 0;
  for (const auto& [path, module] : root.named_modules()) {
    if (!picks(path)) continue;
    recompute(*module);
    ++count;
  }
  return count;
}

}  // namespace moegrad::nn
