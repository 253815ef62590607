// SPDX-License-Identifier: Apache-2.0
#include "fsdp/param_group.h"

#include <algorithm>
#include <array>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"

namespace moegrad::fsdp {
namespace {

// One 16x16 block of bfloat16: what linear_only_shard aligns parameters to.
constexpr std::int64_t kFractalBytes = 512;

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.storage().data(), static_cast<std::size_t>(tensor.storage().bytes())};
}

std::span<std::byte> writable_bytes_of(Tensor& tensor) {
  return {tensor.storage().data(), static_cast<std::size_t>(tensor.storage().bytes())};
}

// Elements [offset, offset + n) of a flat tensor.
Tensor flat_view(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return Tensor::as_strided(flat, shape, row_major_strides(shape), offset);
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

void log_event(std::string_view event, const std::string& group) {
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, std::string(event) + " " + (group.empty() ? "(root)" : group));
  }
}

}  // namespace

ParamGroup::ParamGroup(const std::vector<nn::ParameterSlot>& slots,
                       std::shared_ptr<ProcessGroup> group, const Policy& policy)
    : group_(std::move(group)), mixed_precision_(policy.mixed_precision) {
  const int rank = group_ ? group_->rank() : 0;
  dtype_ = slots.front().tensor->dtype();
  std::vector<Shape> shapes;
  for (const auto& slot : slots) {
    const auto& tensor = *slot.tensor;
    const auto tied = std::ranges::find_if(
        params_, [&](const ShardedParam& param) { return param.unsharded.is(tensor); });
    if (tied != params_.end()) {
      tied->slots.push_back(slot.tensor);
      continue;
    }
    check<ShapeError>(tensor.ndim() >= 1, "fully_shard: parameter '", slot.name,
                      "' is a scalar; give it a dimension to shard");
    check<LayoutError>(tensor.is_contiguous(), "fully_shard: parameter '", slot.name,
                       "' must be contiguous");
    check<DtypeError>(tensor.dtype() == dtype_, "fully_shard: one group needs one dtype, got ",
                      dtype_, " and ", tensor.dtype(), " of '", slot.name, "'");
    ShardedParam param;
    param.name = slot.name;
    param.slots.push_back(slot.tensor);
    param.layout = slot.layout;
    param.unsharded = tensor;  // the original, until shard_parameters replaces it
    params_.push_back(std::move(param));
    shapes.push_back(tensor.shape());
    if (slot.layout.gathered == Layout::kNZ) ++nz_params_;
  }
  const auto wire = mixed_precision_.param_dtype.value_or(dtype_);
  const auto alignment = policy.linear_only_shard ? kFractalBytes / size_of(wire) : 1;
  layout_ = make_flat_layout(shapes, group_ ? group_->size() : 1, alignment);
  copy_out_ = nz_params_ > 0 ? make_split_with_slice_to_nz() : make_plain_split();
  shard_parameters(rank);

  TensorList unsharded;
  for (const auto& param : params_) unsharded.push_back(param.unsharded);
  kept_gradients_ =
      std::make_unique<GradientTree>(std::move(unsharded), mixed_precision_.reduce_dtype);
}

void ParamGroup::shard_parameters(int rank) {
  const MemoryTagGuard tag(MemoryTag::kParameters);
  shard_ = Tensor::zeros({layout_.slice_numel}, dtype_);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    auto& param = params_[i];
    const auto& entry = layout_.entries[i];
    const Tensor original = param.unsharded.detach();
    const auto rows = shard_rows(entry.rows, world_size(), rank);
    param.sharded = flat_view(shard_, entry.offset, with_rows(original.shape(), rows.size()));
    copy_(param.sharded, flat_view(original, original.offset() + rows.begin * entry.row_numel,
                                   param.sharded.shape()));
    const bool trainable = param.unsharded.requires_grad();
    param.sharded.set_requires_grad(trainable);
    const auto spec = std::make_shared<const ShardSpec>(
        ShardSpec{original.shape(), rows.begin, rows.end, group_});
    param.sharded.set_shard_spec(spec);
    // Marks the original as taken, for a tied copy that another group might hold.
    param.unsharded.set_shard_spec(spec);
    param.unsharded = make_unsharded(original.shape(), param.layout);
    param.unsharded.set_requires_grad(trainable);
    for (auto* slot : param.slots) *slot = param.sharded;
  }
}

Tensor ParamGroup::make_unsharded(const Shape& shape, const nn::ParameterLayout& layout) const {
  Tensor tensor;
  if (layout.gathered == Layout::kNZ) {
    check(layout.stacked.ndim() == 3, "fully_shard: a FRACTAL_NZ parameter needs a stacked shape");
    tensor =
        Tensor::empty_nz(shape, {layout.stacked[0], layout.stacked[1], layout.stacked[2]}, dtype_);
  } else {
    tensor = Tensor::empty(shape, dtype_);
  }
  tensor.storage().release();
  return tensor;
}

void ParamGroup::set_name(const std::string& module_path) {
  name_ = module_path;
  for (auto& param : params_) {
    param.name = module_path.empty() ? param.name : module_path + "." + param.name;
    param.unsharded.storage().set_name(param.name);
  }
}

std::int64_t ParamGroup::unsharded_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& param : params_) bytes += param.unsharded.storage().bytes();
  return bytes;
}

void ParamGroup::unshard(std::string_view event) {
  if (state_ != State::kSharded) return;
  log_event(event, name_);
  auto& counters = RankContext::current().counters();
  counters.nz_copy_outs += nz_params_;
  std::vector<CopyOutTarget> targets;
  for (auto& param : params_) {
    auto& storage = param.unsharded.storage();
    storage.refill();
    targets.push_back({storage.data(), param.unsharded.layout(), param.unsharded.nz_blocks()});
  }
  const auto wire = mixed_precision_.param_dtype.value_or(dtype_);
  if (wire != dtype_) {
    const MemoryTagGuard tag(MemoryTag::kCommunication);
    wire_ = to_dtype(shard_, wire);
  } else {
    wire_ = shard_;
  }
  state_ = State::kGathering;
  const auto consume = [this, wire, targets = std::move(targets)](PeerSpans slices) {
    copy_out_->run(layout_, slices, wire, dtype_, targets);
  };
  if (world_size() == 1) {
    const std::array slices = {bytes_of(wire_)};
    consume(slices);
  } else {
    gather_ = group_->all_gather(bytes_of(wire_), wire, consume, {"gather", name_});
  }
}

void ParamGroup::wait_for_unshard() {
  if (state_ == State::kUnsharded) return;
  check(state_ == State::kGathering, "fully_shard: wait_for_unshard of '", name_,
        "' without unshard");
  if (gather_) std::exchange(gather_, nullptr)->wait();
  wire_ = Tensor();
  for (auto& param : params_) {
    for (auto* slot : param.slots) *slot = param.unsharded;
  }
  state_ = State::kUnsharded;
}

void ParamGroup::reshard() {
  if (state_ == State::kSharded) return;
  log_event("reshard", name_);
  if (gather_) std::exchange(gather_, nullptr)->wait();
  wire_ = Tensor();
  for (auto& param : params_) {
    for (auto* slot : param.slots) *slot = param.sharded;
    param.unsharded.storage().release();
  }
  state_ = State::kSharded;
}

void ParamGroup::accumulate_gradients() {
  kept_gradients_->push();
  has_kept_gradients_ = true;
}

// Cuts the gradients into the ranks' chunks, [world_size, slice], zero-padded, in the dtype that
// is reduced, freeing each as it goes.
Tensor ParamGroup::copy_in_gradients(const std::vector<bool>& has) {
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  const auto dtype = mixed_precision_.reduce_dtype.value_or(dtype_);
  const Shape shape = {world_size() * layout_.slice_numel};
  const bool gaps = layout_.has_padding() || std::ranges::find(has, false) != has.end();
  Tensor input = gaps ? Tensor::zeros(shape, dtype) : Tensor::empty(shape, dtype);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!has[i]) continue;
    const auto& entry = layout_.entries[i];
    const Tensor grad = params_[i].unsharded.grad();
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto rows = shard_rows(entry.rows, world_size(), rank);
      Tensor target = flat_view(input, rank * layout_.slice_numel + entry.offset,
                                {rows.size() * entry.row_numel});
      copy_(target, flat_view(grad, grad.offset() + rows.begin * entry.row_numel,
                              {rows.size() * entry.row_numel}));
    }
    params_[i].unsharded.set_grad(Tensor());
  }
  return input;
}

void ParamGroup::reduce_gradients() {
  if (has_kept_gradients_) {
    kept_gradients_->push();
    kept_gradients_->finish();
    has_kept_gradients_ = false;
  }
  std::vector<bool> has;
  std::string present;  // part of the call's fingerprint: ranks must agree on it
  for (const auto& param : params_) {
    has.push_back(param.unsharded.grad().defined());
    present += has.back() ? '1' : '0';
  }
  if (std::ranges::find(has, true) == has.end()) return;
  log_event("reduce", name_);
  Reduction reduction;
  reduction.has = std::move(has);
  reduction.input = copy_in_gradients(reduction.has);
  if (world_size() == 1) {
    reduction.output = reduction.input;
  } else {
    const MemoryTagGuard tag(MemoryTag::kGradients);
    const auto dtype = reduction.input.dtype();
    reduction.output = Tensor::empty({layout_.slice_numel}, dtype);
    reduction.work =
        group_->reduce_scatter(bytes_of(reduction.input), writable_bytes_of(reduction.output),
                               dtype, ReduceOp::kSum, {"reduce", name_ + " " + present});
  }
  reduction_ = std::move(reduction);
}

void ParamGroup::wait_for_reduce() {
  if (!reduction_) return;
  auto reduction = std::move(*reduction_);
  reduction_.reset();
  if (reduction.work) reduction.work->wait();
  reduction.input = Tensor();
  if (reduction.output.dtype() != dtype_) {
    const MemoryTagGuard tag(MemoryTag::kGradients);
    reduction.output = to_dtype(reduction.output, dtype_);
  }
  reduction.output.storage().retag(MemoryTag::kGradients);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!reduction.has[i]) continue;
    const auto& sharded = params_[i].sharded;
    Tensor grad = flat_view(reduction.output, layout_.entries[i].offset, sharded.shape());
    if (Tensor sum = sharded.grad(); sum.defined()) {
      add_(sum, grad);
    } else {
      sharded.set_grad(std::move(grad));
    }
  }
}

}  // namespace moegrad::fsdp
