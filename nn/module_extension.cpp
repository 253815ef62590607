// SPDX-License-Identifier: Apache-2.0
#include "nn/module_extension.h"

#include <span>
#include <utility>

namespace moegrad::nn {
namespace {

// A call that has been made repeatable.
class RepeatedCall final : public ForwardCall {
 public:
  explicit RepeatedCall(const Function& function) : function_(function) {}
  TensorList run(const TensorList& inputs) override { return function_(inputs); }
  Function repeatable() override { return function_; }

 private:
  const Function& function_;
};

// A call inside an extension.
class ExtendedCall final : public ForwardCall {
 public:
  ExtendedCall(std::shared_ptr<ModuleExtension> extension, ForwardCall& inner)
      : extension_(std::move(extension)), inner_(inner) {}
  TensorList run(const TensorList& inputs) override {
    return extension_->around_forward(inner_, inputs);
  }
  Function repeatable() override {
    return [extension = extension_, inner = inner_.repeatable()](const TensorList& inputs) {
      RepeatedCall call(inner);
      return extension->around_forward(call, inputs);
    };
  }

 private:
  std::shared_ptr<ModuleExtension> extension_;
  ForwardCall& inner_;
};

TensorList run_inside(std::span<const std::shared_ptr<ModuleExtension>> extensions,
                      ForwardCall& call, const TensorList& inputs) {
  if (extensions.empty()) return call.run(inputs);
  ExtendedCall extended(extensions.front(), call);
  return run_inside(extensions.subspan(1), extended, inputs);
}

}  // namespace

TensorList run_inside(const ModuleExtensions& extensions, ForwardCall& call,
                      const TensorList& inputs) {
  return run_inside(std::span(extensions), call, inputs);
}

}  // namespace moegrad::nn
