// SPDX-License-Identifier: Apache-2.0
#include "train/rank_memory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/tensor/meta.h"
#include "train/optimizers.h"
#include "train/train_step.h"
#include "train/training_run.h"

namespace moegrad::training {
namespace {

/// Rank 0 of a group of ranks that do not run. Tensors that are sharded over it have the sizes that
/// they would have in the run.
class AbsentRanks final : public ProcessGroup {
 public:
  explicit AbsentRanks(int size) : AbsentRanks("dry run", ranks_up_to(size)) {}

 protected:
  WorkPtr issue(CollectiveCall) override { refuse(); }
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> members,
                                              const std::string& name) override {
    std::vector<int> in_world;
    for (const auto member : members) {
      in_world.push_back(ranks()[static_cast<std::size_t>(member)]);
    }
    return std::shared_ptr<ProcessGroup>(new AbsentRanks(name, std::move(in_world)));
  }

 private:
  // Rank 0 is the first of any group that it is in.
  AbsentRanks(const std::string& name, std::vector<int> ranks)
      : ProcessGroup(name, std::move(ranks), /*rank=*/0) {}
  static std::vector<int> ranks_up_to(int size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  [[noreturn]] static void refuse() { throw Error("dry run: the ranks do not run"); }
};

std::int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * size_of(tensor.dtype()); }

/// What one fully_shard group needs, in bytes.
struct GroupBytes {
  std::int64_t gathered = 0;
  std::int64_t wire = 0;           // its shard in the wire dtype, if that is narrower
  std::int64_t gradients = 0;      // whole gradients
  std::int64_t in_place = 0;       // the part of them that the reduction reads in place
  std::int64_t kept = 0;           // whole gradients, as kept from micro-batch to micro-batch
  std::int64_t reduced = 0;        // gradients of its shard, as the reduction writes them
  std::int64_t reduced_shard = 0;  // gradients of its shard, in the parameters' dtype
  std::int64_t input = 0;          // what the reduction reads besides the gradients themselves
  std::int64_t expert_input = 0;   // the same of experts on ranks of their own
};

GroupBytes operator+(GroupBytes a, const GroupBytes& b) {
  for (const auto field :
       {&GroupBytes::gathered, &GroupBytes::wire, &GroupBytes::gradients, &GroupBytes::in_place,
        &GroupBytes::kept, &GroupBytes::reduced, &GroupBytes::reduced_shard, &GroupBytes::input,
        &GroupBytes::expert_input}) {
    a.*field += b.*field;
  }
  return a;
}

std::int64_t padded_part(const fsdp::FlatEntry& entry) {
  return entry.outer * entry.chunk * entry.inner;
}

// Elements that the further uses of tied parameters add to a rank's slice of a reduction.
std::int64_t further_uses(const fsdp::ParamGroup& group) {
  std::int64_t numel = 0;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto further = static_cast<std::int64_t>(group.params()[i].uses()) - 1;
    numel += further * padded_part(group.layout().entries[i]);
  }
  return numel;
}

// `kept`: gradients wait for the last micro-batch, in the dtype in which they will be reduced.
// `sources`: whose products are summed to the gradient of each of the experts that are here.
GroupBytes bytes_of(const fsdp::ParamGroup& group, const fsdp::Policy& policy, bool kept,
                    int sources) {
  const auto dtype = group.params().front().sharded.dtype();
  const auto size = size_of(dtype);
  const auto wire = group.dtypes().wire;
  const auto reduce = policy.mixed_precision.reduce_dtype.value_or(dtype);
  const std::int64_t ranks = group.ranks().num_shards();
  GroupBytes bytes{.gathered = group.unsharded_bytes()};
  if (wire != dtype) bytes.wire = group.layout().slice_numel * size_of(wire);
  const bool in_place = kept || reduce == dtype;
  std::int64_t shard = 0, shown = 0, slice = further_uses(group), padding = 0, largest_expert = 0;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto& entry = group.layout().entries[i];
    const auto& param = group.params()[i];
    const auto part = padded_part(entry);
    const auto uses = static_cast<std::int64_t>(param.uses());
    bytes.gradients += uses * entry.numel() * size;
    bytes.kept += uses * entry.numel() * size_of(reduce);
    const bool stacked = param.layout.stacked.ndim() > 0;
    if (stacked) largest_expert = std::max(largest_expert, entry.numel() * size_of(reduce));
    shard += uses * param.sharded.numel();
    if (uses > 1) shown += param.sharded.numel();
    slice += part;
    if (in_place) padding = std::max(padding, std::min(ranks * part - entry.numel(), part));
  }
  // Note [The sum of a gradient]: the partials that one parameter's sum has at most, and its
  // result.
  if (sources > 1) {
    bytes.gradients += std::bit_width(static_cast<unsigned>(sources)) * largest_expert;
  }
  bytes.reduced = slice * size_of(reduce);
  // The gradients are views of the reduction's output, unless they have another dtype. Of several
  // uses the sum is shown (Note [Uses of a tied weight]).
  bytes.reduced_shard = (reduce == dtype ? bytes.reduced : shard * size) + shown * size;
  // Note [Gradients are reduced where they lie]
  if (ranks > 1 && in_place) bytes.in_place = kept ? bytes.kept : bytes.gradients;
  if (ranks > 1) bytes.input = in_place ? padding * size_of(reduce) : ranks * bytes.reduced;
  return bytes;
}

/// What this rank stages if the ranks are processes: what all others send it, until it is handed
/// on. A group of ranks keeps memory for the largest gather and the largest reduction that it has
/// had (framework/distributed/mpi/payload.h).
class StagedBytes {
 public:
  void add(const fsdp::ParamGroup& group, const fsdp::Policy& policy) {
    const auto& ranks = group.ranks().shard;
    if (ranks == nullptr) return;
    const auto dtype = group.params().front().sharded.dtype();
    const auto staged = [&](std::int64_t numel, std::optional<Dtype> sent) {
      const auto slice = numel * size_of(sent.value_or(dtype));
      return (ranks->size() - 1) * ((slice + kLine - 1) / kLine * kLine);
    };
    const auto numel = group.layout().slice_numel, reduced = numel + further_uses(group);
    auto& [gather, reduction] = largest_[ranks.get()];
    gather = std::max(gather, staged(numel, group.dtypes().wire));
    reduction = std::max(reduction, staged(reduced, policy.mixed_precision.reduce_dtype));
    const auto size = size_of(policy.mixed_precision.reduce_dtype.value_or(dtype));
    replicas_ = std::max(replicas_, of_sum(reduced * size, group.ranks().num_replicas()));
  }
  /// The same of an all-reduce of `numbers` over `ranks` ranks.
  void add_sum(std::int64_t numbers, std::int64_t ranks) {
    sum_ = std::max(sum_, of_sum(numbers * 8, ranks));
  }
  std::int64_t total() const {
    std::int64_t bytes = sum_ + replicas_;
    for (const auto& [ranks, largest] : largest_) bytes += largest.first + largest.second;
    return bytes;
  }

 private:
  static constexpr std::int64_t kLine = 64;  // of the cache

  static std::int64_t of_sum(std::int64_t bytes, std::int64_t ranks) {
    return (ranks - 1) * (bytes / ranks + 2 * kLine);
  }

  std::map<const ProcessGroup*, std::pair<std::int64_t, std::int64_t>> largest_;
  std::int64_t sum_ = 0, replicas_ = 0;  // all-reduces of numbers, and of gradients
};

using Field = std::int64_t GroupBytes::*;

/// The largest sum over any `count` successive groups.
std::int64_t largest_run(const std::vector<GroupBytes>& groups, std::int64_t count, Field field) {
  std::int64_t largest = 0;
  for (std::size_t begin = 0; begin < groups.size(); ++begin) {
    std::int64_t sum = 0;
    const auto end = std::min(std::ssize(groups), static_cast<std::int64_t>(begin) + count);
    for (auto i = begin; i < static_cast<std::size_t>(end); ++i) sum += groups[i].*field;
    largest = std::max(largest, sum);
  }
  return largest;
}

std::int64_t sum_of(const std::vector<GroupBytes>& groups, Field field) {
  return largest_run(groups, std::ssize(groups), field);
}

// The root's gradients are made first and freed last. A layer's gradients are made while the
// reduction of the layer after it still reads that layer's gradients. Between micro-batches all
// gradients are kept whole, with one partial per bit set in the number of micro-batches so far,
// until the last backward reduces them.
std::int64_t backward_bound(const std::vector<GroupBytes>& layers, const GroupBytes& root,
                            std::int64_t each) {
  const auto bits_of = [](std::int64_t n) { return std::popcount(static_cast<std::uint64_t>(n)); };
  const std::int64_t most_bits = std::bit_width(static_cast<std::uint64_t>(each)) - 1;
  const std::int64_t kept_at_last = bits_of(each - 1);
  const auto whole = [&](const GroupBytes& group) {
    return group.gradients + kept_at_last * group.kept;
  };
  std::int64_t kept = sum_of(layers, &GroupBytes::kept) + root.kept;
  std::int64_t bound =
      most_bits * kept + root.gradients + largest_run(layers, 1, &GroupBytes::gradients);
  std::int64_t reduced = 0, in_flight = 0;
  kept -= root.kept;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    kept -= layer->kept;
    bound = std::max(bound, whole(root) + kept_at_last * kept + whole(*layer) + reduced +
                                std::max(in_flight, layer->reduced));
    reduced += layer->reduced;
    in_flight = layer->in_place;
  }
  bound = std::max(bound, whole(root) + reduced + std::max(in_flight, root.reduced));
  // Then each group's sums are widened, one group after the other.
  const auto shards = sum_of(layers, &GroupBytes::reduced_shard) + root.reduced_shard;
  return std::max(bound,
                  shards + std::max(root.reduced, largest_run(layers, 1, &GroupBytes::reduced)));
}

}  // namespace

std::int64_t RankMemory::total() const {
  return parameters + optimizer + checkpoint + gathered + backward + communication;
}

RankMemory rank_memory(const TrainConfig& options) {
  const MetaGuard no_bytes;
  models::CausalLM model(options.model_config());
  return rank_memory(options, model);
}

RankMemory rank_memory(const TrainConfig& options, models::CausalLM& model) {
  const MetaGuard no_bytes;
  const auto policy = options.policy();
  const auto ranks = std::make_shared<AbsentRanks>(options.parallel.world_size);
  const auto dims = options.parallel_dims();
  const auto meshes = make_meshes(ranks, dims);
  auto& state = shard_model(model, meshes, policy,
                            {.sequence_parallel = options.parallel.sequence_parallel,
                             .token_parts = options.parallel.token_parts});
  const auto optimizer = make_optimizer(model, options.optim);

  RankMemory memory;
  for (const auto& [name, tensor] : optimizer->state_dict()) {
    memory.optimizer += bytes_of(tensor);
  }
  std::int64_t values = 0;
  for (const auto& [name, tensor] : model.state_dict()) values += bytes_of(tensor);
  if (!options.checkpoint.dir.empty()) memory.checkpoint = values + memory.optimizer;

  // Note [Who runs which micro-batch]
  const auto each = (options.data.micro_batches - 1) / dims.token_ranks() + 1;
  const bool keeps = fsdp::accumulation_on(dims) == fsdp::Accumulation::kKeepUntilLast;
  StagedBytes staged;
  const auto of_state = [&](const fsdp::State& of) {
    GroupBytes bytes;
    for (const auto& group : of.groups()) {
      memory.parameters += group->sharded_bytes();
      staged.add(*group, policy);
      auto own = bytes_of(*group, policy, keeps && each > 1, dims.ep);
      if (group->ranks() != state.ranks()) std::swap(own.input, own.expert_input);
      bytes = bytes + own;
    }
    return bytes;
  };
  const auto root = of_state(state);
  std::vector<GroupBytes> layers;
  for (const auto& [name, buffer] : model.named_buffers()) memory.parameters += bytes_of(buffer);
  for (auto& layer : model.layers()) layers.push_back(of_state(*layer.extension<fsdp::State>()));
  auto groups = layers;
  groups.push_back(root);
  memory.gradients = sum_of(groups, &GroupBytes::reduced_shard);

  // Forward gathers --prefetch groups ahead, backward one. The root stays gathered.
  const std::int64_t ahead = std::max(options.parallel.prefetch, 1);
  const auto in_use =
      options.memory.reshard_after_forward == false ? std::ssize(layers) : 1 + ahead;
  memory.gathered = root.gathered + largest_run(layers, in_use, &GroupBytes::gathered);

  memory.backward = backward_bound(layers, root, keeps ? each : 1);
  // Note [Sums that grad() shows]: the partials of the sum so far, and the sum.
  if (!keeps && each > 1) {
    memory.backward += std::bit_width(static_cast<std::uint64_t>(each)) * memory.gradients;
  }
  memory.communication = std::max(root.wire, largest_run(layers, ahead, &GroupBytes::wire)) +
                         largest_run(groups, 1, &GroupBytes::input) +
                         largest_run(groups, 1, &GroupBytes::expert_input);
  if (mpi_environment()) {
    // The sums of losses, one for each micro-batch, and of a layer's tokens per expert.
    staged.add_sum(std::max(options.data.micro_batches, options.model_config().num_experts),
                   options.parallel.world_size);
    memory.communication += staged.total();
  }
  return memory;
}

}  // namespace moegrad::training
