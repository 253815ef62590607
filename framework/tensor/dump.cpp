// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/dump.h"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <ostream>
#include <sstream>

#include "framework/autograd/function.h"
#include "framework/distributed/shard_spec.h"

namespace moegrad {
namespace {

constexpr std::int64_t kShown = 3;  // at either end of a dimension

/// The position in the storage of element `flat` in row-major order.
std::int64_t position(const Tensor& tensor, std::int64_t flat) {
  if (tensor.layout() == Layout::kNZ) {
    const auto& blocks = tensor.nz_blocks();
    const auto matrix = blocks.k * blocks.n;
    return tensor.offset() + flat / matrix * nz_numel(blocks.k, blocks.n) +
           nz_offset(flat % matrix / blocks.n, flat % blocks.n, blocks.k);
  }
  auto offset = tensor.offset();
  for (std::int64_t i = tensor.ndim() - 1; i >= 0; --i) {
    offset += flat % tensor.dim(i) * tensor.strides()[i];
    flat /= tensor.dim(i);
  }
  return offset;
}

void print_element(std::ostream& out, const Tensor& tensor, std::int64_t flat) {
  const auto at = position(tensor, flat);
  const auto* bytes = tensor.storage().data();
  switch (tensor.dtype()) {
    case Dtype::kFloat32:
      out << reinterpret_cast<const float*>(bytes)[at];
      break;
    case Dtype::kFloat64:
      out << reinterpret_cast<const double*>(bytes)[at];
      break;
    case Dtype::kBFloat16:
      out << static_cast<float>(reinterpret_cast<const BFloat16*>(bytes)[at]);
      break;
    case Dtype::kInt64:
      out << reinterpret_cast<const std::int64_t*>(bytes)[at];
      break;
  }
}

/// Prints the elements that begin at `flat`, along dimension `axis` and all later ones.
void print_elements(std::ostream& out, const Tensor& tensor, std::int64_t axis, std::int64_t flat) {
  if (axis == tensor.ndim()) return print_element(out, tensor, flat);
  std::int64_t inner = 1;
  for (auto i = axis + 1; i < tensor.ndim(); ++i) inner *= tensor.dim(i);
  const bool innermost = axis + 1 == tensor.ndim();
  const auto size = tensor.dim(axis);
  out << '[';
  for (std::int64_t i = 0; i < size; ++i) {
    if (i > 0)
      out << (innermost ? ", " : ",\n" + std::string(static_cast<std::size_t>(axis + 1), ' '));
    if (size > 2 * kShown && i == kShown) {
      out << "...";
      i = size - kShown - 1;
      continue;
    }
    print_elements(out, tensor, axis + 1, flat + i * inner);
  }
  out << ']';
}

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
      text << '\n';
      print_elements(text, tensor, 0, 0);
    }
    return text.str();
  } catch (const std::exception& error) {
    return std::string("tensor that cannot be shown: ") + error.what();
  }
}

void dump(const Tensor& tensor) { std::fprintf(stderr, "%s\n", describe(tensor).c_str()); }

}  // namespace moegrad
