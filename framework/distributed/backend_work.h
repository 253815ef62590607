// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "framework/distributed/work.h"

namespace moegrad {

/// A collective that failed only because something else failed before it: another rank, or another
/// collective. launch() reports the original failure instead.
class AbortedError final : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

/// The Work of a backend that has a hub, which executes the calls, and a struct for each call, with
/// its CollectiveTiming.
template <class Hub, class Call>
class BackendWork final : public Work {
 public:
  BackendWork(std::shared_ptr<Hub> hub, std::shared_ptr<Call> call)
      : hub_(std::move(hub)), call_(std::move(call)) {}
  ~BackendWork() override {
    drop([this] { hub_->release(*call_, std::uncaught_exceptions() > exceptions_); });
  }

 protected:
  const CollectiveRequest& request() const override { return *call_; }
  void block() override { hub_->wait(*call_); }
  bool has_ended() override { return hub_->test(*call_); }
  std::exception_ptr failure() override { return hub_->failure(*call_); }
  CollectiveTiming times() override { return *call_; }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Call> call_;
  int exceptions_ = std::uncaught_exceptions();
};

/// What a consumer has thrown, as text.
inline std::string what_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace moegrad
