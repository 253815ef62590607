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

std::vector<TensorList> of_one_use(TensorList terms) {
  std::vector<TensorList> uses;
  for (auto& term : terms) uses.push_back({std::exchange(term, Tensor())});
  return uses;
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
  std::vector<TensorList> terms;
  for (const auto& parameter : parameters_) {
    terms.push_back(take_grad_of_uses(parameter));
    parameter.set_grad(Tensor());
  }
  push_uses(std::move(terms));
}

void GradientSum::check_one_each(std::size_t terms) const {
  check<ValueError>(terms == parameters_.size(),
                    "gradient_sum: must be given a term for each "
                    "of ",
                    parameters_.size(), " parameters, got ", terms);
}

void GradientSum::push(TensorList terms) { push_uses(of_one_use(std::move(terms))); }

void GradientSum::push_uses(std::vector<TensorList> terms) {
  check_one_each(terms.size());
  const MemoryTagGuard tag(MemoryTag::kGradients);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (auto& term : terms[i]) term = as_term(i, std::exchange(term, Tensor()));
    sums_[i].push(std::move(terms[i]));
  }
  ++size_;
}

// The term becomes the tree's own, because sums are formed in place.
Tensor GradientSum::as_term(std::size_t i, Tensor gradient) const {
  const auto dtype = node_dtype_.value_or(arithmetic_dtype(parameters_[i].dtype()));
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
  TensorList sums = take();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    set_grad_of_uses(parameters_[i], {std::exchange(sums[i], Tensor())});
  }
}

TensorList GradientSum::take() {
  TensorList sums;
  for (auto& uses : take_uses()) sums.push_back(sum_of_uses(std::move(uses)));
  return sums;
}

std::vector<TensorList> GradientSum::take_uses() {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  std::vector<TensorList> sums;
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
  sums_[i].drop();
}

void GradientSum::add(TensorList terms) { add_uses(of_one_use(std::move(terms))); }

void GradientSum::add_uses(std::vector<TensorList> terms) {
  check_one_each(terms.size());
  const MemoryTagGuard tag(MemoryTag::kGradients);
  resume();
  ++size_;
  const bool one_partial = std::has_single_bit(static_cast<std::uint64_t>(size_));
  shown_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    take_grad_of_uses(parameters_[i]);  // set again below, so this drops nothing
    sums_[i].push(std::move(terms[i]));
    set_grad_of_uses(parameters_[i], one_partial ? sums_[i].take() : TensorList{sums_[i].sum()});
  }
  for (const auto& parameter : parameters_) shown_.emplace_back(parameter.grad());
}

// Makes sums_ contain the terms so far, from grad() where it has changed.
void GradientSum::resume() {
  const auto has_grad = [](const Tensor& parameter) { return parameter.grad().defined(); };
  if (size_ == 0 || std::ranges::none_of(parameters_, has_grad)) return begin_again();
  if (std::has_single_bit(static_cast<std::uint64_t>(size_))) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      sums_[i] = UseSums(shown_terms(i), size_);
    }
  } else if (!untouched()) {
    begin_again();
  }
}

void GradientSum::begin_again() {
  size_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_[i] = UseSums();
    if (parameters_[i].grad().defined()) size_ = 1;
  }
  if (size_ == 0) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) sums_[i].push(shown_terms(i));
}

bool GradientSum::untouched() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!shown_[i].is_still(parameters_[i].grad())) return false;
  }
  return true;
}

// What grad() shows, as terms in whose memory the next sums may be formed.
TensorList GradientSum::shown_terms(std::size_t i) const {
  const auto dtype = node_dtype_.value_or(arithmetic_dtype(parameters_[i].dtype()));
  TensorList uses = take_grad_of_uses(parameters_[i]);
  for (auto& use : uses) {
    if (use.defined() && use.dtype() != dtype) use = to_dtype(use, dtype);
  }
  return uses;
}

}  // namespace moegrad
