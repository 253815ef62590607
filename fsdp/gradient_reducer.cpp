// SPDX-License-Identifier: Apache-2.0
#include "fsdp/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "framework/autograd/engine.h"
#include "framework/autograd/leaf_gradients.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"
#include "fsdp/flat_layout.h"

namespace moegrad::fsdp {
namespace {

TensorList unsharded_of(const std::vector<ShardedParam>& params) {
  TensorList tensors;
  for (const auto& param : params) tensors.push_back(param.unsharded);
  return tensors;
}

TensorList sharded_of(const std::vector<ShardedParam>& params) {
  TensorList tensors;
  for (const auto& param : params) tensors.push_back(param.sharded);
  return tensors;
}

// The label is part of a call's fingerprint, because ranks must agree on which parameters they
// reduce. It names the group and, by their names within it, the parameters that are left out.
CollectiveOptions call_of(CollectiveQueue queue, const std::string& group, std::int64_t round,
                          const std::vector<ShardedParam>& params, const std::vector<bool>& has) {
  std::string label = group.empty() ? "(root)" : group;
  bool first = true;
  for (std::size_t i = 0; i < has.size(); ++i) {
    if (has[i]) continue;
    const auto& name = params[i].name;
    const bool below = !group.empty() && name.starts_with(group + '.');
    label += (first ? " without " : ", ") + (below ? name.substr(group.size() + 1) : name);
    first = false;
  }
  return {.queue = queue, .label = std::move(label), .round = round};
}

// One flat tensor of terms that are not cut. Frees each term after copying it. Undefined terms
// count as zeros.
Tensor concatenate(const FlatLayout& layout, TensorList terms, Dtype dtype) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  const bool gaps = !std::ranges::all_of(terms, &Tensor::defined);
  const Shape shape = {layout.slice_numel};
  Tensor flat = gaps ? Tensor::zeros(shape, dtype) : Tensor::empty(shape, dtype);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const Tensor term = std::exchange(terms[i], Tensor());
    if (!term.defined()) continue;
    Tensor target = flat_view(flat, layout.entries[i].offset, term.shape());
    copy_(target, term);
  }
  return flat;
}

}  // namespace

class GradientReducer::Arrival final : public GradientAccumulator {
 public:
  Arrival(GradientReducer& reducer, const ShardedParam& param)
      : reducer_(reducer), unsharded_(param.unsharded), arrivals_(reducer.reduce_dtype_) {
    unsharded_.impl()->leaf_state().accumulator = this;
    on_drop_ = param.sharded.impl()->leaf_state().drop_hooks.add([this] { dropped = true; });
  }
  ~Arrival() override {
    unsharded_.impl()->leaf_state().accumulator = nullptr;
    on_drop_.remove();
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  void add(Tensor grad, const GradientPlace& place) override {
    over_sources |= place.sources > 1;
    arrivals_.add(unsharded_, std::move(grad), place, sums.front());
  }

  void complete() override {
    TensorList arrived = arrivals_.complete(unsharded_);
    if (sums.size() < arrived.size()) sums.resize(arrived.size());
    for (std::size_t j = 0; j < arrived.size(); ++j) {
      if (arrived[j].defined()) accumulate_gradient(sums[j], std::move(arrived[j]));
    }
    if (reducer_.on_arrival_) reducer_.on_arrival_();
  }

  void forget() {
    sums = TensorList(1);
    arrivals_ = GradientArrivals(reducer_.reduce_dtype_);
  }

  TensorList sums = TensorList(1);  // of the micro-batches
  bool over_sources = false;        // in some backward
  bool dropped = false;             // the gradient of the shard, since the last check

 private:
  GradientReducer& reducer_;
  Tensor unsharded_;
  GradientArrivals arrivals_;
  HookHandle on_drop_;
};

GradientReducer::GradientReducer(std::vector<ShardedParam>& params, GroupRanks ranks,
                                 std::optional<Dtype> reduce_dtype, Notify notify)
    : params_(params),
      ranks_(std::move(ranks)),
      reduce_dtype_(reduce_dtype),
      notify_(std::move(notify)),
      kept_(unsharded_of(params), reduce_dtype),
      scattered_(params.size()),
      sums_(sharded_of(params), dtype()) {
  for (const auto& param : params_) arrivals_.push_back(std::make_unique<Arrival>(*this, param));
}

GradientReducer::~GradientReducer() = default;

Dtype GradientReducer::dtype() const {
  return reduce_dtype_.value_or(params_.front().unsharded.dtype());
}

void GradientReducer::drop_cleared() {
  if (std::ranges::all_of(arrivals_, [](const auto& arrival) { return arrival->dropped; })) {
    // The next micro-batch is the first one again.
    kept_.take();
    for (auto& sum : scattered_) sum = TreeSum();
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!std::exchange(arrivals_[i]->dropped, false)) continue;
    kept_.drop(i);
    scattered_[i] = absent_terms(scattered_[i].size());
  }
}

TensorList GradientReducer::kept() {
  drop_cleared();
  return kept_.sums();
}

void GradientReducer::keep() {
  drop_cleared();
  push_gradients();
}

bool GradientReducer::has_gradient(std::size_t i) const {
  return std::ranges::any_of(arrivals_[i]->sums, &Tensor::defined);
}

bool GradientReducer::has_gradients() const {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (has_gradient(i)) return true;
  }
  return false;
}

const ShardedParam* GradientReducer::with_summed_sources() const {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (arrivals_[i]->over_sources && params_[i].unsharded.requires_grad()) return &params_[i];
  }
  return nullptr;
}

// One leaf for each micro-batch of the last backward.
void GradientReducer::push_gradients() {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    check(!has_gradient(i) || !arrivals_[i]->over_sources, "fully_shard: the gradient of '",
          params_[i].name,
          "' must be reduced after each micro-batch, because it is already the sum over the ranks "
          "that share the experts; call backward for one micro-batch at a time, with "
          "set_requires_gradient_sync on (under a StepPlan, Accumulation::kReduceEach or "
          "kScatterEach)");
  }
  const auto micro_batches = static_cast<std::size_t>(std::max(1, backward_micro_batches()));
  for (std::size_t j = 0; j < micro_batches; ++j) kept_.push(take_arrived(j));
}

// What the last backward has brought for micro-batch j.
TensorList GradientReducer::take_arrived(std::size_t j) {
  TensorList gradients;
  for (auto& arrival : arrivals_) {
    auto& sums = arrival->sums;
    gradients.push_back(j < sums.size() ? std::exchange(sums[j], Tensor()) : Tensor());
  }
  return gradients;
}

// The gradients of the last backward plus the kept ones, in the dtype of the tree: the parameter's
// dtype may be narrower than reduce_dtype.
TensorList GradientReducer::take_gradients() {
  if (!has_kept() && backward_micro_batches() <= 1) return take_arrived(0);
  push_gradients();
  return kept_.take();
}

std::vector<bool> GradientReducer::params_to_reduce(const TensorList& gradients,
                                                    bool zero_fill) const {
  std::vector<bool> has;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const bool fill = zero_fill && params_[i].unsharded.requires_grad();
    has.push_back(fill || gradients[i].defined());
  }
  return has;
}

void GradientReducer::start(bool all_reduce, bool zero_fill, const std::string& name,
                            std::int64_t round, const std::function<void()>& make_room) {
  finish();
  drop_cleared();
  if (const auto* const param = with_summed_sources()) {
    check<DtypeError>(
        size_of(dtype()) <= size_of(param->unsharded.dtype()), "fully_shard: the gradient of '",
        param->name, "' is already a sum over the ranks that share the experts, rounded to ",
        param->unsharded.dtype(), ", so reduce_dtype must not be wider, got ", dtype());
  }
  TensorList gradients = take_gradients();
  InFlight reduction;
  reduction.has = params_to_reduce(gradients, zero_fill);
  const bool none = std::ranges::find(reduction.has, true) == reduction.has.end();
  if (none && !(all_reduce && scattered_.front().size() > 0)) return;
  if (!none && make_room) make_room();
  std::vector<FlatParam> present;
  TensorList terms;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!reduction.has[i]) continue;
    present.push_back({params_[i].unsharded.shape(), params_[i].dim});
    terms.push_back(std::exchange(gradients[i], Tensor()));
  }
  reduction.layout = make_flat_layout(present, ranks_.num_shards(), 1);
  reduction.all_reduce = all_reduce;
  reduction.name = name;
  reduction.round = round;
  if (ranks_.num_shards() == 1 || none) {
    reduction.output = concatenate(reduction.layout, std::move(terms), dtype());
  } else {
    notify_(Event::kReduce);
    reduction.input = make_reduction_input(reduction.layout, present, std::move(terms), dtype());
    const MemoryTagGuard tag(MemoryTag::kGradients);
    reduction.output = Tensor::empty({reduction.layout.slice_numel}, dtype());
    reduction.work = ranks_.shard->reduce_scatter(
        reduction.input.parts, reduction.output.mutable_bytes(), dtype(), ReduceOp::kSum,
        call_of(CollectiveQueue::kReduce, name, round, params_, reduction.has));
  }
  in_flight_ = std::move(reduction);
}

// The part of the scattered buffer that belongs to each parameter's shard.
TensorList GradientReducer::terms_of(const InFlight& reduction) const {
  TensorList terms(params_.size());
  auto entry = reduction.layout.entries.begin();
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!reduction.has[i]) continue;
    terms[i] = flat_view(reduction.output, entry->offset, params_[i].sharded.shape());
    ++entry;
  }
  return terms;
}

void GradientReducer::finish_scatter() {
  if (!scattering()) return;
  auto& reduction = *in_flight_;
  try {
    if (reduction.work) std::exchange(reduction.work, nullptr)->wait();
  } catch (...) {
    in_flight_.reset();  // its output holds no sums
    throw;
  }
  reduction.scattering = false;
  reduction.input = {};
  if (ranks_.num_replicas() == 1) return;
  if (!reduction.all_reduce) {
    set_aside(reduction);
    in_flight_.reset();
    return;
  }
  if (scattered_.front().size() > 0) merge_scattered(reduction);
  notify_(Event::kAllReduce);
  reduction.work =
      ranks_.replicas->all_reduce(reduction.output.mutable_bytes(), dtype(), ReduceOp::kSum,
                                  call_of(CollectiveQueue::kAllReduce, reduction.name,
                                          reduction.round, params_, reduction.has));
}

void GradientReducer::set_aside(const InFlight& reduction) {
  auto terms = terms_of(reduction);
  for (std::size_t i = 0; i < terms.size(); ++i) scattered_[i].push(std::move(terms[i]));
}

// Adds the terms that were set aside. The sums go into a separate flat buffer.
void GradientReducer::merge_scattered(InFlight& reduction) {
  set_aside(reduction);
  TensorList sums;
  std::vector<FlatParam> present;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    Tensor sum = scattered_[i].take();
    reduction.has[i] = sum.defined();
    if (!sum.defined()) continue;
    present.push_back({sum.shape(), 0});
    sums.push_back(std::move(sum));
  }
  reduction.layout = make_flat_layout(present, 1, 1);
  reduction.output = concatenate(reduction.layout, std::move(sums), dtype());
}

void GradientReducer::finish() {
  finish_scatter();
  if (!in_flight_) return;
  auto reduction = std::move(*in_flight_);
  in_flight_.reset();
  if (reduction.work) reduction.work->wait();
  sums_.add(terms_of(reduction));
  // No backward reaches the shards themselves, so their hooks run here.
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (reduction.has[i]) run_post_accumulate_hooks(params_[i].sharded);
  }
}

void GradientReducer::discard() {
  if (in_flight_ && in_flight_->work) in_flight_->work->abandon();
  in_flight_.reset();
  for (auto& sum : scattered_) sum = TreeSum();
  for (auto& arrival : arrivals_) arrival->forget();
  kept_.take();
}

}  // namespace moegrad::fsdp
