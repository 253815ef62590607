// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Collectives on the tape. Every rank of the group calls the same op; the objective that is
// differentiated is the sum of the ranks' objectives. Then the gradient of a collective is its
// conjugate, another collective: what was gathered is summed and scattered, what was sent comes
// back. So all ranks must also run the same backward, in the same order.
//
// An op returns at once. The first to read the result waits for it (Note [Bytes that are under
// way]), also in backward, and an error of the collective shows there. Until then the op keeps its
// input. Sums run along the tree of Note [Reduction order], so the bits are fixed.
//
// x is float32 or float64, or int64 without a gradient. What only moves it takes bfloat16, too;
// sums of its gradients over ranks are made in float32. Its rows are along dimension 0. ValueError
// for a null group, DtypeError for another dtype, ShapeError for what does not fit; a mismatch
// between ranks is a CollectiveError. A strided x is copied first. In `options`, the label is
// followed by ", backward" in backward.

/// y [R n, ...] = the x [n, ...] of all R ranks, in their order. Backward: reduce_scatter.
Tensor all_gather(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                  const CollectiveOptions& options = {});
/// y [n, ...] = the sum over the ranks of part rank() of their x [R n, ...]. Backward: all_gather.
Tensor reduce_scatter(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                      const CollectiveOptions& options = {});
/// y = the sum over the ranks of their x. Backward: all_reduce.
Tensor all_reduce(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                  const CollectiveOptions& options = {});
/// y = the x of rank `root`; the others' x gives only the shape. Backward: the root gets the sum of
/// the gradients, the others zeros.
Tensor broadcast(const std::shared_ptr<ProcessGroup>& group, const Tensor& x, int root,
                 const CollectiveOptions& options = {});
/// Sends send_rows[r] rows of x to each rank r, in order, and receives recv_rows[r] from it:
/// y [sum of recv_rows, ...], by rank. Backward: the rows' gradients go back.
Tensor all_to_all(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                  std::span<const std::int64_t> send_rows, std::span<const std::int64_t> recv_rows,
                  const CollectiveOptions& options = {});

/// Sends x to rank `to`, which receives it with the same tag, both in the default queue. The result
/// is a zero [], which the objective must contain for the gradient to come back: backward receives
/// it. Reading or dropping the result waits until x has been received. The gradient has a queue of
/// its own (kGradients). Error, here and in recv, in the body of a checkpoint: backward would send
/// once more.
Tensor send(const std::shared_ptr<ProcessGroup>& group, const Tensor& x, int to, int tag = 0,
            const CollectiveOptions& options = {});
/// What rank `from` sends with the same tag. `like` gives shape and dtype; its values do not
/// matter. If it requires a gradient, backward sends that of the result to `from`, and `like` gets
/// zeros.
Tensor recv(const std::shared_ptr<ProcessGroup>& group, const Tensor& like, int from, int tag = 0,
            const CollectiveOptions& options = {});

}  // namespace moegrad::ops
