// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/gradient_sum.h"
#include "framework/autograd/use_sums.h"
#include "framework/distributed/process_group.h"
#include "fsdp/flat_layout.h"
#include "fsdp/observer.h"
#include "fsdp/reduction_input.h"
#include "fsdp/sharded_param.h"

namespace moegrad::fsdp {

/// Reduces the gradients of a group's unsharded parameters to the gradients of its shards.
///
/// Note [Where a gradient is summed]
/// There are three trees. Each sums the results of the one before, and each is optional:
///
///     kept       micro-batches without communication, on the unsharded parameters
///     scattered  over the ranks of the shard group, by the reduce-scatter; then, as long as
///                all-reduces are off, over the micro-batches that were scattered
///     replicas   over the replicas, by the all-reduce; then over micro-batches, in grad()
///
/// A backward through several micro-batches brings one leaf for each of them (Note [Micro-batches
/// in one backward]); they are kept first, even if nothing else is.
///
/// All are cut as in Note [Tree of successive terms], so ranks and micro-batches are leaves of one
/// tree. The order of the leaves is (replica, shard, micro-batch) if gradients are kept,
/// (micro-batch, replica, shard) if each micro-batch is reduced, and (replica, micro-batch, shard)
/// if each is scattered and only the last one is all-reduced.
///
/// Each use of a tied parameter is a term of its own in all of them, up to grad(), where their sums
/// are added (Note [Uses of a tied weight]).
///
/// Sums that wait for a later reduction belong to the gradient of the shard. If that gradient is
/// dropped, as by zero_grad(), they are dropped, too. This is checked before anything is added.
///
/// A reduction in flight owns its input and output. start() issues the reduce-scatter.
/// finish_scatter() ends it, frees its input and issues the all-reduce. finish() ends the
/// all-reduce. Each is idempotent and first does what must come before it.
class GradientReducer {
 public:
  using Notify = std::function<void(Event)>;

  /// `params` must outlive the reducer. `reduce_dtype` is by default the dtype of the gradients.
  GradientReducer(std::vector<ShardedParam>& params, GroupRanks ranks,
                  std::optional<Dtype> reduce_dtype, Notify notify);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Keeps the gradients of this backward for a later reduction.
  void keep();
  /// Starts to reduce the kept gradients and those of the last backward, and frees them. Trainable
  /// parameters without a gradient, and uses of tied ones, are left out, or count as zero with
  /// `zero_fill`. If there is nothing to reduce, nothing is issued. Without `all_reduce` the result
  /// waits for a later all-reduce.
  ///
  /// `name` is the group's name, for the collectives' labels. `round` is the number of the forward,
  /// so that gradients of different steps cannot meet. `make_room` is called before anything is
  /// allocated for a reduction.
  void start(bool all_reduce, bool zero_fill, const std::string& name, std::int64_t round,
             const std::function<void()>& make_room = {});
  void finish_scatter();
  void finish();
  /// Ends the reduction in flight. Forgets its result and all kept gradients.
  void discard();

  /// Called when a backward has brought a parameter all it brings.
  void set_on_arrival(std::function<void()> on_arrival) { on_arrival_ = std::move(on_arrival); }
  /// Whether there are gradients of the last backward that have been neither kept nor reduced.
  bool has_gradients() const;
  /// Whether there is one of parameter i, or a part of one.
  bool has_gradient(std::size_t i) const;
  bool scattering() const { return in_flight_ && in_flight_->scattering; }
  /// The sums kept without communication; undefined for a parameter that has none.
  TensorList kept();
  bool has_kept() const { return kept_.size() > 0; }
  /// A trainable parameter whose gradients arrive as sums over ranks (Note [The sum of a
  /// gradient]). Null if there is none.
  const ShardedParam* with_summed_sources() const;

 private:
  using Terms = std::vector<TensorList>;  // [parameters][uses]
  /// A use of a parameter that takes part in a reduction.
  struct Part {
    std::size_t param = 0;
    std::size_t use = 0;
  };
  struct InFlight {
    std::vector<Part> parts;
    FlatLayout layout;  // of these
    bool scattering = true;
    bool all_reduce = false;
    std::string name;
    std::int64_t round = 0;
    ReductionInput input;  // [num_shards, slice]; empty without ranks to scatter over
    Tensor output;         // [slice]
    WorkPtr work;          // null without ranks; last, so that it ends before its buffers do
  };

  /// What a backward brings to one unsharded parameter.
  class Arrival;

  void drop_cleared();
  Terms take_arrived(std::size_t j);
  Terms take_gradients();
  void push_gradients();
  std::vector<Part> parts_to_reduce(const Terms& gradients, bool zero_fill) const;
  CollectiveOptions call_of(CollectiveQueue queue, const InFlight& reduction) const;
  Terms terms_of(const InFlight& reduction) const;
  void set_aside(const InFlight& reduction);
  void merge_scattered(InFlight& reduction);
  Dtype dtype() const;

  std::vector<ShardedParam>& params_;
  GroupRanks ranks_;
  std::optional<Dtype> reduce_dtype_;
  Notify notify_;
  std::function<void()> on_arrival_;
  std::vector<std::unique_ptr<Arrival>> arrivals_;  // [parameters]
  GradientSum kept_;
  std::vector<UseSums> scattered_;  // [parameters]
  GradientSum sums_;
  std::optional<InFlight> in_flight_;
};

}  // namespace moegrad::fsdp
