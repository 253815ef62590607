// SPDX-License-Identifier: Apache-2.0
#include "framework/io/dump.h"

#include <cstdio>
#include <exception>
#include <ostream>
#include <sstream>

#include "framework/autograd/function.h"
#include "framework/distributed/shard_spec.h"
#include "framework/io/print.h"

namespace moegrad {
namespace {

void print_header(std::ostream& out, const Tensor& tensor) {
  out << "tensor ";
  if (const auto& name = tensor.storage().name(); !name.empty()) out << "'" << name << "' ";
  out << tensor.shape() << ' ' << tensor.dtype() << ' ' << tensor.layout();
  const bool strided = tensor.layout() == Layout::kND && !tensor.is_contiguous();
  if (strided) out << ", strides " << tensor.strides();
  if (tensor.offset() != 0) out << ", offset " << tensor.offset();
  if (const auto& function = tensor.grad_fn()) {
    out << ", made by " << function->name();
    if (function->scope()) out << " in module " << function->scope()->display_path();
  } else if (tensor.requires_grad()) {
    out << ", requires a gradient, " << (tensor.grad().defined() ? "has one" : "has none");
  }
  if (const auto& spec = tensor.shard_spec()) {
    out << ", shard " << part_text(*spec);
  }
}

}  // namespace

std::string describe(const Tensor& tensor) {
  try {
    if (!tensor.defined()) return "undefined tensor";
    std::ostringstream text;
    print_header(text, tensor);
    if (tensor.is_meta() || tensor.storage().released()) {
      text << (tensor.is_meta() ? ", meta: no bytes yet" : ", bytes released");
    } else {
      text << '\n' << elements_text(tensor, /*indent=*/0, /*threshold=*/0);
    }
    return text.str();
  } catch (const std::exception& error) {
    return std::string("tensor that cannot be shown: ") + error.what();
  }
}

void dump(const Tensor& tensor) { std::fprintf(stderr, "%s\n", describe(tensor).c_str()); }

}  // namespace moegrad
