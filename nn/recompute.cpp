// SPDX-License-Identifier: Apache-2.0
#include "nn/recompute.h"

#include <memory>

#include "framework/autograd/checkpoint.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"

namespace moegrad::nn {
namespace {

class Recompute final : public ModuleExtension {
 public:
  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    return grad_enabled() ? checkpoint(call.repeatable(), inputs) : call.run(inputs);
  }
};

}  // namespace

void recompute(Module& module) {
  check(module.extension<Recompute>() == nullptr,
        "recompute: the module must not be recomputed already");
  module.attach(std::make_shared<Recompute>());
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
