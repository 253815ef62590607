// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/engine_call.h"

namespace moegrad {

const char* to_string(CallState state) {
  constexpr const char* kNames[] = {"issued", "joined", "running", "executed",
                                    "done",   "failed", "given up"};
  return kNames[static_cast<std::size_t>(state)];
}

CollectiveRequest named(const EngineCall& call) {
  CollectiveRequest request = call;
  request.label = header_label(call.group_id == 0 ? call.label : call.group + ": " + call.label);
  return request;
}

LineKey across(LineKey key) {
  if (key.from >= 0) key.side = 1 - key.side;
  return key;
}

}  // namespace moegrad
