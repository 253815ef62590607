// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/engine.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#include "framework/distributed/engine/memory_exchange.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/log.h"

namespace moegrad {
namespace {

// The call whose consumer this thread is running.
thread_local const EngineCall* inside_step = nullptr;

std::string file_in(const std::string& folder, int rank) {
  if (folder.empty()) return {};
  return folder + "/last_operations.rank" + std::to_string(rank) + ".txt";
}

std::shared_ptr<EngineGroup> world_of(int world_size, int rank) {
  auto world = std::make_shared<EngineGroup>();
  world->name = "world";
  world->rank = rank;
  world->ranks.resize(static_cast<std::size_t>(world_size));
  std::iota(world->ranks.begin(), world->ranks.end(), 0);
  return world;
}

}  // namespace

Engine::StepGuard::StepGuard(const EngineCall& call) : outer_(std::exchange(inside_step, &call)) {}
Engine::StepGuard::~StepGuard() { inside_step = outer_; }

Engine::Engine(std::shared_ptr<LaunchState> launch, int rank, std::unique_ptr<Transport> transport)
    : launch_(std::move(launch)),
      rank_(rank),
      world_(world_of(launch_->world_size, rank)),
      transport_(std::move(transport)),
      last_operations_(rank, file_in(options().last_operations_folder, rank),
                       /*is_process=*/!transport_->any_thread()),
      excuses_(rank, options().deadline),
      link_(options().link, rank, options().piece_bytes) {
  groups_.emplace(world_->id, world_);
  launch_->engines.push_back(this);
}

Engine::~Engine() {
  const std::lock_guard lock(launch_->mutex);
  std::erase(launch_->engines, this);
  lines_.clear();
}

// ---- The threads of the rank.

void Engine::post(const EngineGroup& group, const std::shared_ptr<EngineCall>& call) {
  EngineLock lock(launch_->mutex);
  fail_by_withdrawal();
  if (has_failed()) {
    carry_on(lock);
    const auto error = describe(*call) + ": " + launch_->failure_text();
    lock.unlock();
    if (transport_->any_thread()) launch_->report_failure();
    throw AbortedError(error);
  }
  check<CollectiveError>(!launch_->stopped, "group ", group.name, ": the launch has ended");
  const bool is_alone =
      group.ranks.size() == 1 && !is_point_to_point(call->op) && call->group_id == 0;
  if (!is_alone) line_of(call->line).reserve(*call);
  call->number = history_.add(*call);
  call->noted = last_operations_.add(*call);
  pending_.push_back(call);
  if (!call->fault.empty()) {
    fail(call->fault, *call);
    conclude(*call);
    carry_on(lock);
    lock.unlock();
    if (transport_->any_thread()) launch_->report_failure();
    throw CollectiveError(describe(*call) + ": " + call->fault);
  }
  if (is_alone) return execute_alone(lock, call);
  call->joins_at = CollectiveClock::now() + jitter(*call, 0);
  line_of(call->line).add(call);
  ++issued_[call->line];
  if (transport_->any_thread()) return carry_on(lock);
  lock.unlock();
  transport_->wake_own();
  std::this_thread::yield();  // see Note [Polling]
}

// A single rank needs no second thread. What a consumer posts has to wait for its own call.
void Engine::execute_alone(EngineLock& lock, const std::shared_ptr<EngineCall>& call) {
  if (inside_step != nullptr) {
    alone_later_.push_back(call);
    return;
  }
  set_state(*call, CallState::kRunning);
  call->met = CollectiveClock::now();
  MemorySide side;
  show(side, call, 0, 1);
  MemoryExchange exchange({&side}, 0, options().piece_bytes, [](std::size_t) {});
  const auto cpu_before = thread_cpu_time();
  {
    const StepGuard step(*call);
    while (!exchange.done() && exchange.thrown() == nullptr) {
      exchange.poll(lock, /*delivered=*/true, /*may_send=*/true);
    }
  }
  call->busy = thread_cpu_time() - cpu_before;
  call->ended = CollectiveClock::now();
  call->work = call->ended - call->met;
  if (exchange.thrown() != nullptr) fail_by_consumer(*call, exchange.thrown());
  conclude(*call);
  execute_later(lock);
  carry_on(lock);
}

void Engine::execute_later(EngineLock& lock) {
  for (const auto& later : std::exchange(alone_later_, {})) execute_alone(lock, later);
}

// Where any thread may: carries on, on all ranks of the process, what waits for what this thread
// has done, but for what takes time.
void Engine::carry_on(EngineLock& lock) {
  if (!transport_->any_thread()) {
    transport_->wake_own();
    return;
  }
  transport_->wake({&rank_, 1});
  launch_->carry_on(lock);
}

void Engine::wait(EngineCall& call) {
  // What the consumer holds, tensors perhaps, and memory ends here, on the rank's own thread and in
  // its own time, and outside the lock.
  GatherConsumer consumer;
  std::shared_ptr<const void> outgrown;
  EngineLock lock(launch_->mutex);
  if (inside_step != nullptr && !call.done) {
    throw CollectiveError(describe(call) +
                          ": a consumer cannot wait for a collective, it holds up the thread that "
                          "executes them");
  }
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
  outgrown.swap(call.outgrown);
  const bool failed = call.thrown != nullptr || !call.error.empty();
  lock.unlock();
  if (failed && transport_->any_thread()) launch_->report_failure();
}

bool Engine::test(const EngineCall& call) {
  const std::lock_guard lock(launch_->mutex);
  return call.done;
}

std::exception_ptr Engine::failure(const EngineCall& call) {
  const std::lock_guard lock(launch_->mutex);
  if (call.thrown != nullptr) return call.thrown;
  if (call.error.empty()) return nullptr;
  if (call.aborted) return std::make_exception_ptr(AbortedError(call.error));
  return std::make_exception_ptr(CollectiveError(call.error));
}

void Engine::release(EngineCall& call, bool unwinding) noexcept {
  GatherConsumer consumer;
  std::shared_ptr<const void> outgrown;
  EngineLock lock(launch_->mutex);
  const bool in_consumer = inside_step != nullptr;
  if (inside_step == &call) return;
  if (in_consumer && !unwinding && !call.done) fail_by_drop(call);
  const bool begun = call.state != CallState::kIssued && call.state != CallState::kJoined;
  const auto line = lines_.find(call.line);
  if ((unwinding || in_consumer) && !call.done && !begun && line != lines_.end() &&
      line->second->withdraw(call)) {
    set_state(call, CallState::kGivenUp);
    call.done = true;
    withdrawn_ = {.request = call, .number = call.number};
  }
  if (in_consumer && !call.done) fail_by_drop(call);
  if (in_consumer) end_in_consumer(lock, call);
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
  outgrown.swap(call.outgrown);
}

void Engine::body_ended() {
  EngineLock lock(launch_->mutex);
  fail_by_withdrawal();
  body_ended_ = true;
  carry_on(lock);
}

void Engine::set_state(EngineCall& call, CallState state) {
  call.state = state;
  last_operations_.set_state(call.noted, to_string(state));
}

CollectiveClock::duration Engine::jitter(const EngineCall& call, int draw) const {
  if (options().jitter.maximum.count() == 0) return {};
  return options().jitter.delay(rank_, where(call), 2 * call.sequence + draw);
}

void Engine::conclude(EngineCall& call) {
  if (call.state != CallState::kGivenUp) {
    const bool failed = call.thrown != nullptr || !call.error.empty();
    set_state(call, failed ? CallState::kFailed : CallState::kDone);
  }
  std::erase_if(pending_, [&](const auto& each) { return each.get() == &call; });
  call.done = true;
  call.finished.notify_all();
}

// ---- Groups.

std::shared_ptr<EngineGroup> Engine::make_group(const std::shared_ptr<EngineGroup>& parent,
                                                std::span<const int> members,
                                                const std::string& name) {
  check<CollectiveError>(inside_step == nullptr, "subgroup ", name,
                         ": a consumer cannot make a group, it ",
                         "holds up the thread that executes collectives");
  const std::lock_guard one_at_a_time(makes_group_);
  auto group = std::make_shared<EngineGroup>();
  group->name = name;
  std::ostringstream list;
  for (const int member : members) {
    list << (group->ranks.empty() ? "" : ", ") << member;
    group->ranks.push_back(parent->ranks[static_cast<std::size_t>(member)]);
  }
  group->rank = static_cast<int>(std::ranges::find(members, parent->rank) - members.begin());

  // The members meet first, so that a member that does not come, or makes another group, is an
  // error in time.
  CollectiveCall barrier;
  barrier.op = CollectiveOp::kBarrier;
  barrier.label = group->label = "subgroup of ranks {" + list.str() + "}";
  barrier.group = name;
  auto call = std::make_shared<EngineCall>(std::move(barrier));
  const auto text = name + list.str();
  call->line = {.group = parent->id,
                .tag = -1 - static_cast<int>(crc32c(std::as_bytes(std::span(text))) >> 2)};
  {
    const std::lock_guard lock(launch_->mutex);
    // Else ranks would make a group while their threads wait for each other's messages.
    const auto of_parent = [&](const auto& each) { return each->line.group == parent->id; };
    const auto pending = std::ranges::find_if(pending_, of_parent);
    check<CollectiveError>(pending == pending_.end() || transport_->makes_groups_any_time(),
                           "subgroup ", name, ": must be made while no ", "call of group ",
                           parent->name, " is pending, got ",
                           std::ranges::count_if(pending_, of_parent),
                           pending == pending_.end() ? "" : ", the oldest " + describe(**pending));
    // Unique, as each rank counts its own, and no two have the same number.
    call->group_id = ++groups_made_ * launch_->world_size + rank_;
    call->sequence = issued_[call->line];
    // After a failure post() throws, and the line of an earlier attempt may be left.
    if (!has_failed()) {
      open_line(*parent, call->line,
                {.world_ranks = group->ranks, .own = static_cast<std::size_t>(group->rank)});
    }
  }
  post(*parent, call);
  {
    EngineLock lock(launch_->mutex);
    if (!call->done) check_meeting(*call, group->ranks);
    if (has_failed()) carry_on(lock);
  }
  wait(*call);
  if (const auto thrown = failure(*call)) std::rethrow_exception(thrown);
  {
    const std::lock_guard lock(launch_->mutex);
    group->id = lines_.at(call->line)->proposed_group();
    std::erase(in_order_, lines_.at(call->line).get());
    lines_.erase(call->line);
  }
  transport_->make_group(*group, *parent, members);
  const std::lock_guard lock(launch_->mutex);
  groups_.emplace(group->id, group);
  return group;
}

// Members that are threads of this process and make another group are never seen on this one's
// line.
void Engine::check_meeting(const EngineCall& call, const std::vector<int>& ranks) {
  for (const auto* const other : launch_->engines) {
    if (other == this || std::ranges::find(ranks, other->rank_) == ranks.end()) continue;
    for (const auto& theirs : other->pending_) {
      const bool makes_another = theirs->group_id != 0 && theirs->line.group == call.line.group &&
                                 theirs->line.tag != call.line.tag;
      if (!makes_another || !other->lines_.at(theirs->line)->has(rank_)) continue;
      fail(rank_ < other->rank_ ? disagreement(rank_, named(call), other->rank_, named(*theirs))
                                : disagreement(other->rank_, named(*theirs), rank_, named(call)),
           call);
      return;
    }
  }
}

Slots Engine::slots_of(const EngineGroup& group, const LineKey& key) const {
  Slots slots;
  if (key.from < 0) {
    slots.world_ranks = group.ranks;
    slots.own = static_cast<std::size_t>(group.rank);
    return slots;
  }
  slots.world_ranks = {key.from, key.to};
  slots.own = static_cast<std::size_t>(key.side);
  return slots;
}

Line& Engine::line_of(const LineKey& key) {
  const auto found = lines_.find(key);
  if (found != lines_.end()) return *found->second;
  const auto& group = *groups_.at(key.group);
  return open_line(group, key, slots_of(group, key));
}

Line& Engine::open_line(const EngineGroup& group, const LineKey& key, Slots slots) {
  auto wire = transport_->open(group, key, slots);
  auto line = std::make_unique<Line>(*this, key, std::move(slots), std::move(wire));
  const auto behind =
      std::ranges::upper_bound(in_order_, line->priority(), std::greater(), &Line::priority);
  in_order_.insert(behind, line.get());
  return *(lines_[key] = std::move(line));
}

bool Engine::has_issued(const LineKey& key, std::int64_t sequence) const {
  const auto found = issued_.find(key);
  return found != issued_.end() && sequence < found->second;
}

// ---- The rank's own thread.

Engine::Activity Engine::poll(EngineLock& lock, bool works) {
  Activity activity;
  if (works) own_thread_ = std::this_thread::get_id();
  if (abandoned_) {
    conclude_all();
    return activity;
  }
  const bool has_heard = transport_->receive(
      [this](int from, std::span<const std::byte> message) { hear(from, message); });
  if (!has_failed()) poll_lines(lock, works, activity);
  if (works && !has_failed()) execute_later(lock);
  take_heard_failure(activity.progress);
  activity.progress = activity.progress || has_heard;
  if (has_failed()) {
    poll_failed(lock);
    activity.waits = activity.unwoken = !quiet_;
  } else {
    tell_end();
  }
  return activity;
}

// Lines of one priority take turns. Those of a lower one come when these have nothing to do.
void Engine::poll_lines(EngineLock& lock, bool works, Activity& activity) {
  Line::Turn turn = {.now = CollectiveClock::now(), .works = works};
  std::optional<int> sending;     // the highest priority of a payload that has more to send
  std::optional<int> progressed;  // that of a line that got further
  for (std::size_t i = 0; i < in_order_.size() && !has_failed(); ++i) {
    auto& line = *in_order_[i];
    if (line.empty()) continue;
    if (works && progressed && line.priority() < *progressed) break;
    turn.may_send = !sending || line.priority() >= *sending;
    bool got_further = false;
    while (line.poll(lock, turn)) {
      got_further = true;
      turn.now = CollectiveClock::now();
      if (has_failed() || line.empty() || (works && line.is_moving())) break;
    }
    if (!sending && line.has_more_to_send()) sending = line.priority();
    activity.waits = activity.waits || (!line.empty() && line.waits_for_messages());
    activity.unwoken = activity.unwoken || (!line.empty() && !line.will_be_woken());
    if (!got_further) continue;
    activity.progress = true;
    progressed = line.priority();
    // Others shall not wait until this thread has looked at its other lines.
    if (works && transport_->any_thread()) launch_->carry_on(lock);
  }
  activity.wake_at = turn.wake_at;
  activity.left_work = turn.left_work;
  if (!works) return;
  // A program may use any number of tags.
  std::erase_if(in_order_, [this](Line* line) {
    const auto key = line->key();
    if (key.from < 0 || !line->is_idle()) return false;
    lines_.erase(key);
    return true;
  });
}

}  // namespace moegrad
