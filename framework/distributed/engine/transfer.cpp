// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/transfer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace moegrad {

Transfer::Transfer(Messages& messages, std::size_t piece_bytes,
                   std::function<void(std::size_t, std::size_t)> on_send)
    : messages_(messages), piece_bytes_(piece_bytes), on_send_(std::move(on_send)) {}

void Transfer::send(std::size_t slot, const ByteParts& parts, std::size_t begin,
                    const std::vector<std::int64_t>& segments) {
  const auto bytes = std::accumulate(segments.begin(), segments.end(), std::int64_t{0});
  auto stream = std::make_unique<Stream>(
      Stream{.slot = slot,
             .sends = true,
             .parts = subparts(parts, begin, static_cast<std::size_t>(bytes)),
             .segments = segments});
  stream->source = std::make_unique<PartsCursor>(stream->parts, 0);
  add(std::move(stream));
}

void Transfer::receive(std::size_t slot, std::byte* to, const std::vector<std::int64_t>& segments) {
  add(std::make_unique<Stream>(Stream{.slot = slot, .target = to, .segments = segments}));
}

void Transfer::add(std::unique_ptr<Stream> stream) {
  for (const auto bytes : stream->segments) stream->size += static_cast<std::size_t>(bytes);
  if (stream->size == 0) return;
  streams_.push_back(std::move(stream));
  ++left_;
}

void Transfer::post(Stream& stream) {
  auto& piece = stream.pieces.emplace_back();
  const auto segment = static_cast<std::size_t>(stream.segments[stream.segment]);
  piece.bytes = std::min(piece_bytes_, segment - stream.posted_of_segment);
  stream.posted_of_segment += piece.bytes;
  if (stream.posted_of_segment == segment) {
    ++stream.segment;
    stream.posted_of_segment = 0;
  }
  if (!stream.sends) {
    piece.request = messages_.receive(stream.slot, Messages::Kind::kPayload,
                                      {stream.target + stream.posted, piece.bytes});
  } else {
    const auto* from = stream.source->data();
    if (stream.source->contiguous() >= piece.bytes) {
      stream.source->advance(piece.bytes);
    } else {
      piece.packed.reserve(piece.bytes);
      while (piece.packed.size() < piece.bytes) {
        const auto run = std::min(piece.bytes - piece.packed.size(), stream.source->contiguous());
        piece.packed.insert(piece.packed.end(), stream.source->data(), stream.source->data() + run);
        stream.source->advance(run);
      }
      from = piece.packed.data();
    }
    piece.request = messages_.send(stream.slot, Messages::Kind::kPayload, {from, piece.bytes});
    on_send_(stream.slot, piece.bytes);
  }
  stream.posted += piece.bytes;
}

bool Transfer::poll(bool may_send) {
  bool progress = false;
  for (const auto& stream : streams_) {
    if (stream->completed == stream->size) continue;
    const bool goes_on = !cancelled_ && (may_send || !stream->sends);
    while (goes_on && stream->posted < stream->size && stream->pieces.size() < kWindow) {
      post(*stream);
      progress = true;
    }
    for (auto& piece : stream->pieces) {
      if (piece.done) continue;
      piece.done = piece.request->test();
      progress = progress || piece.done;
    }
    while (!stream->pieces.empty() && stream->pieces.front().done) {
      stream->completed += stream->pieces.front().bytes;
      stream->pieces.pop_front();
    }
    const bool ended = cancelled_ ? stream->pieces.empty() : stream->completed == stream->size;
    if (!ended) continue;
    stream->completed = stream->size;
    --left_;
  }
  return progress;
}

bool Transfer::has_more_to_send() const {
  return !cancelled_ && std::ranges::any_of(streams_, [](const auto& stream) {
    return stream->sends && stream->posted < stream->size;
  });
}

std::size_t Transfer::received_from(std::size_t slot) const {
  for (const auto& stream : streams_) {
    if (!stream->sends && stream->slot == slot) return stream->completed;
  }
  return 0;
}

bool Transfer::done_with(std::size_t slot) const {
  return std::ranges::all_of(streams_, [&](const auto& stream) {
    return stream->slot != slot || stream->completed == stream->size;
  });
}

void Transfer::cancel() {
  cancelled_ = true;
  for (const auto& stream : streams_) {
    if (stream->sends) continue;
    for (auto& piece : stream->pieces) {
      if (!piece.done) piece.request->cancel();
    }
  }
}

}  // namespace moegrad
