// SPDX-License-Identifier: Apache-2.0
#include "fsdp/param_group.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "framework/distributed/shard_runs.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "fsdp/flat_layout.h"
#include "fsdp/gradient_reducer.h"
#include "ops/kernels/bf16/kernels.h"

namespace moegrad::fsdp {
namespace {

// One 16x16 block of bfloat16. linear_only_shard aligns parameters to it.
constexpr std::int64_t kFractalBytes = 512;

std::int64_t checked_dim(const PlacedSlot& placed, int num_shards) {
  const auto& tensor = *placed.slot.tensor;
  check<ShapeError>(tensor.ndim() >= 1, "fully_shard: parameter '", placed.slot.name,
                    "' is a scalar; give it a dimension to shard");
  const auto dim = placed.dim < 0 ? placed.dim + tensor.ndim() : placed.dim;
  check<ShapeError>(0 <= dim && dim < tensor.ndim(), "fully_shard: parameter '", placed.slot.name,
                    "' ", tensor.shape(), " has no dimension ", placed.dim, " to shard");
  check<ShapeError>(dim == 0 || tensor.dim(dim) % num_shards == 0, "fully_shard: dimension ", dim,
                    " of parameter '", placed.slot.name, "' ", tensor.shape(),
                    " must divide by the ", num_shards, " ranks; only dimension 0 may be uneven");
  return dim;
}

bool is_gathered_as_nz(const nn::ParameterLayout& layout, Layout weights, Dtype dtype) {
  return weights == Layout::kNZ && (layout.stacked.ndim() > 0 || dtype == Dtype::kBFloat16);
}

// Makes the tensor without bytes. The first unshard allocates them.
Tensor empty_unsharded(const Shape& shape, const nn::ParameterLayout& layout, Layout weights,
                       Dtype dtype) {
  const MetaGuard no_bytes;
  if (!is_gathered_as_nz(layout, weights, dtype)) return Tensor::empty(shape, dtype);
  // The experts and columns that an outer placement has left.
  const auto rows = layout.stacked.ndim() > 0 ? layout.stacked[1] : shape[0];
  return Tensor::empty_nz(shape, {shape[0] / rows, rows, shape[1]}, dtype);
}

}  // namespace

GatheredDtypes gathered_dtypes(const MixedPrecisionPolicy& mixed, Dtype parameters,
                               bool for_products) {
  const bool narrow = mixed.param_dtype == Dtype::kBFloat16;
  check<DtypeError>(!narrow || parameters == Dtype::kFloat32,
                    "fully_shard: param_dtype bfloat16 needs float32 parameters, got ", parameters);
  if (narrow && !for_products) return {.wire = parameters, .compute = parameters};
  const auto compute = mixed.param_dtype.value_or(parameters);
  const auto wire = mixed.wire_dtype.value_or(compute);
  const auto wide = narrow ? parameters : compute;
  check<DtypeError>(wire == wide || wire == Dtype::kBFloat16,
                    "fully_shard: wire_dtype must be bfloat16 or ", wide,
                    " where parameters are computed with in ", compute, ", got ", wire);
  return {.wire = wire, .compute = compute};
}

ParamGroup::ParamGroup(const std::vector<PlacedSlot>& slots, GroupRanks ranks, const Policy& policy,
                       GatheredDtypes dtypes, std::string name)
    : ranks_(std::move(ranks)),
      own_name_(std::move(name)),
      name_(own_name_),
      dtypes_(dtypes),
      gathered_layout_(policy.gathered_layout),
      copy_out_(policy.copy_out) {
  dtype_ = slots.front().slot.tensor->dtype();
  const auto& mixed = policy.mixed_precision;
  collect_params(slots);
  const auto alignment = policy.linear_only_shard ? kFractalBytes / size_of(dtypes_.wire) : 1;
  std::vector<FlatParam> flat;
  for (const auto& param : params_) flat.push_back({param.unsharded.shape(), param.dim});
  layout_ = make_flat_layout(flat, ranks_.num_shards(), alignment);
  shard_parameters();
  reducer_ = std::make_unique<GradientReducer>(params_, ranks_, mixed.reduce_dtype,
                                               [this](Event event) { notify(event); });
}

ParamGroup::~ParamGroup() = default;

void ParamGroup::collect_params(const std::vector<PlacedSlot>& slots) {
  for (const auto& placed : slots) {
    const auto& [slot, dim] = placed;
    const auto& tensor = *slot.tensor;
    const auto tied = std::ranges::find_if(
        params_, [&](const ShardedParam& param) { return param.unsharded.is(tensor); });
    if (tied != params_.end()) {
      tied->slots.push_back(slot.tensor);
      tied->kept.push_back(slot.kept);
      continue;
    }
    ShardedParam param;
    param.dim = checked_dim(placed, ranks_.num_shards());
    check<LayoutError>(tensor.is_contiguous(), "fully_shard: parameter '", slot.name,
                       "' must be contiguous");
    const bool nz = is_gathered_as_nz(slot.layout, gathered_layout_, dtypes_.compute);
    const auto stacked = slot.layout.stacked.ndim();
    check<ShapeError>(!nz || ((stacked == 3 || stacked == 0) && tensor.ndim() == 2),
                      "fully_shard: parameter '", slot.name,
                      "' to be gathered as FRACTAL_NZ must be a matrix of stacked ones, got ",
                      tensor.shape(), " for stacked ", slot.layout.stacked);
    param.name = slot.name;
    param.slots.push_back(slot.tensor);
    param.kept.push_back(slot.kept);
    param.layout = slot.layout;
    param.unsharded = tensor;  // the original, until shard_parameters replaces it
    params_.push_back(std::move(param));
    if (nz) ++nz_params_;
  }
}

void ParamGroup::shard_parameters() {
  const MemoryTagGuard tag(MemoryTag::kParameters);
  const bool meta = params_.front().unsharded.is_meta();
  for (const auto& param : params_) {
    check(param.unsharded.is_meta() == meta, "fully_shard: parameter '", param.name,
          meta ? "' has bytes" : "' is on the meta device", ", and others of its group ",
          meta ? "are on the meta device" : "have bytes");
  }
  const int rank = ranks_.shard ? ranks_.shard->rank() : 0;
  {
    const MetaGuard guard(meta);
    shard_ = Tensor::zeros({layout_.slice_numel}, dtype_);
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    auto& param = params_[i];
    const Tensor original = param.unsharded.detach();
    const auto& outer = original.shard_spec();
    auto spec = outer != nullptr ? *outer : whole_spec(original.shape());
    spec = divided(std::move(spec), ranks_.shard, param.dim);
    if (ranks_.num_replicas() > 1) spec = replicated(std::move(spec), ranks_.replicas);
    spec.gathered_for_use = true;
    const auto range = shard_range(original.dim(param.dim), ranks_.num_shards(), rank);
    const Tensor part = Tensor::narrow(original, param.dim, range.begin, range.size());
    param.sharded = flat_view(shard_, layout_.entries[i].offset, part.shape());
    if (!meta) copy_(param.sharded, part);
    if (!meta && ranks_.num_shards() * ranks_.num_replicas() > 1) {
      checksums_.push_back(crc32c(original.bytes()));
    }
    const bool trainable = param.unsharded.requires_grad();
    param.sharded.set_requires_grad(trainable);
    param.sharded.set_shard_spec(std::make_shared<const ShardSpec>(std::move(spec)));
    param.unsharded =
        empty_unsharded(original.shape(), param.layout, gathered_layout_, dtypes_.compute);
    param.unsharded.storage().release();  // so it differs from a tensor on the meta device
    param.unsharded.set_requires_grad(trainable);
    param.trainable = trainable;
  }
  initial_version_ = shard_.storage().version();
}

void ParamGroup::take_slots() {
  for (const auto& param : params_) {
    // Marks the original tensor: an optimizer, or a tied copy in another group, might hold it.
    param.slots.front()->set_shard_spec(param.sharded.shard_spec());
    set_mark(*param.slots.front(), kReplaced);
    for (auto* slot : param.slots) *slot = param.sharded;
    for (const auto& kept : param.kept) *kept = param.sharded;
  }
}

std::vector<std::uint32_t> ParamGroup::initial_checksums() const {
  if (shard_.storage().version() != initial_version_) return {};
  return checksums_;
}

void ParamGroup::set_names(const std::string& path, const std::vector<nn::ParameterSlot>& slots) {
  name_ = path.empty() || own_name_.empty() ? path + own_name_ : path + "." + own_name_;
  for (auto& param : params_) {
    const auto slot = std::ranges::find(slots, param.slots.front(), &nn::ParameterSlot::tensor);
    if (slot != slots.end()) param.name = slot->name;
    param.unsharded.storage().set_name(param.name);
  }
}

std::int64_t ParamGroup::unsharded_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& param : params_) bytes += param.unsharded.storage().bytes();
  return bytes;
}

void ParamGroup::notify(Event event) const {
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, std::string(to_string(event)) + " " + (name_.empty() ? "(root)" : name_));
  }
  if (observer_) observer_->on_event(event, name_);
}

bool ParamGroup::is_stale() const {
  return state_ != State::kSharded && shard_.storage().version() != gathered_version_;
}

// A parameter whose gathered values have been written to; null if there is none.
const ShardedParam* ParamGroup::find_written() const {
  if (state_ != State::kUnsharded) return nullptr;
  const auto found = std::ranges::find_if(params_, [](const ShardedParam& param) {
    return param.unsharded.storage().version() != param.filled_version;
  });
  return found == params_.end() ? nullptr : &*found;
}

// requires_grad may have been set on either form. The form that changed since both agreed counts.
void ParamGroup::agree_on_requires_grad() {
  for (auto& param : params_) {
    const bool changed = param.sharded.requires_grad() != param.trainable ||
                         param.unsharded.requires_grad() != param.trainable;
    if (changed) param.trainable = !param.trainable;
    param.sharded.set_requires_grad(param.trainable);
    param.unsharded.set_requires_grad(param.trainable);
  }
}

void ParamGroup::unshard(Event event, GatheredFor use) {
  ++requests_;
  const bool again = is_stale();
  if (again || find_written() != nullptr) reshard();
  agree_on_requires_grad();
  if (state_ != State::kSharded) return;
  notify(event);
  try {
    const std::string shown = name_.empty() ? "(root)" : name_;
    start_gather(again ? shown + " again, request " + std::to_string(requests_) : shown, use);
  } catch (...) {
    release_unsharded();
    throw;
  }
  state_ = State::kGathering;
}

// If the shards have changed, the gathered values differ from those that backward has saved. Raises
// the versions, so that backward's check notices.
void ParamGroup::note_version() {
  const auto version = shard_.storage().version();
  const bool newer = gathered_version_ && *gathered_version_ != version;
  gathered_version_ = version;
  for (auto& param : params_) {
    auto& storage = param.unsharded.storage();
    if (newer) storage.bump_version();
    param.filled_version = storage.version();
  }
}

void ParamGroup::start_gather(const std::string& label, GatheredFor use) {
  note_version();
  auto& counters = RankContext::current().counters();
  counters.nz_copy_outs += nz_params_;
  counters.copied_out_bytes += unsharded_bytes();
  const auto pair_order = kernels::bf16::loops_of(RankContext::current_kernels()).order;
  std::vector<CopyOutTarget> targets;
  for (auto& param : params_) {
    auto& storage = param.unsharded.storage();
    storage.refill();
    // The forward of a weight [in, out] reads it, that of one [out, in] its transpose; backward the
    // other.
    const bool transposed = param.layout.in_first == (use == GatheredFor::kBackward);
    storage.set_nz_pairs({.order = pair_order, .transposed = transposed});
    targets.push_back({storage.data(), param.unsharded.layout(), param.unsharded.nz_blocks(),
                       storage.nz_pairs()});
  }
  if (dtypes_.wire != dtype_) {
    const MemoryTagGuard tag(MemoryTag::kCommunication);
    wire_ = to_dtype(shard_, dtypes_.wire);
  } else {
    wire_ = shard_;
  }
  const auto consume = [this, targets = std::move(targets)](PeerSpans slices) {
    copy_out_->run(layout_, slices, dtypes_.wire, dtypes_.compute, targets);
  };
  if (ranks_.num_shards() == 1) {
    const std::array slices = {wire_.bytes()};
    consume(slices);
  } else {
    notify(Event::kGather);
    gather_ = ranks_.shard->all_gather(wire_.bytes(), dtypes_.wire, consume,
                                       {.queue = CollectiveQueue::kGather, .label = label});
  }
}

void ParamGroup::finish_gather() {
  try {
    if (gather_) std::exchange(gather_, nullptr)->wait();
  } catch (...) {
    release_unsharded();
    throw;
  }
  wire_ = Tensor();
}

void ParamGroup::wait_for_unshard() {
  if (is_stale()) unshard();
  if (state_ == State::kUnsharded) return;
  check(state_ == State::kGathering, "fully_shard: wait_for_unshard of '", name_,
        "' without unshard");
  finish_gather();
  agree_on_requires_grad();
  for (auto& param : params_) {
    for (auto* slot : param.slots) *slot = param.unsharded;
  }
  state_ = State::kUnsharded;
}

void ParamGroup::reshard() {
  const auto* written = find_written();
  abandon_unsharded();
  check(written == nullptr, "fully_shard: the gathered values of '",
        written == nullptr ? "" : written->name,
        "' must not be written to, because they are a copy; write to the shard that "
        "named_parameters() gives");
}

void ParamGroup::reshard_if_stale() {
  if (is_stale()) reshard();
}

void ParamGroup::abandon_unsharded() {
  if (state_ == State::kSharded) return;
  notify(Event::kReshard);
  if (const auto gather = std::exchange(gather_, nullptr)) gather->abandon();
  agree_on_requires_grad();
  for (auto& param : params_) {
    for (auto* slot : param.slots) *slot = param.sharded;
  }
  release_unsharded();
}

// Afterwards the group is sharded, whether the gather succeeded or not.
void ParamGroup::release_unsharded() {
  wire_ = Tensor();
  for (auto& param : params_) param.unsharded.storage().release();
  state_ = State::kSharded;
}

void ParamGroup::zero_grad() {
  for (const auto& param : params_) param.sharded.set_grad(Tensor());
}

void ParamGroup::to_empty() {
  shard_.storage().refill();
  std::ranges::fill(shard_.mutable_bytes(), std::byte{0});
}

}  // namespace moegrad::fsdp
