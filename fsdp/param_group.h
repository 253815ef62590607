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
#include "fsdp/observer.h"
#include "fsdp/policy.h"
#include "fsdp/sharded_param.h"
#include "nn/module.h"

namespace moegrad::fsdp {

class GradientReducer;

/// The slot of a parameter, and the dimension to cut it along.
struct PlacedSlot {
  nn::ParameterSlot slot;
  std::int64_t dim = 0;
};

/// What parameters travel in, and what they are gathered in.
struct GatheredDtypes {
  Dtype wire = Dtype::kFloat32;
  Dtype compute = Dtype::kFloat32;
  friend bool operator==(const GatheredDtypes&, const GatheredDtypes&) = default;
};
/// The dtypes for parameters of this one; `for_products`: products alone read them. DtypeError if
/// bfloat16 is to be computed with and parameters are not float32, and if dtypes contradict.
GatheredDtypes gathered_dtypes(const MixedPrecisionPolicy& mixed, Dtype parameters,
                               bool for_products);

/// Which products will read the gathered weights first: the two need bfloat16 in two forms (Note
/// [FRACTAL_NZ of bfloat16]).
enum class GatheredFor : std::uint8_t { kForward, kBackward };

/// The unit of communication: the parameters of one fully_shard call on one mesh, of one dtype. One
/// all-gather gathers them and one reduce-scatter reduces their gradients.
///
/// Note [Shards are the truth]
/// The shards are the parameters. Gathered values are a read-only copy of one version of the
/// shards. The version is the counter of the flat shard's storage: every write to a shard raises
/// it.
///
/// - Only the modules see the gathered copy, and only while they compute. named_parameters(), state
///   dicts, and all code that starts from them (optimizers, clipping, checkpoints, averages of
///   weights) always see shards (ParameterSlot::parameter).
/// - A gathered copy is used again only while the shards have the version that it was gathered
/// from.
///   unshard() and wait_for_unshard() compare. Everything that needs gathered values calls one of
///   them: forward, backward, recomputation, prefetches, calls by hand. A stale copy is freed and
///   gathered again. pre-backward frees it even if backward does not gather.
/// - A gather from a newer version than the last one raises the versions of the unsharded
///   storages. So a backward whose forward used the older values fails in SavedTensor, as it would
///   without sharding. A gather from the same version raises nothing: the same values come back.
///   The version belongs to the group: a backward that needs an unchanged parameter of a changed
///   group fails, too.
/// - A write to a gathered copy would be lost. So it is an Error when the copy is used again or
///   freed.
/// - requires_grad may be set on either form; the other form follows at the next of these calls.
///
/// Each rank decides alone whether to gather again. All ranks decide alike because all of them
/// write to their shards alike: every writer of this library also counts a write to a shard without
/// elements. If ranks differ nevertheless, one of them gathers and the others do not. The label of
/// a repeated gather contains the number of requests for the group so far. So it cannot meet a
/// later gather of another rank by accident, and the ranks get a CollectiveError.
///
/// A gather in flight reads the shards of all ranks. A gather that a forward or backward has issued
/// ends with that forward or backward. After unshard_async(), wait or reshard before you write to
/// the shards.
///
/// Note [Unsharded means allocated]
/// States: SHARDED, GATHERING (all-gather issued), UNSHARDED. The bytes of the unsharded tensors
/// are allocated exactly from unshard() to reshard(). The modules hold these tensors exactly from
/// wait_for_unshard() to reshard(). Every transition is idempotent. Only the compute thread
/// allocates and frees; the communication thread fills.
class ParamGroup {
 public:
  /// Copies this rank's part of the parameters in `slots`. Parameters without bytes (the meta
  /// device) stay without bytes. `name` is the group's name within its module.
  ParamGroup(const std::vector<PlacedSlot>& slots, GroupRanks ranks, const Policy& policy,
             GatheredDtypes dtypes, std::string name = {});
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  /// Replaces the parameters by the shards, once.
  void take_slots();

  /// Issues the all-gather, unless the group is gathered or gathering from the current version of
  /// the shards. `event` is the reason. If the gather fails, here or during the wait, the group is
  /// sharded. Error if the gathered values have been written to.
  void unshard(Event event = Event::kUnshard, GatheredFor use = GatheredFor::kForward);
  /// Completes the gather and registers the unsharded parameters. Gathers again if the shards have
  /// changed since it was issued.
  void wait_for_unshard();
  /// Completes a gather in flight without registering anything.
  void finish_gather();
  /// Frees the unsharded parameters and registers the shards. Ignores the failure of a gather in
  /// flight. Then throws Error if the gathered values have been written to.
  void reshard();
  /// reshard() if the shards have changed since the gather.
  void reshard_if_stale();
  /// reshard() without this Error.
  void abandon_unsharded();
  bool is_sharded() const { return state_ == State::kSharded; }
  bool is_gathering() const { return state_ == State::kGathering; }

  /// See Note [Where a gradient is summed].
  GradientReducer& reducer() { return *reducer_; }
  /// Clears the gradients of the shards.
  void zero_grad();

  /// Allocates the shards' bytes and fills them with zeros. For a group that was made without
  /// bytes.
  void to_empty();
  bool is_meta() const { return shard_.is_meta(); }
  /// The checksum of each whole parameter as this rank passed it to fully_shard. Empty on a world
  /// of one, for parameters that had no bytes, and once the shards have been written to.
  std::vector<std::uint32_t> initial_checksums() const;

  /// Sets the names of the group and its parameters as the root sees them. `path` is the path of
  /// the group's module; `slots` are all slots of the root.
  void set_names(const std::string& path, const std::vector<nn::ParameterSlot>& slots);
  const std::string& name() const { return name_; }
  void set_observer(std::shared_ptr<Observer> observer) { observer_ = std::move(observer); }

  std::vector<ShardedParam>& params() { return params_; }
  const std::vector<ShardedParam>& params() const { return params_; }
  const FlatLayout& layout() const { return layout_; }
  const GroupRanks& ranks() const { return ranks_; }
  /// The dtypes that the parameters travel and are gathered in.
  const GatheredDtypes& dtypes() const { return dtypes_; }
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
  void start_gather(const std::string& label, GatheredFor use);
  void release_unsharded();
  void notify(Event event) const;

  GroupRanks ranks_;
  std::string own_name_;  // within the module passed to fully_shard
  std::string name_;
  std::shared_ptr<Observer> observer_;
  Dtype dtype_ = Dtype::kFloat32;  // of the shards
  GatheredDtypes dtypes_;
  FlatLayout layout_;
  Layout gathered_layout_;
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
  WorkPtr gather_;  // declared after what it reads and fills, so that it ends before they do
};

}  // namespace moegrad::fsdp
