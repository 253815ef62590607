// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "framework/autograd/bytes_source.h"
#include "framework/autograd/copy_queue.h"
#include "framework/autograd/swap_space.h"

namespace moegrad {

/// The bytes of one storage in a SwapSpace, which guards all of it with its mutex. While all that
/// have saved the storage are gone, so is this.
class Swapped final : public detail::BytesSource {
 public:
  enum class State : std::uint8_t {
    kLeaving,  // here, and on its way out or gone
    kAway,
    kComing,  // here, or on its way back; nobody has asked for it
    kBack     // somebody has
  };

  Swapped(std::shared_ptr<SwapSpace> in, SwappedTensor what, Tensor whole, std::byte* at)
      : space(std::move(in)),
        info(std::move(what)),
        dtype(whole.dtype()),
        version(whole.storage().version()),
        host(at),
        here(std::move(whole)) {}
  ~Swapped() override;

  Tensor output(std::size_t i) override;

  const std::shared_ptr<SwapSpace> space;
  const SwappedTensor info;
  const Dtype dtype;
  const std::uint64_t version;  // of the bytes that were saved
  std::byte* const host;
  Tensor here;  // over all bytes of the storage; undefined while it is away
  State state = State::kLeaving;
  std::uint64_t version_back = 0;  // of `here`, once it is back
  CopyQueue::CopyPtr out, back;
};

}  // namespace moegrad
