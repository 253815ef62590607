// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/tensor/named_tensor.h"
#include "optim/row_blocks.h"

namespace moegrad::optim {

/// Parameters that share a learning rate and a weight decay. What a group leaves out is that of the
/// optimizer's configuration, as in PyTorch; an optimizer's own groups have both.
struct ParamGroup {
  NamedTensors parameters;
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

/// `groups` with what they leave out.
std::vector<ParamGroup> with_defaults(std::vector<ParamGroup> groups, double lr,
                                      double weight_decay);

/// Base of optimizers. step() modifies parameters in place, element by element, so that a shard is
/// updated as it would be within the whole; parameters without a gradient are left alone. Make the
/// optimizer after fully_shard, which replaces parameters by their shards.
///
/// A gradient of zeros is a gradient like any other, except in row blocks named by the option
/// skip_missing_grad (Note [Blocks without a gradient]), which makes step() collective over the
/// ranks that hold parts of them.
class Optimizer {
 public:
  /// ValueError without any parameter, for one given twice, no or a negative lr or weight decay,
  /// row blocks of an unknown parameter, or a number of blocks that does not divide its rows.
  explicit Optimizer(std::vector<ParamGroup> groups, const RowBlocks& skip_missing_grad = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of all parameters that have a gradient. Error, and nothing is changed, if none has
  /// one, if fully_shard has put a shard in the place of one since the optimizer was made, or if
  /// some are spread over ranks and another is whole without being ignored by fully_shard. Under
  /// fully_shard a rank whose shards are all empty has gradients without elements, which count. The
  /// first step warns if all of several matrices are zero.
  void step();
  /// Drops the gradients of all parameters.
  void zero_grad();
  /// What it remembers from step to step, as the tensors that it uses, each named after its
  /// parameter, such as `model.norm.weight.exp_avg`; cut like that (ShardSpec), or whole and the
  /// same on all ranks. A checkpoint saves them and fills them again.
  virtual NamedTensors state_dict() const = 0;
  /// Copies the values into what state_dict() holds, as when a run is resumed; nothing has been
  /// copied if it throws: Error unless names agree, ShapeError unless shapes do, DtypeError unless
  /// dtypes do, ValueError for a shard of another part of its parameter than this rank's. Learning
  /// rates are no state: a schedule gives them anew.
  void load_state_dict(const NamedTensors& state);

  /// Sets the learning rate of all groups, whatever they had: set_lr(schedule(step)). ValueError
  /// for one that is negative or not finite, here and below.
  void set_lr(double lr);
  /// Sets that of group `group`, as PyTorch's optimizer.param_groups[group]["lr"] = lr. ValueError
  /// unless there is such a group.
  void set_lr(std::size_t group, double lr);
  /// Gives each group `factor` times its base rate, which is what it was constructed with, so that
  /// the ratios between groups stay: PyTorch's LambdaLR. With a schedule of peak 1,
  ///
  ///     const auto schedule = cosine_with_warmup(/*lr=*/1.0, warmup, total);
  ///     optimizer.scale_lr(schedule(step));
  void scale_lr(double factor);

  /// Row block b of parameter `name` has a gradient in the coming step, be it zero, if uses[b] > 0
  /// (as the tokens per expert). Adds to earlier marks; step() clears them. ValueError unless
  /// skip_missing_grad names the parameter with that many blocks.
  void mark_used(const std::string& name, std::span<const std::int64_t> uses);

  const std::vector<ParamGroup>& groups() const { return groups_; }

 protected:
  /// A parameter that has a gradient, and what state_of() has kept of it; or one row block of all
  /// these. The same on every rank, with empty tensors where others hold the elements.
  struct Update {
    const ParamGroup& group;
    Tensor parameter;
    Tensor grad;
    TensorList state;
  };
  /// Carries out one.
  virtual void apply(Update& update) = 0;
  /// What apply() remembers of a parameter, by its index in order of groups and of parameters
  /// within them: of the parameter's shape and cut as it is (zero_state), or one number
  /// (one_per_block).
  virtual TensorList state_of(std::size_t index) const = 0;

  /// Zeros of the parameter's shape and dtype, cut as it is.
  static Tensor zero_state(const Tensor& parameter);
  /// An int64 zero, for each row block that the parameter has; the same on all ranks.
  Tensor one_per_block(const std::string& name) const;

 private:
  void check_trainable() const;
  void warn_of_zeros() const;
  NamedTensors all_parameters() const;

  std::vector<ParamGroup> groups_;
  bool has_stepped_ = false;
  std::vector<double> base_lrs_;  // of the groups as constructed
  MissingGradients missing_;
};

}  // namespace moegrad::optim
