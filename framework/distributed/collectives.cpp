// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

std::span<std::byte> checked_bytes(std::string_view op, Tensor& tensor) {
  const auto dtype = tensor.dtype();
  check<DtypeError>(dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 || dtype == Dtype::kInt64,
                    op, ": tensor must be float32, float64 or int64, got ", dtype);
  check<LayoutError>(tensor.layout() == Layout::kND, op,
                     ": tensor must be row-major ND, got FRACTAL_NZ");
  check<LayoutError>(tensor.is_contiguous(), op, ": tensor must be contiguous, got shape ",
                     tensor.shape(), " with strides ", tensor.strides());
  return tensor.mutable_bytes();
}

// The bytes of all ranks, in their order, on the first `receivers` of them.
std::vector<std::vector<std::byte>> exchange_bytes(ProcessGroup& group,
                                                   std::span<const std::byte> own, int receivers,
                                                   const CollectiveOptions& options) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> sizes(ranks);
  all_gather(group, std::vector<std::int64_t>{std::ssize(own)}, std::span(sizes), options);

  // No dtype is as small as a byte, so bytes travel as words, the last one filled up.
  constexpr std::size_t kWord = sizeof(std::int64_t);
  const auto words = [](std::int64_t bytes) {
    return (bytes + static_cast<std::int64_t>(kWord) - 1) / static_cast<std::int64_t>(kWord);
  };
  const bool receives = group.rank() < receivers;
  std::vector<std::int64_t> sent(static_cast<std::size_t>(words(std::ssize(own))));
  std::ranges::copy(own, std::as_writable_bytes(std::span(sent)).begin());
  std::vector<std::int64_t> send_counts(ranks), recv_counts(ranks);
  std::fill_n(send_counts.begin(), receivers, std::ssize(sent));
  if (receives) std::ranges::transform(sizes, recv_counts.begin(), words);
  std::vector<std::int64_t> received(static_cast<std::size_t>(
      std::accumulate(recv_counts.begin(), recv_counts.end(), std::int64_t{0})));
  group
      .all_to_all(ByteParts(static_cast<std::size_t>(receivers), std::as_bytes(std::span(sent))),
                  send_counts, {std::as_writable_bytes(std::span(received))}, recv_counts,
                  Dtype::kInt64, options)
      ->wait();

  std::vector<std::vector<std::byte>> all;
  auto left = std::as_bytes(std::span(received));
  for (std::size_t rank = 0; receives && rank < ranks; ++rank) {
    const auto bytes = left.first(static_cast<std::size_t>(sizes[rank]));
    all.emplace_back(bytes.begin(), bytes.end());
    left = left.subspan(static_cast<std::size_t>(recv_counts[rank]) * kWord);
  }
  return all;
}

}  // namespace

void all_reduce(ProcessGroup& group, Tensor& tensor, ReduceOp op,
                const CollectiveOptions& options) {
  const auto bytes = checked_bytes("all_reduce", tensor);
  group.all_reduce(bytes, tensor.dtype(), op, options)->wait();
}

void broadcast(ProcessGroup& group, Tensor& tensor, int root, const CollectiveOptions& options) {
  const auto bytes = checked_bytes("broadcast", tensor);
  group.broadcast(bytes, root, tensor.dtype(), options)->wait();
}

std::vector<std::vector<std::byte>> gather_bytes(ProcessGroup& group,
                                                 std::span<const std::byte> own,
                                                 const CollectiveOptions& options) {
  return exchange_bytes(group, own, 1, options);
}

std::vector<std::string> all_gather_texts(const std::shared_ptr<ProcessGroup>& group,
                                          std::string_view text, const CollectiveOptions& options) {
  if (group == nullptr || group->size() == 1) return {std::string(text)};
  std::vector<std::string> texts;
  for (const auto& bytes :
       exchange_bytes(*group, std::as_bytes(std::span(text)), group->size(), options)) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

std::string ranks_that_differ(const std::vector<std::string>& texts) {
  std::string ranks;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks;
}

}  // namespace moegrad
