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
/// Note [Shards are the truth]
/// The shards are the parameters. Gathered values are a read-only copy of one version of them,
/// where the version is the counter of the flat shard's storage: every write to a shard raises it.
///
/// - Only the modules, while they compute, see the gathered copy. named_parameters(), state dicts,
///   and whoever starts from those (optimizers, clipping, checkpoints, averages of weights) see
///   shards at all times (ParameterSlot::parameter).
/// - A gathered copy is used again only while the version is the one that it was gathered from.
///   unshard() and wait_for_unshard() compare, and everything that asks for gathered values goes
///   through one of them: forward, backward, recomputation, prefetches, calls by hand. A stale copy
///   is freed and gathered again. pre-backward frees it even where backward does not gather.
/// - A gather from a newer version than the last one raises the versions of the unsharded
///   storages, so that a backward whose forward used the older values fails in SavedTensor as it
///   would without sharding. A gather from the same version raises nothing: the same values come
///   back. The version belongs to the group: a backward that needs an unchanged parameter of a
///   changed group fails as well.
/// - Whoever writes to a gathered copy gets an Error when it is used again or freed, because the
///   write would be lost.
/// - requires_grad may be set on either form; the other follows at the next of these calls.
///
/// Whether to gather again is decided by each rank alone. All ranks decide alike because all of
/// them write to their shards alike: every writer of this library also counts a write to a shard
/// without elements. Where ranks differ all the same, one of them gathers and the others do not.
/// The label of a repeated gather carries the number of requests for the group so far, so that it
/// can meet no later gather of another rank by accident: the ranks get a CollectiveError.
///
/// A gather in flight reads the shards of all ranks. None that a forward or backward has issued
/// outlives it; who calls unshard_async() waits or reshards before he writes to the shards.
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

  /// Issues the all-gather, unless the group is gathered or gathering from the current version of
  /// the shards; `event` says why. A gather that fails, here or when it is waited for, leaves the
  /// group sharded. Error if somebody has written to the gathered values.
  void unshard(Event event = Event::kUnshard);
  /// Completes it and registers the unsharded parameters; gathers again if the shards have changed
  /// since it was issued.
  void wait_for_unshard();
  /// Completes a gather in flight without registering anything.
  void finish_gather();
  /// Frees the unsharded parameters and registers the shards. Does not throw what became of a
  /// gather under way. Error, once that is done, if somebody has written to the gathered values.
  void reshard();
  /// reshard() if the shards have changed since the gather.
  void reshard_if_stale();
  /// reshard() without that Error.
  void abandon_unsharded();
  bool is_sharded() const { return state_ == State::kSharded; }
  bool is_gathering() const { return state_ == State::kGathering; }

  /// Note [Where a gradient is summed].
  GradientReducer& reducer() { return *reducer_; }
  /// Clears the gradients of the shards.
  void zero_grad();

  /// Gives the shards bytes: zeros. For a group made without.
  void to_empty();
  bool is_meta() const { return shard_.is_meta(); }
  /// Checksum of each whole parameter as this rank passed it to fully_shard; empty on a world of
  /// one, for parameters that had no bytes, and once the shards have been written to.
  std::vector<std::uint32_t> initial_checksums() const;

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
  bool is_stale() const;
  const ShardedParam* find_written() const;
  void agree_on_requires_grad();
  void note_version();
  void start_gather(const std::string& label);
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
  std::shared_ptr<const CopyOut> copy_out_;
  std::int64_t nz_params_ = 0;
  std::vector<ShardedParam> params_;
  Tensor shard_;  // [slice]
  std::unique_ptr<GradientReducer> reducer_;

  std::vector<std::uint32_t> checksums_;  // of the whole parameters
  std::uint64_t initial_version_ = 0;     // of the shards, as fully_shard made them

  State state_ = State::kSharded;
  std::optional<std::uint64_t> gathered_version_;  // of the shards, at the last gather
  std::uint64_t requests_ = 0;                     // calls of unshard()
  Tensor wire_;     // [slice], the narrow copy of shard_ while it travels
  WorkPtr gather_;  // after what it reads and fills, so that it ends before they do
};

}  // namespace moegrad::fsdp
