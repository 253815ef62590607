// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/transfer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace moegrad::mpi {

Transfer::Transfer(MPI_Comm comm, int tag, std::size_t piece_bytes,
                   std::function<void(int, std::size_t)> on_send)
    : comm_(comm), tag_(tag), piece_bytes_(piece_bytes), on_send_(std::move(on_send)) {}

void Transfer::send(int peer, const ByteParts& parts, std::size_t begin,
                    const std::vector<std::int64_t>& segments) {
  const auto bytes = std::accumulate(segments.begin(), segments.end(), std::int64_t{0});
  auto stream = std::make_unique<Stream>(
      Stream{.peer = peer,
             .sends = true,
             .parts = subparts(parts, begin, static_cast<std::size_t>(bytes)),
             .segments = segments});
  stream->source = std::make_unique<PartsCursor>(stream->parts, 0);
  add(std::move(stream));
}

void Transfer::receive(int peer, std::byte* to, const std::vector<std::int64_t>& segments) {
  add(std::make_unique<Stream>(Stream{.peer = peer, .target = to, .segments = segments}));
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
  const auto count = static_cast<int>(piece.bytes);
  if (!stream.sends) {
    check_mpi(MPI_Irecv(stream.target + stream.posted, count, MPI_BYTE, stream.peer, tag_, comm_,
                        &piece.request),
              "MPI_Irecv");
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
    check_mpi(MPI_Isend(from, count, MPI_BYTE, stream.peer, tag_, comm_, &piece.request),
              "MPI_Isend");
    on_send_(stream.peer, piece.bytes);
  }
  stream.posted += piece.bytes;
}

bool Transfer::poll() {
  bool progress = false;
  for (const auto& stream : streams_) {
    if (stream->completed == stream->size) continue;
    while (!cancelled_ && stream->posted < stream->size && stream->pieces.size() < kWindow) {
      post(*stream);
      progress = true;
    }
    for (auto& piece : stream->pieces) {
      if (piece.done) continue;
      int flag = 0;
      check_mpi(MPI_Test(&piece.request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
      piece.done = flag != 0;
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

std::size_t Transfer::received_from(int peer) const {
  for (const auto& stream : streams_) {
    if (!stream->sends && stream->peer == peer) return stream->completed;
  }
  return 0;
}

bool Transfer::done_with(int peer) const {
  return std::ranges::all_of(streams_, [&](const auto& stream) {
    return stream->peer != peer || stream->completed == stream->size;
  });
}

void Transfer::cancel() {
  cancelled_ = true;
  for (const auto& stream : streams_) {
    if (stream->sends) continue;
    for (auto& piece : stream->pieces) {
      if (!piece.done) MPI_Cancel(&piece.request);
    }
  }
}

}  // namespace moegrad::mpi
