// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "framework/tensor/tensor.h"
#include "fsdp/flat_layout.h"

namespace moegrad::fsdp {

/// All bytes of the tensor's storage.
std::span<const std::byte> bytes_of(const Tensor& tensor);
std::span<std::byte> writable_bytes_of(Tensor& tensor);

/// shape.numel() elements of a flat tensor, from element `offset` on.
Tensor flat_view(const Tensor& flat, std::int64_t offset, const Shape& shape);

/// The part of `tensor` that `rank` holds if dimension `dim` is cut; strided for dim > 0.
Tensor shard_view(const Tensor& tensor, std::int64_t dim, int world_size, int rank);

}  // namespace moegrad::fsdp
