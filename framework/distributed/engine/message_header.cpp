// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/message_header.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "framework/runtime/byte_stream.h"

namespace moegrad {
namespace {

// Ahead of the payload, so that it begins at a multiple of 16 bytes.
using Sizes = std::array<std::uint64_t, 2>;

}  // namespace

void members(auto& stream, Like<MessageHeader> auto& header) {
  auto& request = header.request;
  stream(request.op, request.dtype, request.reduce, request.count, request.root, request.round,
         request.sequence, request.label, header.sends, header.expects, header.received,
         header.deadline_ms, header.group_id, header.segments);
}

std::size_t encode(const MessageHeader& header, std::span<const std::byte> payload,
                   std::span<std::byte> message) {
  if (payload.size() > kInlineBytes) payload = {};
  const auto text = to_bytes(header);
  const Sizes sizes = {payload.size(), text.size()};
  assert(sizeof(sizes) + payload.size() + text.size() <= message.size());
  auto* out = message.data();
  std::memcpy(out, sizes.data(), sizeof(sizes));
  out = std::copy(payload.begin(), payload.end(), out + sizeof(sizes));
  out = std::copy(text.begin(), text.end(), out);
  return static_cast<std::size_t>(out - message.data());
}

MessageHeader decode(std::span<const std::byte> message, std::span<const std::byte>& payload) {
  Sizes sizes{};
  check(message.size() >= sizeof(sizes), "header of a collective: must have ", sizeof(sizes),
        " bytes, got ", message.size());
  std::memcpy(sizes.data(), message.data(), sizeof(sizes));
  const auto rest = message.subspan(sizeof(sizes));
  check(sizes[0] <= rest.size() && sizes[1] == rest.size() - sizes[0],
        "header of a collective: must have ", sizes[0], " + ", sizes[1], " bytes, got ",
        rest.size());
  payload = rest.first(sizes[0]);
  ByteReader reader(rest.subspan(sizes[0]));
  MessageHeader header;
  reader(header);
  return header;
}

}  // namespace moegrad
