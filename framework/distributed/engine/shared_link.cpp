// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/shared_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace moegrad {
namespace {

CollectiveClock::duration seconds(double value) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * value));
}

}  // namespace

void SharedLink::Lane::add(const Waiting& transfer, TimePoint now) {
  if (is_idle()) free_at = std::max(free_at, now);
  waiting.push_back(transfer);
}

std::optional<std::uint64_t> SharedLink::Lane::move_piece(std::size_t piece_bytes) {
  // The first of the highest priority. What had the last piece stands behind its equals, also those
  // that have come since that began.
  if (had_last) waiting.push_back(*std::exchange(had_last, std::nullopt));
  const auto next = std::ranges::max_element(waiting, {}, &Waiting::priority);
  auto moved = *next;
  waiting.erase(next);
  const auto bytes = std::min(moved.bytes, static_cast<std::int64_t>(piece_bytes));
  free_at += seconds(static_cast<double>(bytes) / bytes_per_second);
  moved.bytes -= bytes;
  if (moved.bytes == 0) return moved.transfer;
  had_last = moved;
  return std::nullopt;
}

void SharedLink::Lane::remove(std::uint64_t transfer) {
  std::erase_if(waiting, [&](const Waiting& each) { return each.transfer == transfer; });
  if (had_last && had_last->transfer == transfer) had_last.reset();
}

bool SharedLink::Lane::has(std::uint64_t transfer) const {
  return (had_last && had_last->transfer == transfer) ||
         std::ranges::find(waiting, transfer, &Waiting::transfer) != waiting.end();
}

SharedLink::SharedLink(const LinkModel& model, int rank, std::size_t piece_bytes)
    : model_(model),
      slow_by_(rank == model.slow_rank ? model.slow_by : 1),
      piece_bytes_(piece_bytes),
      within_{.bytes_per_second = model.bytes_per_second / slow_by_},
      between_{.bytes_per_second = model.between_hosts.bytes_per_second / slow_by_} {}

std::uint64_t SharedLink::begin(const LinkLoad& load, int priority, TimePoint now) {
  advance(now);
  const auto number = begun_++;
  const auto latency = load.crosses_hosts ? model_.between_hosts.latency : model_.latency;
  CollectiveClock::duration alone = latency;
  const auto add = [&](Lane& lane, std::int64_t bytes) {
    if (bytes == 0 || lane.bytes_per_second <= 0) return;
    lane.add({.transfer = number, .bytes = bytes, .priority = priority}, now);
    const auto usual_rate = slow_by_ * lane.bytes_per_second;
    alone = std::max(alone, latency + seconds(static_cast<double>(bytes) / usual_rate));
  };
  add(within_, load.bytes);
  add(between_, load.bytes_between);
  transfers_[number] = {
      .through = now,
      .latency = seconds(slow_by_ * std::chrono::duration<double>(latency).count()),
      .alone = alone};
  return number;
}

// A piece that begins at `now` may still be of a transfer that begins then, too.
void SharedLink::advance(TimePoint now) {
  for (auto* const lane : {&within_, &between_}) {
    while (!lane->is_idle() && lane->free_at < now) {
      const auto through = lane->move_piece(piece_bytes_);
      if (!through) continue;
      auto& transfer = transfers_.at(*through);
      transfer.through = std::max(transfer.through, lane->free_at);
    }
  }
}

SharedLink::TimePoint SharedLink::delivery(std::uint64_t transfer, TimePoint now) {
  advance(now);
  const auto& found = transfers_.at(transfer);
  auto through = found.through;
  for (auto lane : {within_, between_}) {
    if (!lane.has(transfer)) continue;
    while (lane.move_piece(piece_bytes_) != transfer) {
    }
    through = std::max(through, lane.free_at);
  }
  return through + found.latency;
}

CollectiveClock::duration SharedLink::alone(std::uint64_t transfer) const {
  return transfers_.at(transfer).alone;
}

void SharedLink::end(std::uint64_t transfer) {
  transfers_.erase(transfer);
  for (auto* const lane : {&within_, &between_}) lane->remove(transfer);
}

}  // namespace moegrad
