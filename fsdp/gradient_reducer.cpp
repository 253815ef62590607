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
    arrivals_.add(unsharded_, std::move(grad), place, sums.front().front());
  }

  void complete() override {
    auto arrived = arrivals_.complete(unsharded_);
    if (sums.size() < arrived.size()) sums.resize(arrived.size());
    for (std::size_t use = 0; use < arrived.size(); ++use) {
      auto& own = sums[use];
      if (own.size() < arrived[use].size()) own.resize(arrived[use].size());
      for (std::size_t j = 0; j < arrived[use].size(); ++j) {
        if (arrived[use][j].defined()) accumulate_gradient(own[j], std::move(arrived[use][j]));
      }
    }
    if (reducer_.on_arrival_) reducer_.on_arrival_();
  }

  bool has_gradient() const {
    return std::ranges::any_of(
        sums, [](const auto& of_use) { return std::ranges::any_of(of_use, &Tensor::defined); });
  }

  TensorList take(std::size_t j) {
    TensorList uses;
    for (auto& own : sums) {
      uses.push_back(j < own.size() ? std::exchange(own[j], Tensor()) : Tensor());
    }
    return uses;
  }

  void forget() {
    sums = nothing();
    arrivals_ = GradientArrivals(reducer_.reduce_dtype_);
  }

  std::vector<TensorList> sums = nothing();  // [uses][micro-batches]
  bool over_sources = false;                 // in some backward
  bool dropped = false;                      // the gradient of the shard, since the last check

 private:
  static std::vector<TensorList> nothing() { return {TensorList(1)}; }

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
  return reduce_dtype_.value_or(arithmetic_dtype(params_.front().unsharded.dtype()));
}

void GradientReducer::drop_cleared() {
  if (std::ranges::all_of(arrivals_, [](const auto& arrival) { return arrival->dropped; })) {
    // The next micro-batch is the first one again.
    kept_.take();
    for (auto& sum : scattered_) sum = UseSums();
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!std::exchange(arrivals_[i]->dropped, false)) continue;
    kept_.drop(i);
    scattered_[i].drop();
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

bool GradientReducer::has_gradient(std::size_t i) const { return arrivals_[i]->has_gradient(); }

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
  for (std::size_t j = 0; j < micro_batches; ++j) kept_.push_uses(take_arrived(j));
}

// What the last backward has brought for micro-batch j.
GradientReducer::Terms GradientReducer::take_arrived(std::size_t j) {
  Terms gradients;
  for (auto& arrival : arrivals_) gradients.push_back(arrival->take(j));
  return gradients;
}

// The gradients of the last backward plus the kept ones, in the dtype of the tree: the parameter's
// dtype may be narrower than reduce_dtype.
GradientReducer::Terms GradientReducer::take_gradients() {
  if (!has_kept() && backward_micro_batches() <= 1) return take_arrived(0);
  push_gradients();
  return kept_.take_uses();
}

// With zero_fill all ranks take all uses, so that they agree on what they reduce.
std::vector<GradientReducer::Part> GradientReducer::parts_to_reduce(const Terms& gradients,
                                                                    bool zero_fill) const {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto& own = gradients[i];
    const auto filled = zero_fill && params_[i].unsharded.requires_grad() ? params_[i].uses() : 0;
    for (std::size_t use = 0; use < std::max(filled, own.size()); ++use) {
      if (use < filled || own[use].defined()) parts.push_back({i, use});
    }
  }
  return parts;
}

// The label is part of a call's fingerprint, because ranks must agree on which parameters they
// reduce. It names the group and, by their names within it, the parameters that are left out and
// the further uses that are not.
CollectiveOptions GradientReducer::call_of(CollectiveQueue queue, const InFlight& reduction) const {
  const auto& group = reduction.name;
  std::string label = group.empty() ? "(root)" : group, further;
  const auto name_of = [&](std::size_t i) {
    const auto& name = params_[i].name;
    const bool below = !group.empty() && name.starts_with(group + '.');
    return below ? name.substr(group.size() + 1) : name;
  };
  std::vector<bool> has(params_.size());
  for (const auto& [param, use] : reduction.parts) {
    if (use == 0) {
      has[param] = true;
    } else {
      further += (further.empty() ? " with use " : ", use ") + std::to_string(use) + " of " +
                 name_of(param);
    }
  }
  bool first = true;
  for (std::size_t i = 0; i < has.size(); ++i) {
    if (has[i]) continue;
    label += (first ? " without " : ", ") + name_of(i);
    first = false;
  }
  return {.queue = queue, .label = label + further, .round = reduction.round};
}

void GradientReducer::start(bool all_reduce, bool zero_fill, const std::string& name,
                            std::int64_t round, const std::function<void()>& make_room) {
  finish();
  drop_cleared();
  if (const auto* const param = with_summed_sources()) {
    check<DtypeError>(size_of(dtype()) <= size_of(arithmetic_dtype(param->unsharded.dtype())),
                      "fully_shard: the gradient of '", param->name,
                      "' is already a sum over the ranks that share the experts, rounded to ",
                      arithmetic_dtype(param->unsharded.dtype()),
                      ", so reduce_dtype must not be wider, got ", dtype());
  }
  auto gradients = take_gradients();
  InFlight reduction;
  reduction.parts = parts_to_reduce(gradients, zero_fill);
  const bool none = reduction.parts.empty();
  if (none && !(all_reduce && scattered_.front().size() > 0)) return;
  if (!none && make_room) make_room();
  std::vector<FlatParam> present;
  TensorList terms;
  for (const auto& [i, use] : reduction.parts) {
    present.push_back({params_[i].unsharded.shape(), params_[i].dim});
    auto& own = gradients[i];
    terms.push_back(use < own.size() ? std::exchange(own[use], Tensor()) : Tensor());
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
        call_of(CollectiveQueue::kReduce, reduction));
  }
  in_flight_ = std::move(reduction);
}

// The parts of the scattered buffer that belong to each parameter's shard.
GradientReducer::Terms GradientReducer::terms_of(const InFlight& reduction) const {
  Terms terms(params_.size());
  for (std::size_t part = 0; part < reduction.parts.size(); ++part) {
    const auto [i, use] = reduction.parts[part];
    terms[i].resize(use + 1);
    terms[i][use] = flat_view(reduction.output, reduction.layout.entries[part].offset,
                              params_[i].sharded.shape());
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
                                  call_of(CollectiveQueue::kAllReduce, reduction));
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
  reduction.parts.clear();
  for (std::size_t i = 0; i < params_.size(); ++i) {
    TensorList uses = scattered_[i].take();
    for (std::size_t use = 0; use < uses.size(); ++use) {
      if (!uses[use].defined()) continue;
      reduction.parts.push_back({i, use});
      present.push_back({uses[use].shape(), 0});
      sums.push_back(std::exchange(uses[use], Tensor()));
    }
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
  auto terms = terms_of(reduction);
  std::vector<bool> has;
  for (const auto& uses : terms) has.push_back(!uses.empty());
  sums_.add_uses(std::move(terms));
  // No backward reaches the shards themselves, so their hooks run here.
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (has[i]) run_post_accumulate_hooks(params_[i].sharded);
  }
}

void GradientReducer::discard() {
  if (in_flight_ && in_flight_->work) in_flight_->work->abandon();
  in_flight_.reset();
  for (auto& sum : scattered_) sum = UseSums();
  for (auto& arrival : arrivals_) arrival->forget();
  kept_.take();
}

}  // namespace moegrad::fsdp
