// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "fsdp/copy_out.h"
#include "fsdp/flat_layout.h"
#include "fsdp/gradient_reducer.h"
#include "fsdp/observer.h"
#include "fsdp/policy.h"
#include "fsdp/sharded_param.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// A place where a parameter stands, and the dimension to cut it along.
struct PlacedSlot {
  nn::ParameterSlot slot;
  std::int64_t dim = 0;
};

/// The unit of communication: parameters of one fully_shard call on one mesh, gathered by one
/// all-gather and reduced by one reduce-scatter.
///
/// Note [Unsharded means allocated]
/// States: SHARDED, GATHERING (all-gather issued), UNSHARDED. The unsharded tensors' bytes are
/// allocated exactly from unshard() to reshard(), and are what the modules hold exactly from
/// wait_for_unshard() to reshard(). Every transition is idempotent. Only the compute thread
/// allocates and frees; the communication thread fills.
class ParamGroup {
 public:
  /// Copies this rank's part of the parameters in `slots`. Parameters without bytes (the meta
  /// device) stay so. `name` is the group's within its module.
  ParamGroup(const std::vector<PlacedSlot>& slots, GroupRanks ranks, const Policy& policy,
             std::string name = {});
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  /// Puts the shards in place of the parameters, once.
  void take_slots();

  /// Issues the all-gather; `event` says why. A gather that fails, here or when it is waited for,
  /// leaves the group sharded.
  void unshard(Event event = Event::kUnshard);
  /// Completes it and registers the unsharded parameters.
  void wait_for_unshard();
  /// Frees the unsharded parameters and registers the shards. Does not throw what became of a
  /// gather under way.
  void reshard();
  bool is_sharded() const { return state_ == State::kSharded; }
  bool is_gathering() const { return state_ == State::kGathering; }

  /// Note [Where a gradient is summed].
  GradientReducer& reducer() { return *reducer_; }
  /// Clears the gradients of the shards.
  void zero_grad();

  /// Gives the shards bytes: zeros. For a group made without.
  void to_empty();
  bool is_meta() const { return shard_.is_meta(); }

  /// Names group and parameters as the root sees them: `path` is that of the group's module,
  /// `slots` are all of the root's.
  void set_names(const std::string& path, const std::vector<nn::ParameterSlot>& slots);
  const std::string& name() const { return name_; }
  void set_observer(std::shared_ptr<Observer> observer) { observer_ = std::move(observer); }

  std::vector<ShardedParam>& params() { return params_; }
  const std::vector<ShardedParam>& params() const { return params_; }
  const FlatLayout& layout() const { return layout_; }
  const GroupRanks& ranks() const { return ranks_; }
  /// What the module computes in.
  Dtype compute_dtype() const { return compute_dtype_; }
  /// Bytes of this rank's flat shard, padding included, and of all unsharded parameters.
  std::int64_t sharded_bytes() const { return shard_.storage().bytes(); }
  std::int64_t unsharded_bytes() const;

 private:
  enum class State : std::uint8_t { kSharded, kGathering, kUnsharded };

  void collect_params(const std::vector<PlacedSlot>& slots);
  void shard_parameters();
  void start_gather();
  void release_unsharded();
  void notify(Event event) const;

  GroupRanks ranks_;
  std::string own_name_;  // within the module passed to fully_shard
  std::string name_;
  std::shared_ptr<Observer> observer_;
  Dtype dtype_ = Dtype::kFloat32;  // of the shards
  Dtype wire_dtype_ = Dtype::kFloat32;
  Dtype compute_dtype_ = Dtype::kFloat32;
  FlatLayout layout_;
  std::unique_ptr<CopyOut> copy_out_;
  std::int64_t nz_params_ = 0;
  std::vector<ShardedParam> params_;
  Tensor shard_;  // [slice]
  std::unique_ptr<GradientReducer> reducer_;

  State state_ = State::kSharded;
  Tensor wire_;     // [slice], the narrow copy of shard_ while it travels
  WorkPtr gather_;  // after what it reads and fills, so that it ends before they do
};

}  // namespace moegrad::fsdp
