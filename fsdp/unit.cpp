// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit.h"

namespace moegrad::fsdp {

void Unit::unshard() const {
  issue_unshard();
  wait_for_unshard();
}

void Unit::issue_unshard() const {
  for (const auto& group : groups) group->unshard(Event::kUnshard);
}

void Unit::wait_for_unshard() const {
  for (const auto& group : groups) group->wait_for_unshard();
}

void Unit::reshard() const {
  for (const auto& group : groups) group->reshard();
}

}  // namespace moegrad::fsdp
