// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/engine_process_group.h"

#include <utility>

#include "framework/runtime/exception_message.h"
#include "framework/runtime/log.h"

namespace moegrad {
namespace {

class EngineWork final : public Work {
 public:
  EngineWork(std::shared_ptr<Engine> engine, std::shared_ptr<EngineCall> call)
      : engine_(std::move(engine)), call_(std::move(call)) {}
  ~EngineWork() override {
    drop([this] { engine_->release(*call_, std::uncaught_exceptions() > exceptions_); });
  }

 protected:
  const CollectiveRequest& request() const override { return *call_; }
  void block() override { engine_->wait(*call_); }
  bool has_ended() override { return engine_->test(*call_); }
  std::exception_ptr failure() override { return engine_->failure(*call_); }
  CollectiveTiming times() override { return *call_; }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<EngineCall> call_;
  int exceptions_ = std::uncaught_exceptions();
};

std::vector<int> hosts_of(const std::vector<int>& ranks, const std::vector<int>& hosts_of_world) {
  std::vector<int> hosts;
  for (const int rank : ranks) {
    if (!hosts_of_world.empty()) hosts.push_back(hosts_of_world[static_cast<std::size_t>(rank)]);
  }
  return hosts;
}

}  // namespace

EngineProcessGroup::EngineProcessGroup(std::shared_ptr<Engine> engine,
                                       std::shared_ptr<EngineGroup> group)
    : ProcessGroup(group->name, group->ranks, group->rank,
                   hosts_of(group->ranks, engine->launch().hosts)),
      engine_(std::move(engine)),
      group_(std::move(group)) {
  if (engine_->options().check_nan) check_nan();
}

WorkPtr EngineProcessGroup::issue(CollectiveCall call) {
  auto posted = std::make_shared<EngineCall>(std::move(call));
  posted->line = {.group = group_->id, .queue = posted->queue};
  if (is_point_to_point(posted->op)) {
    if (const auto tags = engine_->transport().most_tags()) {
      check<ValueError>(0 <= posted->tag && posted->tag < *tags, to_string(posted->op),
                        ": tag must be in [0, ", *tags, ") over MPI, got ", posted->tag);
    }
    posted->line.from = posted->from;
    posted->line.to = posted->to;
    posted->line.tag = posted->tag;
    posted->line.side = posted->op == CollectiveOp::kSend ? 0 : 1;
  }
  engine_->post(*group_, posted);
  return std::make_shared<EngineWork>(engine_, std::move(posted));
}

std::shared_ptr<const void> EngineProcessGroup::begin_excuse(std::string what) {
  const std::lock_guard lock(engine_->launch().mutex);
  const auto own = engine_->excuses().begin(group_.get(), std::move(what));
  return {nullptr, [engine = engine_, own](std::nullptr_t) {
            std::string warning;
            {
              const std::lock_guard ending(engine->launch().mutex);
              warning = engine->excuses().end(own);
            }
            if (!warning.empty()) log(LogLevel::kWarning, warning);
          }};
}

std::shared_ptr<ProcessGroup> EngineProcessGroup::make_subgroup(std::span<const int> members,
                                                                const std::string& name) {
  const auto state = engine_->make_group(group_, members, name);
  auto group = std::make_shared<EngineProcessGroup>(engine_, state);
  group->barrier({.label = state->label})->wait();
  return group;
}

std::exception_ptr run_rank(const std::shared_ptr<Engine>& engine, RankContext::Options options,
                            const std::function<void(RankContext&)>& body) {
  std::exception_ptr thrown;
  try {
    options.rank = engine->rank();
    options.world_size = engine->launch().world_size;
    options.threads = engine->options().threads_per_rank;
    options.kernels = engine->options().kernels;
    options.group = std::make_shared<EngineProcessGroup>(engine, engine->world());
    RankContext context(std::move(options));
    engine->transport().set_arena(context.arena());
    const RankContextGuard guard(context);
    body(context);
  } catch (...) {
    thrown = std::current_exception();
    engine->body_failed(message_of_exception());
  }
  engine->body_ended();
  engine->write_last_operations();
  return thrown;
}

}  // namespace moegrad
