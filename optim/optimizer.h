// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/named_tensor.h"
#include "optim/param_group.h"
#include "optim/row_blocks.h"

namespace moegrad::optim {

/// Base of optimizers. step() modifies parameters in place. It has the same bits on any number of
/// ranks: most rules treat each element alone, so that a shard is updated like that part of the
/// whole parameter; others gather a whole matrix (MatrixOptimizer). Parameters without a gradient
/// are left alone. Make the optimizer after fully_shard, which replaces parameters by their shards.
///
/// Nothing is kept of a parameter that does not require a gradient (set_requires_grad) when the
/// optimizer is made. What it keeps of one is made once the parameter requires a gradient or has
/// one, and stays if it is frozen later.
///
/// A gradient of zeros is a gradient like any other, except in row blocks named by the option
/// skip_missing_grad (Note [Blocks without a gradient]), which makes step() collective over the
/// ranks that hold parts of them.
class Optimizer {
 public:
  /// ValueError if there is no parameter, if one is given twice, if two have one name, if an lr or
  /// weight decay is missing, not finite or negative, for row blocks of an unknown parameter, or if
  /// the number of blocks does not divide its rows. DtypeError for a parameter that is not float32
  /// or float64, LayoutError for one that is not contiguous, Error for one that is no leaf.
  explicit Optimizer(std::vector<ParamGroup> groups, const RowBlocks& skip_missing_grad = {},
                     bool skip_nonfinite_grad = false);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates all parameters that have a gradient, once. Error, and nothing is changed, if
  ///
  /// - no parameter has a gradient (PyTorch's step does nothing then; with optimizers that take
  ///   turns, call step() on the one whose parameters backward has reached);
  /// - fully_shard or expert_parallel has since replaced a parameter by a part;
  /// - Module::to has converted a parameter since the optimizer was made (a DtypeError);
  /// - WeightAverage::swap() has put its averages in the place of the weights;
  /// - some parameters are spread over ranks and another is whole but not ignored by fully_shard.
  ///
  /// Under fully_shard a rank whose shards are all empty has gradients without elements, which
  /// count. The first step warns if there are several matrices and all are zero.
  ///
  /// With the option skip_nonfinite_grad a step changes nothing but skipped_steps() if any gradient
  /// of any rank has a NaN or an infinity. The ranks agree on it by one all-reduce per group.
  void step();
  /// The number of steps that skip_nonfinite_grad has skipped.
  std::int64_t skipped_steps() const { return skipped_steps_; }
  /// Drops the gradients of all parameters.
  void zero_grad();
  /// The tensors that it keeps from step to step, each named after its parameter, such as
  /// `model.norm.weight.exp_avg`; none of a parameter that has been frozen all along. A tensor is
  /// cut like its parameter (ShardSpec), or whole and the same on all ranks. A checkpoint saves
  /// these tensors and fills them again.
  NamedTensors state_dict() const;
  /// Copies the values into the tensors of state_dict(), as when a run is resumed. Nothing is
  /// copied if it throws: Error unless names agree, ShapeError unless shapes agree, DtypeError
  /// unless dtypes agree, ValueError for another part of a parameter than this rank's, as its
  /// ShardSpec says (a tensor without one is whole), and for a count of steps that is negative or
  /// above 2^53. State of a frozen parameter, of which it keeps nothing so far, is kept from then
  /// on. Learning rates are not part of the state, unlike PyTorch's: a schedule sets them again.
  void load_state_dict(const NamedTensors& state);

  /// Sets one learning rate for all groups, whatever theirs were: set_lr(schedule(step)). With
  /// rates of their own use scale_lr(). ValueError if the rate is negative or not finite, here and
  /// below.
  void set_lr(double lr);
  /// Sets the rate of group `group`, as PyTorch's optimizer.param_groups[group]["lr"] = lr.
  /// ValueError unless there is such a group.
  void set_lr(std::size_t group, double lr);
  /// Sets the rate of each group to `factor` times its base rate, with which it was constructed,
  /// also after a set_lr(). So the ratios between groups stay, as with PyTorch's LambdaLR. With a
  /// schedule of peak 1,
  ///
  ///     const auto schedule = cosine_with_warmup(/*lr=*/1.0, warmup, total);
  ///     optimizer.scale_lr(schedule(step));
  void scale_lr(double factor);

  /// Declares that row block b of parameter `name` has a gradient in the coming step, even if the
  /// gradient is zero, if uses[b] > 0. `uses` may be the tokens per expert. Adds to earlier marks;
  /// step() clears them. ValueError unless skip_missing_grad names the parameter with that many
  /// blocks.
  void mark_used(const std::string& name, std::span<const std::int64_t> uses);

  const std::vector<ParamGroup>& groups() const { return groups_; }

 protected:
  /// A parameter that has a gradient, and what the optimizer keeps of it; or one row block of all
  /// these. The same on every rank, with empty tensors where others hold the elements.
  struct Update {
    const ParamGroup& group;
    const std::string& name;
    Tensor parameter;
    Tensor grad;
    TensorList state;  // in the order of keep()
  };
  /// The row blocks of a parameter, and those that have a gradient in this step.
  struct Blocks {
    std::int64_t count = 1;
    std::vector<std::int64_t> with_gradient = {};
  };

  /// Carries out the update of a whole parameter or of a row block, element by element. An
  /// optimizer has this or apply_blocks().
  virtual void apply(Update& /*update*/) {}
  /// Carries out the update of a parameter's row blocks that have a gradient. Here: calls apply()
  /// with each of them.
  virtual void apply_blocks(Update& whole, const Blocks& blocks);

  /// For the constructors of optimizers: keeps what `make` returns for each parameter that is
  /// trained from step to step, each tensor under a key of its own, without a dot, such as
  /// `exp_avg`. Called again for a parameter that is trained later on. `make` may return
  ///
  /// - tensors of the parameter's shape and cut as it is (zero_state);
  /// - one number for each row block (one_per_block);
  /// - other tensors that are whole and the same on all ranks (whole_state).
  void keep(std::function<NamedTensors(const ParamGroup&, const NamedTensor&)> make);
  /// What is kept of the parameter at `index` in order of groups and of parameters within them:
  /// undefined without such a key.
  Tensor kept(std::size_t index, std::string_view key) const;

  /// An int64 zero, for each row block that the parameter has; the same on all of its ranks.
  Tensor one_per_block(const NamedTensor& parameter) const;
  /// The number of the parameter's row blocks; 1 without skip_missing_grad.
  std::int64_t num_blocks(const std::string& name) const { return missing_.num_blocks(name); }

 private:
  using States = std::vector<std::optional<NamedTensors>>;  // of each parameter, named by keys

  /// Adds those of the parameters that are trained by now, or are in `names`.
  void make_states(States& states, const std::set<std::string_view>& names = {}) const;
  NamedTensors named(const States& states) const;
  void check_trainable() const;
  void check_not_converted(const NamedTensors& parameters) const;
  void warn_of_zeros() const;
  NamedTensors all_parameters() const;
  bool all_gradients_are_finite() const;

  std::vector<ParamGroup> groups_;
  std::function<NamedTensors(const ParamGroup&, const NamedTensor&)> make_state_;
  mutable States states_;  // none of a parameter that is not trained so far
  bool has_stepped_ = false;
  std::vector<Dtype> dtypes_;     // of all parameters as the optimizer was made
  std::vector<double> base_lrs_;  // of the groups as constructed
  MissingGradients missing_;
  bool skip_nonfinite_grad_;
  std::int64_t skipped_steps_ = 0;
};

}  // namespace moegrad::optim
