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

std::size_t encode(const MessageHeader& header, std::span<const std::byte> payload,
                   std::span<std::byte> message) {
  if (payload.size() > kInlineBytes) payload = {};
  const auto& request = header.request;
  ByteWriter writer;
  writer.number(static_cast<std::uint8_t>(request.op));
  writer.number(static_cast<std::uint8_t>(request.dtype));
  writer.number(static_cast<std::uint8_t>(request.reduce));
  writer.number(request.count);
  writer.number(request.root);
  writer.number(request.round);
  writer.number(request.sequence);
  writer.number(header.sends);
  writer.number(header.expects);
  writer.number(header.received);
  writer.number(header.deadline_ms);
  writer.number(header.group_id);
  writer.number(std::ssize(header.segments));
  for (const auto bytes : header.segments) writer.number(bytes);
  writer.text(request.label);
  const auto text = writer.take();
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
  auto& request = header.request;
  request.op = static_cast<CollectiveOp>(reader.number<std::uint8_t>());
  request.dtype = static_cast<Dtype>(reader.number<std::uint8_t>());
  request.reduce = static_cast<ReduceOp>(reader.number<std::uint8_t>());
  request.count = reader.number<std::int64_t>();
  request.root = reader.number<int>();
  request.round = reader.number<std::int64_t>();
  request.sequence = reader.number<std::int64_t>();
  header.sends = reader.number<std::int64_t>();
  header.expects = reader.number<std::int64_t>();
  header.received = reader.number<std::int64_t>();
  header.deadline_ms = reader.number<std::int64_t>();
  header.group_id = reader.number<std::int64_t>();
  const auto segments = reader.number<std::ptrdiff_t>();
  check(0 <= segments && segments <= static_cast<std::ptrdiff_t>(kMostSegments),
        "header of a collective: must have at most ", kMostSegments, " segments, got ", segments);
  for (std::ptrdiff_t i = 0; i < segments; ++i) {
    header.segments.push_back(reader.number<std::int64_t>());
  }
  request.label = reader.text();
  return header;
}

}  // namespace moegrad
