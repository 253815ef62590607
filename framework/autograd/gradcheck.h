// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// The options of torch.autograd.gradcheck that have a meaning here. The bounds are a hundred times
/// tighter than PyTorch's, which let errors of 0.1 % pass. float64 and central differences meet
/// them with a wide margin. Gradient dtypes are always checked (check_grad_dtypes), since the
/// engine refuses a wrong one in any backward; raise_exception is GradcheckResult::or_throw().
struct GradcheckOptions {
  double eps = 1e-6;   // step of the central differences
  double atol = 1e-7;  // |backward - numeric| <= atol + rtol * |numeric|
  double rtol = 1e-5;
  double nondet_tol = 0.0;           // how much two equal backwards may differ
  bool check_undefined_grad = true;  // leave out one output's gradient at a time
  bool fast_mode = false;            // a random projection of the Jacobian instead of all of it
  std::uint64_t seed = 0;            // of the random vectors
};

/// What gradcheck can find. First what makes the check impossible, then what makes it fail.
enum class GradcheckFailure : std::uint8_t {
  kNone,
  kNoInputRequiresGrad,
  kOverlappingInput,           // two elements in the same memory (stride 0) cannot move alone
  kNotFinite,                  // a value or derivative is NaN, or infinite where it may not be
  kInputModified,              // the function or its backward writes into an input
  kGradOutputModified,         // backward writes into the gradient that it is given
  kGradientSize,               // a gradient does not have the shape of its input
  kGradientDtype,              // a gradient does not have the dtype of its input
  kNotReentrant,               // two equal backwards differ, in one of which weight gradients wait
  kNotMultipliedByGradOutput,  // a grad_output of zeros gives a gradient that is not zero
  kUndefinedGradThrows,        // backward throws when an output's gradient is left out
  kUndefinedGradNotZero,       // a gradient that is left out is not taken as zero
  kOutputShapeChanges,         // an output has another shape when an input is moved by eps
  kOutputDtypeChanges,
  kNonDifferentiableOutput,  // an output without gradient (int64, detached) depends on an input
  kJacobianMismatch,         // backward and central differences disagree
  kNotLinear,                // each element of the Jacobian is right, but not their combination
  kEditNotNoticed,  // after an input or output was edited, backward gives other gradients silently
};

/// The name in this enum: "kJacobianMismatch".
std::ostream& operator<<(std::ostream& out, GradcheckFailure kind);

class GradcheckError : public Error {
 public:
  GradcheckError(GradcheckFailure kind, const std::string& message) : Error(message), kind_(kind) {}
  GradcheckFailure kind() const { return kind_; }

 private:
  GradcheckFailure kind_;
};

struct [[nodiscard]] GradcheckResult {
  GradcheckFailure kind = GradcheckFailure::kNone;
  std::string message;                // what is wrong, and where; ends with the warnings
  std::vector<std::string> warnings;  // inputs that are not float64

  explicit operator bool() const { return kind == GradcheckFailure::kNone; }
  /// Throws GradcheckError unless the check passed, as torch.autograd.gradcheck does by default.
  /// If it passed with warnings, logs them as warnings.
  void or_throw() const;
};

/// Compares the Jacobian of f that backward computes with central differences:
///
///     |J[o, i] - (f(x + eps e_i) - f(x - eps e_i))[o] / (2 eps)| <= atol + rtol * |numeric|
///
/// for every element o of every output and every element i of every input that requires a gradient,
/// as torch.allclose does. Other inputs are left alone. The other checks:
///
/// - One backward from a random combination of all outputs must agree with that Jacobian.
/// - Every backward runs twice and must give the same result.
/// - Each input and each output is edited in place between a forward and a backward. Backward must
///   throw, as SavedTensor does, or give the same bits as without the edit. Otherwise the Function
///   keeps a plain Tensor where it needs a SavedTensor, and would train with wrong gradients. Edits
///   of tensors that f only captures are not tried.
/// - Outputs that carry a gradient must not be NaN, nor their derivatives. An infinity that stays,
///   such as a mask's, has derivative zero.
/// - Outputs that carry no gradient must not change, even if other outputs carry one: return what
///   is differentiable, or drop it.
/// - GradcheckFailure lists what else is checked.
///
/// Fast mode compares v^T J u for a random unit vector v per output and u per input, with atol
/// times sum |v| * sum |u|. It calls f twice per input and backward once per output. If it
/// disagrees, full mode finds the element. The message of a mismatch names the element that exceeds
/// its bound most.
///
/// Inputs are leaves, contiguous or not, of float64 (float32 gives a warning); undefined tensors
/// are passed on. The elements are moved in place, so f may take the inputs from its argument or
/// may have captured them (a module's parameters). A tensor that is given twice is moved once and
/// has one gradient. Inputs get their values back bit for bit and keep no gradient. Other leaves
/// that f reaches keep the gradient they have, except inside a checkpoint.
///
/// Throws Error for a non-leaf or FRACTAL_NZ input and for a function without output. Passes on
/// what f and its backward throw.
///
/// Reference: https://docs.pytorch.org/docs/stable/notes/gradcheck.html
GradcheckResult gradcheck(const std::function<TensorList(const TensorList&)>& f,
                          const TensorList& inputs, const GradcheckOptions& options = {});

}  // namespace moegrad
