// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradient_sum.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

void set_grad(const Tensor& parameter, Tensor sum) {
  if (sum.defined() && sum.dtype() != parameter.dtype()) sum = to_dtype(sum, parameter.dtype());
  parameter.set_grad(std::move(sum));
}

}  // namespace

GradientSum::GradientSum(TensorList parameters, std::optional<Dtype> node_dtype)
    : parameters_(std::move(parameters)), node_dtype_(node_dtype), sums_(parameters_.size()) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    check(parameter.defined() && parameter.is_leaf(), "gradient_sum: parameter ", i,
          " must be a leaf");
    const auto is_it = [&](const Tensor& other) { return other.is(parameter); };
    check<ValueError>(std::none_of(parameters_.begin(),
                                   parameters_.begin() + static_cast<std::ptrdiff_t>(i), is_it),
                      "gradient_sum: parameter ", i, " must be given once");
  }
  if (!node_dtype) return;
  check<DtypeError>(holds_reals(*node_dtype),
                    "gradient_sum: nodes must be of a floating dtype, got ", *node_dtype);
}

void GradientSum::push() {
  TensorList terms;
  for (const auto& parameter : parameters_) {
    terms.push_back(parameter.grad());
    parameter.set_grad(Tensor());
  }
  push(std::move(terms));
}

void GradientSum::check_one_each(const TensorList& terms) const {
  check<ValueError>(terms.size() == parameters_.size(),
                    "gradient_sum: must be given a term for each "
                    "of ",
                    parameters_.size(), " parameters, got ", terms.size());
}

void GradientSum::push(TensorList terms) {
  check_one_each(terms);
  const MemoryTagGuard tag(MemoryTag::kGradients);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_[i].push(as_term(i, std::exchange(terms[i], Tensor())));
  }
  ++size_;
}

// The term becomes the tree's own, because sums are formed in place.
Tensor GradientSum::as_term(std::size_t i, Tensor gradient) const {
  const auto dtype = node_dtype_.value_or(parameters_[i].dtype());
  if (!gradient.defined()) return gradient;
  if (gradient.dtype() != dtype) return to_dtype(gradient, dtype);
  if (!owns_its_bytes(gradient)) return clone(gradient);
  gradient.storage().retag(MemoryTag::kGradients);
  return gradient;
}

void GradientSum::finish() {
  for (const auto& parameter : parameters_) {
    check(!parameter.grad().defined(), "gradient_sum: finish() would overwrite the gradient of '",
          parameter.storage().name(), "', which was not pushed");
  }
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList sums = take();
  for (std::size_t i = 0; i < sums.size(); ++i) set_grad(parameters_[i], std::move(sums[i]));
}

TensorList GradientSum::take() {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList sums;
  for (auto& sum : sums_) sums.push_back(sum.take());
  size_ = 0;
  return sums;
}

TensorList GradientSum::sums() const {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList sums;
  for (const auto& sum : sums_) sums.push_back(sum.sum());
  return sums;
}

void GradientSum::drop(std::size_t i) {
  check<ValueError>(i < sums_.size(), "gradient_sum: parameter must be below ", sums_.size(),
                    ", got ", i);
  sums_[i] = absent_terms(size_);
}

void GradientSum::add(TensorList terms) {
  check_one_each(terms);
  const MemoryTagGuard tag(MemoryTag::kGradients);
  resume();
  ++size_;
  const bool one_partial = std::has_single_bit(static_cast<std::uint64_t>(size_));
  shown_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // Set again below, so this drops nothing.
    parameters_[i].impl()->leaf_state().grad = Tensor();
    sums_[i].push(std::exchange(terms[i], Tensor()));
    Tensor sum = one_partial ? sums_[i].take() : sums_[i].sum();
    if (sum.defined()) set_grad(parameters_[i], std::move(sum));
  }
  for (const auto& parameter : parameters_) shown_.emplace_back(parameter.grad());
}

// Makes sums_ contain the terms so far, from grad() where it has changed.
void GradientSum::resume() {
  const auto has_grad = [](const Tensor& parameter) { return parameter.grad().defined(); };
  if (size_ == 0 || std::ranges::none_of(parameters_, has_grad)) return begin_again();
  if (std::has_single_bit(static_cast<std::uint64_t>(size_))) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      sums_[i] = TreeSum(shown_term(i), size_);
    }
  } else if (!untouched()) {
    begin_again();
  }
}

void GradientSum::begin_again() {
  size_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_[i] = TreeSum();
    if (parameters_[i].grad().defined()) size_ = 1;
  }
  if (size_ == 0) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) sums_[i].push(shown_term(i));
}

bool GradientSum::untouched() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!shown_[i].is_still(parameters_[i].grad())) return false;
  }
  return true;
}

GradientSum::Shown::Shown(const Tensor& grad)
    : defined(grad.defined()), impl(grad.impl()), version(defined ? grad.storage().version() : 0) {}

bool GradientSum::Shown::is_still(const Tensor& grad) const {
  if (!defined || !grad.defined()) return defined == grad.defined();
  return grad.impl() == impl.lock() && grad.storage().version() == version;
}

// grad() as a term, in whose memory the next sum may be formed.
Tensor GradientSum::shown_term(std::size_t i) const {
  const Tensor grad = parameters_[i].grad();
  const auto dtype = node_dtype_.value_or(parameters_[i].dtype());
  return !grad.defined() || grad.dtype() == dtype ? grad : to_dtype(grad, dtype);
}

}  // namespace moegrad
