// SPDX-License-Identifier: Apache-2.0
#pragma once

// Note [Tensors that are swapped]
// What a policy says is to be offloaded (CheckpointPolicy) goes to a second arena, the host's, as
// soon as a Function saves it, and its bytes on the rank are free once they have gone and the
// caller has dropped the tensor. Before backward reads it, it comes back. A thread of its own
// copies, so the rank computes meanwhile. Where the host is the same memory, as here, a modelled
// link takes the time that a real one would.
//
// The copy belongs to the storage. All that save it, or views of it, share one copy out and one
// back. So do the recipes of results that are made again: an op that runs again may read what has
// come back.
//
// At most `window` bytes on their way, out and back together, are in the rank's arena. Out: who
// saves one more waits until the oldest have gone. Back: when backward first asks for a tensor, the
// next ones are fetched as far as the window allows. What these are is asked of `next`. What
// forward saves last has not left the window when backward begins, and stays. What goes out gives
// way to what comes back, and what is fetched ahead to what backward waits for.
//
// Bytes are allocated and freed where the rank's own thread saves, asks and releases, and never
// where the copying thread ends. So peaks depend on no delay.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "framework/distributed/launch_options.h"
#include "framework/distributed/link_model.h"
#include "framework/runtime/arena.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

class CopyQueue;
enum class CopyPriority : std::uint8_t;
class Swapped;
namespace detail {
struct SwapOrigin;
}

/// What a SwapSpace holds of one storage.
struct SwappedTensor {
  std::int64_t number = 0;  // in the order in which they were first saved
  std::string path = {};    // of the module whose forward has made it
  int micro_batch = 0;      // MicroBatchGuard's
  std::int64_t bytes = 0;
};

/// What backward will ask for after `used`: a position in `away`, which are in the order of their
/// numbers, or -1 for nothing of them.
using NextOfSwapped = std::function<std::ptrdiff_t(const SwappedTensor& used,
                                                   std::span<const SwappedTensor* const> away)>;

/// The last that was saved before `used`: the order of the tape.
std::ptrdiff_t in_tape_order(const SwappedTensor& used, std::span<const SwappedTensor* const> away);

struct SwapOptions {
  /// Most bytes on their way, out and back together. One tensor may always be. Above 0.
  std::int64_t window = std::int64_t{64} << 20;
  /// The budget of the host's arena, or 0 for no limit: past it forward ends with
  /// MemoryBudgetError.
  std::int64_t host_budget = 0;
  /// Its rate and latency are read: as fast as memory by default.
  LinkModel link = {};
  /// Delays each copy at random; none by default.
  Jitter jitter = {};
  NextOfSwapped next = in_tape_order;
};

/// Where a rank's swapped tensors are (Note [Tensors that are swapped]). Made by the rank's own
/// thread, and for it alone.
class SwapSpace : public std::enable_shared_from_this<SwapSpace> {
 public:
  /// ValueError unless window > 0, host_budget, latency and rate >= 0, and `next` is a function.
  static std::shared_ptr<SwapSpace> make(SwapOptions options = {});
  ~SwapSpace();
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  /// The arena that is the host's.
  const Arena& host() const { return *host_; }

 private:
  friend class Swapped;
  friend struct detail::SwapOrigin;

  explicit SwapSpace(SwapOptions options);

  std::shared_ptr<Swapped> send(const Tensor& tensor, const std::string& path);
  Tensor bring_back(Swapped& swapped);
  void forget(Swapped& swapped) noexcept;
  void let_go(Swapped& swapped);
  void fetch(Swapped& swapped, CopyPriority priority);
  void fetch_ahead(const SwappedTensor& used);

  SwapOptions options_;
  std::unique_ptr<Arena> host_ = std::make_unique<Arena>();
  std::mutex mutex_;
  std::int64_t saved_ = 0;
  std::deque<Swapped*> leaving_;  // oldest first
  std::vector<Swapped*> away_;    // by number
  std::deque<Swapped*> coming_;   // in the order in which they were fetched
  std::int64_t bytes_in_window_ = 0;
  std::unique_ptr<CopyQueue> queue_;
};
}  // namespace moegrad
