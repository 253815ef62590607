// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad::test {

/// A backend that does what a test expects of it.
class MockProcessGroup : public ProcessGroup {
 public:
  MockProcessGroup(std::vector<int> ranks, int rank)
      : ProcessGroup("mock", std::move(ranks), rank) {}
  MOCK_METHOD(WorkPtr, issue, (CollectiveCall), (override));
  MOCK_METHOD(std::shared_ptr<ProcessGroup>, make_subgroup,
              (std::span<const int>, const std::string&), (override));
};

}  // namespace moegrad::test
