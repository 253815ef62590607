// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/tensor/named_tensor.h"
#include "optim/row_blocks.h"
#include "optim/shard_groups.h"

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
  /// A part of a parameter that has a gradient: one row block, or all of it.
  struct Update {
    const ParamGroup& group;
    Tensor parameter;
    Tensor grad;
    std::size_t index;  // of the parameter, in order of groups and of parameters within them
    std::size_t block;
    BlockRange range;
  };
  /// Carries out one. Every rank gets the same blocks, with empty ranges where others hold them.
  virtual void apply(Update& part) = 0;

  /// Zeros of the parameter's shape and dtype, cut as it is.
  static Tensor zero_state(const Tensor& parameter);
  /// Row blocks of a parameter; 1 without.
  std::int64_t num_blocks(const std::string& name) const;

 private:
  using Flags = std::vector<std::int64_t>;  // one per block, 0 or 1

  void check_trainable() const;
  void warn_of_zeros() const;
  /// Which blocks have a gradient on any rank.
  std::map<std::string, Flags> take_used_blocks();

  std::vector<ParamGroup> groups_;
  bool has_stepped_ = false;
  std::vector<double> base_lrs_;        // of the groups as constructed
  std::map<std::string, Flags> marks_;  // of each parameter with row blocks
  ProcessGroups mesh_groups_;           // over which these are sharded or replicated
};

}  // namespace moegrad::optim
