// SPDX-License-Identifier: Apache-2.0
#include "fsdp/observer.h"

namespace moegrad::fsdp {

std::string_view to_string(Event event) {
  switch (event) {
    case Event::kPreForward:
      return "pre_forward";
    case Event::kPostForward:
      return "post_forward";
    case Event::kPreBackward:
      return "pre_backward";
    case Event::kPostBackward:
      return "post_backward";
    case Event::kUnshard:
      return "unshard";
    case Event::kPrefetch:
      return "prefetch";
    case Event::kReshard:
      return "reshard";
    case Event::kGather:
      return "gather";
    case Event::kReduce:
      return "reduce";
    case Event::kAllReduce:
      return "all_reduce";
  }
  return "unknown";
}

}  // namespace moegrad::fsdp
