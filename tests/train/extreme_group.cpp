// SPDX-License-Identifier: Apache-2.0
#include "tests/train/extreme_group.h"

#include <algorithm>

namespace moegrad::test {

class HeldCalls::HeldWork final : public Work {
 public:
  HeldWork(HeldCalls& calls, const CollectiveCall& call, std::function<WorkPtr()> begin)
      : calls_(calls), request_(call), begin_(std::move(begin)) {
    memory_ = call.parts;
    memory_.push_back(call.input);
    memory_.push_back(call.output);
    memory_.insert(memory_.end(), call.output_parts.begin(), call.output_parts.end());
  }
  ~HeldWork() override {
    drop([this] { block(); });
  }

  void begin() { work_ = std::exchange(begin_, nullptr)(); }
  const ByteParts& memory() const { return memory_; }

 protected:
  const CollectiveRequest& request() const override { return request_; }
  void block() override {
    if (work_ == nullptr) calls_.begin_all();
    work_->await_end();
  }
  bool has_ended() override { return work_ != nullptr && work_->test(); }
  std::exception_ptr failure() override { return work_->error(); }
  CollectiveTiming times() override { return *work_->timing(); }

 private:
  HeldCalls& calls_;
  CollectiveRequest request_;
  ByteParts memory_;
  std::function<WorkPtr()> begin_;
  WorkPtr work_;
};

WorkPtr HeldCalls::issue(const CollectiveCall& call, std::function<WorkPtr()> begin) {
  auto work = std::make_shared<HeldWork>(*this, call, std::move(begin));
  held_.push_back(work.get());
  if (execution_ == Execution::kAtIssue) work->await_end();
  return work;
}

void HeldCalls::begin_all() {
  if (look_) {
    ByteParts memory;
    for (const auto* work : held_) {
      memory.insert(memory.end(), work->memory().begin(), work->memory().end());
    }
    look_(memory);
  }
  for (auto* work : std::exchange(held_, {})) work->begin();
}

}  // namespace moegrad::test
