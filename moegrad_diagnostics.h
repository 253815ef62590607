// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shows what a program does. Include it beside moegrad.h:
//
//     values     the first NaN or infinity, printed tensors, the calls that led to a place
//     tape       its DOT graph, critical path and live bytes
//     time       spans, traces, overlap, slow ranks; modelled links and random delays of ranks
//     events     what fully_shard gathers, frees and reduces, in order
//     counts     bytes by tag, conversions, copies

#include "framework/autograd/anomaly.h"
#include "framework/autograd/graph.h"
#include "framework/distributed/gather_timelines.h"
#include "framework/distributed/launch_options.h"
#include "framework/distributed/slow_rank_watch.h"
#include "framework/io/dump.h"
#include "framework/profile/overlap.h"
#include "framework/profile/slow_rank.h"
#include "framework/profile/timeline.h"
#include "framework/profile/trace.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/call_stack.h"
#include "framework/runtime/counters.h"
#include "framework/runtime/span.h"
#include "fsdp/observer.h"
