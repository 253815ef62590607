// SPDX-License-Identifier: Apache-2.0
#pragma once

// Note [The tape]
// A Function is one differentiable operation that was executed: it holds what its backward needs
// (SavedTensor members) and one Edge per tensor input, which says who made that input. Tensors
// point at the Function that made them, Functions point at the Functions that made their inputs,
// and so the results keep the graph alive; there is no tape object. Sequence numbers are given by
// apply() and grow in order of execution within a thread, so running reachable Functions by falling
// number (engine.h) visits every consumer before its producers.
//
// A user writes forward (any signature, on plain tensors: the tape is off inside) and backward:
//
//     class Square final : public Function {
//      public:
//       std::string_view name() const override { return "square"; }
//       Tensor forward(const Tensor& x);
//       TensorList backward(const TensorList& grads, InputMask needs) override;
//      private:
//       SavedTensor x_{*this};
//     };
//     Tensor square(const Tensor& x) { return apply<Square>(x); }
//
// Members of type SavedTensor keep what backward reads, never plain Tensors. A plain one shares its
// bytes with the caller. After an edit in place, such as an optimizer's step, backward would read
// the new values and silently give wrong gradients; a SavedTensor throws. gradcheck (gradcheck.h)
// finds such a Function: kEditNotNoticed.
//
// Note [bfloat16 on the tape]
// A bfloat16 tensor may be the result of a Function or a leaf. Its gradient may be given in
// bfloat16 or in float32. The gradients of a result are added in float32 and rounded once, to
// bfloat16, before they reach the Function that made it, unless that takes wide gradients, as cast
// and views do. The gradient of a leaf is float32 and
// never rounded, and so is that of the float32 tensor behind ops::cast: the gradients of weights.
//
// Constants, such as an eps, are arguments of apply() after the tensors, which forward takes as
// they are, or of the constructor: apply<Scale>(made_with(2.0), x). A tensor that gets a gradient
// must be an argument of apply() itself: a struct with a Tensor in it does not compile, and
// made_with() and SavedTensor refuse tensors that require a gradient and that apply() has not been
// given.

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/autograd/anomaly.h"
#include "framework/autograd/checkpoint_policy.h"
#include "framework/autograd/hidden_tensors.h"
#include "framework/autograd/saved_tensor.h"
#include "framework/autograd/scope.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/refers_to_others.h"
#include "framework/runtime/span.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/hook_list.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Which tensor inputs need a gradient in this call, by position among the tensor inputs.
class InputMask {
 public:
  InputMask() = default;
  explicit InputMask(std::uint64_t bits) : bits_(bits) {}
  bool operator[](std::size_t i) const { return (bits_ >> i & 1U) != 0; }
  void set(std::size_t i) { bits_ |= std::uint64_t{1} << i; }
  bool any() const { return bits_ != 0; }
  /// The inputs that are set here and not in `other`.
  InputMask without(InputMask other) const { return InputMask(bits_ & ~other.bits_); }

 private:
  std::uint64_t bits_ = 0;
};

/// Where the gradient of one tensor input goes: to output `output_index` of `function`, or to
/// `leaf`, or nowhere.
struct Edge {
  std::shared_ptr<Function> function;
  std::size_t output_index = 0;
  Tensor leaf;
  Shape shape;  // of the input; its gradient must have the same
  Dtype dtype = Dtype::kFloat32;

  bool needs_grad() const { return function != nullptr || leaf.defined(); }
};

/// Shape and dtype of an output, to make the zero gradient of an output that was not used.
struct OutputInfo {
  Shape shape;
  Dtype dtype = Dtype::kFloat32;
};

class CallStack;

/// The larger number and the larger part of both.
MicroBatchPart last_of(MicroBatchPart a, MicroBatchPart b);

namespace detail {
template <class Argument>
void append_tensors(TensorList& tensors, const Argument& argument);
}  // namespace detail

/// One operation on the tape (Note [The tape] above); at most kMaxInputs tensor inputs.
class Function : public std::enable_shared_from_this<Function> {
 public:
  /// An InputMask has one bit per input. To take more tensors, such as hundreds of states to be
  /// concatenated, apply several Functions, as ops::cat does.
  static constexpr std::size_t kMaxInputs = 64;

  Function() = default;
  /// Destroys the graph behind it iteratively, so a chain of any length causes no recursion.
  virtual ~Function();
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  /// Runs function->forward(inputs...) with the tape off. If an input requires a gradient and the
  /// tape is on, puts the function on the tape, once. Arguments of type Tensor and TensorList are
  /// the tensor inputs; an undefined Tensor is an absent input. Other arguments are passed as they
  /// are. forward returns a Tensor, a TensorList or a std::array<Tensor, N>; int64 and bool outputs
  /// carry no gradient.
  ///
  /// Error for more than kMaxInputs tensor inputs, for an input that is this rank's shard of a
  /// parameter (the sharded module was not called: Note [Shards are no operands]), and for an
  /// object that has been applied before; LayoutError for a FRACTAL_NZ input that it does not read.
  template <class F, class... Arguments>
  static auto apply(const std::shared_ptr<F>& function, const Arguments&... arguments);

  /// The results of function.forward(arguments...) alone: nothing is put on the tape, and what
  /// forward saves is kept by the Function only. For results that are made again.
  template <class F, class... Arguments>
  static TensorList forward_alone(F& function, const std::tuple<Arguments...>& arguments) {
    const NoGradGuard no_grad;
    static_cast<Function&>(function).recorded_ = false;
    TensorList results;
    std::apply(
        [&](const auto&... each) { detail::append_tensors(results, function.forward(each...)); },
        arguments);
    return results;
  }

  /// The op's name, as errors, traces and graphs show it.
  virtual std::string_view name() const = 0;

  /// Computes the gradients of the tensor inputs, in the order of apply()'s arguments, from the
  /// gradients of the outputs. Entries that `needs` does not ask for may be undefined, and those
  /// that it has sent through an InputGradientSink (engine.h). The gradient of an output that
  /// nothing used arrives as zeros. May be called twice with disjoint masks.
  ///
  /// Gradients have the shape and dtype of their outputs (that of a bfloat16 input may be float32:
  /// Note [bfloat16 on the tape]), but need not be contiguous: the next op
  /// may return a strided gradient, and so may the caller of backward(). data<T>() refuses such a
  /// view; ops::contiguous(grads[i]), or clone(grads[i]) without ops, gives a tensor that it can
  /// read. backward may return strided tensors, too. It must not write into `grads`: others read
  /// them.
  virtual TensorList backward(const TensorList& grads, InputMask needs) = 0;

  /// Whether tensor input i may be FRACTAL_NZ; apply() refuses it otherwise.
  virtual bool reads_nz(std::size_t /*i*/) const { return false; }
  /// Whether gradients of bfloat16 outputs may arrive in float32, as they have been added. For one
  /// that only passes them on, or adds them in float32.
  virtual bool takes_wide_gradients() const { return false; }
  /// Whether backward runs an inner backward over what it recomputes. Such a Function is recorded
  /// even if no input requires a gradient, since it may reach leaves that are not its inputs.
  /// Gradients of unused outputs arrive undefined.
  virtual bool recomputes() const { return false; }
  /// The leaves that such a Function reaches without their being inputs, each once. Their hooks
  /// wait for it.
  virtual const TensorList& captured() const;
  /// Whether forward may run once more for what backward reads (Note [Results that are made
  /// again]): not for a collective.
  virtual bool may_run_again() const { return true; }
  /// A shorter way to result i, if there is one.
  virtual std::optional<ShorterWay> shorter_way(std::size_t /*i*/, const TensorList& /*inputs*/,
                                                const TensorList& /*results*/) const {
    return std::nullopt;
  }
  /// The last micro-batch, and the last part of one, that it, or what it recomputes, was applied
  /// for.
  virtual MicroBatchPart last_micro_batch() const { return micro_batch_; }
  /// Whether the gradient of tensor input i may be computed after the others, by one more call of
  /// backward (Note [Weight gradients that wait]).
  virtual bool may_wait(std::size_t /*i*/) const { return false; }
  /// Floating-point operations of forward, for a Function on the tape: two per multiplied pair for
  /// products, otherwise one per element of the outputs.
  virtual double flops() const;

  std::uint64_t sequence() const { return sequence_; }
  const std::shared_ptr<const Scope>& scope() const { return scope_; }
  /// The micro-batch, and the use of a weight, that it was applied for (Note [Micro-batches in one
  /// backward], Note [Uses of a tied weight]).
  MicroBatchPart micro_batch() const { return micro_batch_; }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<OutputInfo>& outputs() const { return outputs_; }
  /// The inputs that have a leaf behind them that needs a gradient.
  InputMask needs() const;
  /// Bytes that saved tensors hold (each saved tensor counts shared storage in full), packed ones
  /// included.
  std::int64_t saved_bytes() const;
  /// Bytes of the saved tensors that hooks have packed.
  std::int64_t packed_bytes() const;
  void release_saved();
  const std::vector<SavedTensor*>& saved() const { return saved_; }
  /// Where forward was called; null unless anomaly detection was on.
  const CallStack* call_stack() const { return call_stack_.get(); }

  /// Called with the gradient of output i when it is complete; a defined result replaces it.
  HookHandle add_output_hook(std::size_t i, std::function<Tensor(const Tensor&)> hook);
  Tensor run_output_hooks(std::size_t i, Tensor grad) const;

 private:
  friend class SavedTensor;

  void begin(bool record);
  void add_edge(const Tensor& input);
  void mark_output(Tensor& output);
  template <class Argument>
  void add_edges(const Argument& argument);

  std::uint64_t sequence_ = 0;
  bool recorded_ = true;
  bool tape_on_ = grad_enabled();  // where it was made or applied
  MicroBatchPart micro_batch_;
  std::shared_ptr<const Scope> scope_;
  std::shared_ptr<const CallStack> call_stack_;
  std::vector<Edge> edges_;
  std::vector<OutputInfo> outputs_;
  std::vector<SavedTensor*> saved_;
  std::vector<std::pair<std::size_t, HookList<Tensor(const Tensor&)>>> output_hooks_;
};

namespace detail {

void check_input(const Function& function, const Tensor& input, std::size_t position);
/// Error in the body that a checkpoint runs again, if the tensor is the result of a Function that
/// was on the tape before: backward would go there from within, and come there once more.
void check_not_captured(const Tensor& tensor);

/// While it lives, in the body of a checkpoint, the leaves that Functions of this thread are
/// applied to and that require a gradient are added to `leaves`, each once. The innermost recorder
/// wins. Threads that share its ThreadState may note leaves at the same time.
class LeafRecorder {
 public:
  explicit LeafRecorder(TensorList& leaves) : leaves_(leaves), guard_(this) {}
  void note(const Tensor& captured);
  /// The last micro-batch that they were used for.
  MicroBatchPart last_micro_batch() const { return last_micro_batch_; }

 private:
  TensorList& leaves_;
  MicroBatchPart last_micro_batch_;
  ThreadValueGuard<&ThreadState::leaf_recorder> guard_;
  std::mutex mutex_;
};
void check_number(const Function& function, std::size_t inputs);
/// Adds to the error which inputs were undefined, when forward has read an undefined one.
void name_undefined(UndefinedTensorError& error, const Function& function,
                    const TensorList& inputs);
/// Adds to the error, unless it says so already, which of these tensors is bfloat16 and what to
/// call, when the Function has read one as another dtype.
void name_bfloat16(DtypeError& error, const Function& function, std::string_view what,
                   const TensorList& tensors);

template <class Argument>
void check_argument(const Function& function, const Argument& argument, std::size_t& position) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    check_input(function, argument, position++);
  } else if constexpr (std::is_same_v<Argument, TensorList>) {
    for (const auto& tensor : argument) check_input(function, tensor, position++);
  }
}

template <class Argument>
bool needs_grad(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    return argument.defined() && argument.requires_grad();
  } else if constexpr (std::is_same_v<Argument, TensorList>) {
    for (const auto& tensor : argument) {
      if (needs_grad(tensor)) return true;
    }
  }
  return false;
}

template <class Argument>
void append_tensors(TensorList& tensors, const Argument& argument) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    tensors.push_back(argument);
  } else if constexpr (requires {
                         { *argument.begin() } -> std::same_as<const Tensor&>;
                       }) {
    tensors.insert(tensors.end(), argument.begin(), argument.end());
  }
}

template <class Argument>
decltype(auto) detached(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    return argument.defined() ? argument.detach() : Tensor();
  } else if constexpr (std::is_same_v<Argument, TensorList>) {
    TensorList tensors;
    for (const auto& tensor : argument) tensors.push_back(detached(tensor));
    return tensors;
  } else {
    return (argument);
  }
}

}  // namespace detail

template <class Argument>
void Function::add_edges(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    add_edge(argument);
  } else if constexpr (std::is_same_v<Argument, TensorList>) {
    for (const auto& tensor : argument) add_edge(tensor);
  }
}

template <class F, class... Arguments>
auto Function::apply(const std::shared_ptr<F>& function, const Arguments&... arguments) {
  static_assert(
      (!detail::kHidesTensors<Arguments> && ...),
      "Function::apply: tensor inputs must be arguments of type Tensor or TensorList; pass "
      "an undefined Tensor for an absent one");
  check(function != nullptr, "Function::apply: must be given a Function, got null");
  std::size_t position = 0;
  (detail::check_argument(*function, arguments, position), ...);
  detail::check_number(*function, position);
  Function& base = *function;
  const bool record =
      grad_enabled() && (base.recomputes() || (detail::needs_grad(arguments) || ...));
  base.begin(record);
  auto outputs = [&] {
    const NoGradGuard no_grad;
    const SpanGuard span(SpanKind::kFunction, Lane::kCompute, "forward ", base.name());
    try {
      return function->forward(detail::detached(arguments)...);
    } catch (UndefinedTensorError& error) {
      TensorList inputs;
      (detail::append_tensors(inputs, arguments), ...);
      detail::name_undefined(error, base, inputs);
      throw;
    } catch (DtypeError& error) {
      TensorList inputs;
      (detail::append_tensors(inputs, arguments), ...);
      detail::name_bfloat16(error, base, "input ", inputs);
      throw;
    }
  }();
  if (record) {
    (base.add_edges(arguments), ...);
    if constexpr (std::is_same_v<decltype(outputs), Tensor>) {
      base.mark_output(outputs);
    } else {
      for (auto& output : outputs) base.mark_output(output);
    }
  }
  if (anomaly_detection_enabled()) {
    TensorList inputs, results;
    (detail::append_tensors(inputs, arguments), ...);
    detail::append_tensors(results, outputs);
    detail::check_forward_is_finite(base, inputs, results);
  }
  return outputs;
}

namespace detail {

/// The argument without its tensors, and with others in their place, from `inputs[next]` on.
template <class Argument>
Argument without_tensors(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    return Tensor();
  } else if constexpr (std::is_same_v<Argument, TensorList>) {
    return TensorList(argument.size());
  } else {
    return argument;
  }
}
template <class Argument>
Argument with_tensors(const Argument& argument, const TensorList& inputs, std::size_t& next) {
  if constexpr (std::is_same_v<Argument, Tensor>) {
    return inputs[next++];
  } else if constexpr (std::is_same_v<Argument, TensorList>) {
    TensorList tensors;
    for (std::size_t i = 0; i < argument.size(); ++i) tensors.push_back(inputs[next++]);
    return tensors;
  } else {
    return argument;
  }
}

/// Asks the policy about what apply() has returned. `made`: copies of what the Function was
/// constructed with.
template <class F, class... Made, class Outputs, class... Arguments>
void offer(const Function& function, const std::tuple<Made...>& made, const Outputs& outputs,
           const Arguments&... arguments) {
  TensorList inputs, results;
  (append_tensors(inputs, arguments), ...);
  append_tensors(results, outputs);
  offer_results(function, inputs, results, [&]() -> ForwardAgain {
    const std::tuple<Arguments...> held{without_tensors(arguments)...};
    return [made, held](const TensorList& given) {
      std::size_t next = 0;
      return std::apply(
          [&](const auto&... each) {
            // In braces: from left to right.
            const std::tuple<Arguments...> filled{with_tensors(each, given, next)...};
            const auto again =
                std::apply([](const auto&... with) { return std::make_shared<F>(with...); }, made);
            return Function::forward_alone(*again, filled);
          },
          held);
    };
  });
}

/// Whether a T, not a tensor input, means in backward what it meant in forward.
template <class T>
inline constexpr bool kLasts =
    std::copy_constructible<T> && !kRefersToOthers<T> && !kHidesTensors<T> &&
    !std::is_same_v<T, Tensor> && !std::is_same_v<T, TensorList>;

/// Whether an F and a call of its forward can be made once more from copies.
template <class F, class... Arguments>
struct CanBeCopied {
  template <class... Made>
  static constexpr bool with = (kLasts<Made> && ...) &&
                               ((std::is_same_v<Arguments, Tensor> ||
                                 std::is_same_v<Arguments, TensorList> ||
                                 kLasts<Arguments>)&&...) &&
                               std::constructible_from<F, const Made&...>;
};

}  // namespace detail

/// What apply() below constructs a Function with.
template <class... Arguments>
struct MadeWith {
  std::tuple<Arguments&&...> arguments;
};

template <class... Arguments>
MadeWith<Arguments...> made_with(Arguments&&... arguments) {
  return {std::forward_as_tuple(std::forward<Arguments>(arguments)...)};
}

/// Makes an F and calls Function::apply on it:
///
///     apply<Square>(x)                               a Square()
///     apply<Narrow>(made_with(dim, start), x)        a Narrow(dim, start)
template <class F, class... Made, class... Arguments>
auto apply(MadeWith<Made...> made, const Arguments&... arguments) {
  std::apply(
      [](const auto&... with) {
        check(!grad_enabled() || !(detail::needs_grad(with) || ...),
              "made_with: a tensor that requires a gradient must be an argument of apply(), where "
              "it gets one; detach() what is a constant");
      },
      made.arguments);
  const auto make = [](auto&&... with) {
    return std::make_shared<F>(std::forward<decltype(with)>(with)...);
  };
  if (!detail::asks_policy()) {
    return Function::apply(std::apply(make, std::move(made.arguments)), arguments...);
  }
  if constexpr (detail::CanBeCopied<F, Arguments...>::template with<std::decay_t<Made>...>) {
    const std::tuple<std::decay_t<Made>...> copies(made.arguments);
    const auto function = std::apply(make, std::move(made.arguments));
    auto outputs = Function::apply(function, arguments...);
    detail::offer<F>(*function, copies, outputs, arguments...);
    return outputs;
  } else {
    const auto function = std::apply(make, std::move(made.arguments));
    auto outputs = Function::apply(function, arguments...);
    TensorList results;
    detail::append_tensors(results, outputs);
    detail::offer_results(*function, {}, results, nullptr);
    return outputs;
  }
}
template <class F, class... Arguments>
auto apply(const Arguments&... arguments) {
  return apply<F>(made_with(), arguments...);
}

}  // namespace moegrad
