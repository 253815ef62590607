// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to gradcheck: the inputs, and the positions of the elements of inputs and outputs when
// all of them are concatenated into one vector.

#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "framework/autograd/gradcheck.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/tensor.h"

namespace moegrad::detail {

template <class... Parts>
[[noreturn]] void gradcheck_fail(GradcheckFailure kind, const Parts&... parts) {
  std::ostringstream message;
  message << "gradcheck: ";
  (message << ... << parts);
  throw GradcheckError(kind, message.str());
}

/// One input or output: its elements are [begin, begin + shape.numel()) of the vector.
struct Slot {
  std::size_t index = 0;  // among the inputs, or the outputs
  Shape shape = {};
  Dtype dtype = Dtype::kFloat64;
  std::size_t begin = 0;

  std::size_t size() const { return static_cast<std::size_t>(shape.numel()); }
  std::size_t end() const { return begin + size(); }
};

/// `input 1 at [0, 2]` for element `flat` of the vector, with `what` = `input`.
std::string element_name(std::string_view what, const std::vector<Slot>& slots, std::size_t flat);

/// The position of element `flat` of a strided tensor, in elements from the start of its storage.
std::int64_t storage_offset(const Tensor& tensor, std::size_t flat);

/// Elements of a tensor as doubles, in row-major order.
std::vector<double> to_doubles(const Tensor& tensor);

/// Elements of one floating ND tensor. The destructor restores their values bit for bit.
class MovedElements {
 public:
  MovedElements(const Tensor& tensor, std::size_t first, std::size_t count) : tensor_(tensor) {
    for (std::size_t i = 0; i < count; ++i) {
      offsets_.push_back(storage_offset(tensor, first + i));
      values_.push_back(get(i));
    }
  }
  ~MovedElements() {
    for (std::size_t i = 0; i < values_.size(); ++i) set(i, values_[i]);
    tensor_.storage().bump_version();
  }
  MovedElements(const MovedElements&) = delete;
  MovedElements& operator=(const MovedElements&) = delete;

  /// values + distance * direction, counted as an in-place modification.
  void move(double distance, const std::vector<double>& direction) {
    for (std::size_t i = 0; i < values_.size(); ++i) set(i, values_[i] + distance * direction[i]);
    tensor_.storage().bump_version();
  }
  double get(std::size_t i) const;

 private:
  template <class T>
  T* pointer(std::size_t i) const {
    return reinterpret_cast<T*>(tensor_.storage().data()) + offsets_[i];
  }
  void set(std::size_t i, double value) {
    dispatch_floating(tensor_.dtype(), [&]<class T>() { *pointer<T>(i) = static_cast<T>(value); });
  }

  Tensor tensor_;
  std::vector<std::int64_t> offsets_;
  std::vector<double> values_;
};

class CheckedInputs {
 public:
  /// Throws unless the elements of inputs that require a gradient can be moved one by one.
  explicit CheckedInputs(const TensorList& inputs);
  /// Leaves the inputs without gradient.
  ~CheckedInputs();
  CheckedInputs(const CheckedInputs&) = delete;
  CheckedInputs& operator=(const CheckedInputs&) = delete;

  const TensorList& all() const { return inputs_; }
  /// The inputs that require a gradient.
  const std::vector<Slot>& slots() const { return slots_; }
  const Tensor& tensor(const Slot& slot) const { return inputs_[slot.index]; }
  std::vector<std::string> warnings() const;

  void clear_grads() const;
  /// Counts of in-place modifications; check_unmodified() fails if they have gone up.
  std::vector<std::uint64_t> versions() const;
  void check_unmodified(const std::vector<std::uint64_t>& before) const;

 private:
  TensorList inputs_;
  std::vector<Slot> slots_;
};

}  // namespace moegrad::detail
