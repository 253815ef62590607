// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/autograd/gradient_tree.h"
#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "fsdp/copy_out.h"
#include "fsdp/flat_layout.h"
#include "fsdp/policy.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// One parameter of a group in its two forms. Both tensors are made once: Functions and optimizers
/// keep handles on them.
struct ShardedParam {
  std::string name;
  std::vector<Tensor*> slots;  // several when tied
  nn::ParameterLayout layout;
  Tensor sharded;    // [its rows, ...], a view of the group's flat shard
  Tensor unsharded;  // [rows, ...]; bytes exist only while gathered
};

/// The unit of communication: the parameters of one fully_shard call, gathered by one all-gather
/// and reduced by one reduce-scatter.
///
/// Note [Unsharded means allocated]
/// States: SHARDED, GATHERING (all-gather issued), UNSHARDED. The unsharded tensors' bytes are
/// allocated exactly from unshard() to reshard(), and are what the modules hold exactly from
/// wait_for_unshard() to reshard(). Every transition is idempotent. Only the compute thread
/// allocates and frees; the communication thread fills.
class ParamGroup {
 public:
  /// Takes the (unsharded) parameters out of `slots`, keeps this rank's rows, and puts the sharded
  /// parameters in their place. `group` is null or of size 1 on a world of one.
  ParamGroup(const std::vector<nn::ParameterSlot>& slots, std::shared_ptr<ProcessGroup> group,
             const Policy& policy);

  /// Issues the all-gather; `event` is what the log calls it.
  void unshard(std::string_view event = "unshard");
  /// Completes it and registers the unsharded parameters.
  void wait_for_unshard();
  /// Frees the unsharded parameters and registers the shards.
  void reshard();
  bool is_sharded() const { return state_ == State::kSharded; }

  /// Keeps the gradients of the unsharded parameters for a later reduction, as the next leaf of
  /// their sum.
  void accumulate_gradients();
  /// Starts reducing the gradients kept, and those of the last backward, into the sharded
  /// parameters' gradients. Frees the unsharded gradients.
  void reduce_gradients();
  /// Completes the reduction started, if any.
  void wait_for_reduce();

  void set_name(const std::string& module_path);
  const std::string& name() const { return name_; }
  std::vector<ShardedParam>& params() { return params_; }
  const FlatLayout& layout() const { return layout_; }
  /// Bytes of this rank's flat shard, padding included, and of all unsharded parameters.
  std::int64_t sharded_bytes() const { return shard_.storage().bytes(); }
  std::int64_t unsharded_bytes() const;

 private:
  enum class State : std::uint8_t { kSharded, kGathering, kUnsharded };
  struct Reduction {
    Tensor input;           // [world_size, slice]
    Tensor output;          // [slice]; the input itself on a world of one
    std::vector<bool> has;  // which parameters had a gradient
    WorkPtr work;           // null on a world of one; last, so that it ends before its buffers do
  };

  int world_size() const { return layout_.world_size; }
  Tensor copy_in_gradients(const std::vector<bool>& has);
  void shard_parameters(int rank);
  Tensor make_unsharded(const Shape& shape, const nn::ParameterLayout& layout) const;

  std::shared_ptr<ProcessGroup> group_;
  MixedPrecision mixed_precision_;
  std::string name_;
  Dtype dtype_ = Dtype::kFloat32;
  FlatLayout layout_;
  std::unique_ptr<CopyOut> copy_out_;
  std::int64_t nz_params_ = 0;
  std::vector<ShardedParam> params_;
  Tensor shard_;  // [slice]
  std::unique_ptr<GradientTree> kept_gradients_;
  bool has_kept_gradients_ = false;

  State state_ = State::kSharded;
  Tensor wire_;     // [slice], the narrow copy of shard_ while it travels
  WorkPtr gather_;  // after what it reads and fills, so that it ends before they do
  std::optional<Reduction> reduction_;
};

}  // namespace moegrad::fsdp
