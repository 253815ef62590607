// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/be_scheduled_promptly.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace moegrad {

// Note [Threads that wake up]
// Where threads compete for a core, Linux lets one that wakes up interrupt another only if it has
// had less than its share of the core of late. Otherwise it waits until the other's time slice
// ends, which takes milliseconds: as long as a layer's gather. A thread with a short time slice may
// interrupt others when it wakes up; its share of the core stays what it is. Linux before 6.12
// takes no notice.
void be_scheduled_promptly() {
  // Without it, the system rounds short naps up.
  prctl(PR_SET_TIMERSLACK, 1'000UL, 0UL, 0UL, 0UL);
  // A program may have been given another policy, as by `chrt --idle`.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  // The structure of sched_setattr(2), for which there is no header yet.
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes = {};
  attributes.size = sizeof(attributes);
  attributes.policy = SCHED_OTHER;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime = 100'000;  // nanoseconds
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace moegrad
