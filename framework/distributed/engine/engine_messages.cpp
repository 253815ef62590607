// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other beside their collectives.
#include <algorithm>
#include <utility>

#include "framework/distributed/engine/engine.h"
#include "framework/runtime/log.h"

namespace moegrad {
namespace {

enum class Message : std::uint8_t { kFailure, kHistory, kQuestion, kAnswer, kEnd };

constexpr std::size_t kLongestCause = 4096;

}  // namespace

void members(auto& stream, Like<LineKey> auto& key) {
  stream(key.group, key.queue, key.from, key.to, key.tag, key.side);
}

void members(auto& stream, Like<Failure> auto& failure) {
  stream(failure.cause, failure.origin, failure.line, failure.sequence, failure.rank_threw);
}

void members(auto& stream, Like<HistoryLine> auto& line) {
  stream(line.state, line.where, line.sequence, line.signature, line.label);
}

void members(auto& stream, Like<Line::Answer> auto& answer) {
  stream(answer.sequence, answer.excused, answer.has_issued, answer.has_left);
}

void Engine::tell(int rank, std::vector<std::byte> message) {
  transport_->send(rank, std::move(message));
  transport_->wake({&rank, 1});
}

void Engine::tell_end() {
  if (!body_ended_ || has_failed() || std::exchange(told_end_, true)) return;
  for (const int rank : world_->ranks) {
    if (rank != rank_) tell(rank, to_bytes(Message::kEnd));
  }
}

// Ranks of this process know of it.
bool Engine::is_elsewhere(int rank) const {
  return std::ranges::none_of(launch_->engines,
                              [&](const Engine* engine) { return engine->rank_ == rank; });
}

void Engine::tell_failure() {
  auto failure = launch_->failure();
  for (auto* const text : {&failure.cause, &failure.origin}) *text = text->substr(0, kLongestCause);
  const auto message = to_bytes(Message::kFailure, failure);
  for (const int rank : world_->ranks) {
    if (!is_elsewhere(rank)) continue;
    try {
      tell(rank, message);
    } catch (const Error& error) {  // the others shall know all the same
      log(LogLevel::kDebug, error.what());
    }
  }
  if (!is_elsewhere(0)) return;
  // The latest first, as many as there is room for.
  const auto lines = history();
  auto told = to_bytes(Message::kHistory);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const auto bytes = to_bytes(*line);
    if (told.size() + bytes.size() > Transport::kLongestMessage) break;
    told.insert(told.end(), bytes.begin(), bytes.end());
  }
  tell(0, std::move(told));
}

void Engine::hear(int from, std::span<const std::byte> message) {
  ByteReader reader(message);
  Message kind{};
  reader(kind);
  switch (kind) {
    case Message::kFailure:
      return hear_failure(reader);
    case Message::kHistory:
      return hear_history(from, reader);
    case Message::kQuestion:
      return hear_question(from, reader);
    case Message::kAnswer:
      return hear_answer(from, reader);
    case Message::kEnd:
      ++ends_heard_;
      for (const auto& [key, line] : lines_) line->ask_at_once();
      return;
  }
}

void Engine::hear_failure(ByteReader& reader) {
  Failure failure;
  reader(failure);
  if (heard_failure_) return;
  heard_failure_ = std::move(failure);
  heard_at_ = CollectiveClock::now();
}

void Engine::hear_history(int from, ByteReader& reader) {
  std::vector<HistoryLine> lines;
  while (!reader.at_end()) {
    reader(*lines.emplace(lines.begin()));
  }
  launch_->set_history(from, std::move(lines));
}

void Engine::ask(int rank, const LineKey& line, std::int64_t sequence,
                 CollectiveClock::duration waited) {
  tell(rank, to_bytes(Message::kQuestion, line, sequence, waited));
  ++unanswered_;
}

void Engine::hear_question(int from, ByteReader& reader) {
  LineKey key;
  Line::Answer answer;
  CollectiveClock::duration waited{};
  reader(key, answer.sequence, waited);
  const auto group = groups_.find(key.group);
  answer.excused = excuses_.within(
      waited, group == groups_.end() ? world_.get() : group->second.get(), world_.get());
  answer.has_issued = has_issued(across(key), answer.sequence);
  answer.has_left = body_ended_;
  tell(from, to_bytes(Message::kAnswer, key, answer));
}

void Engine::hear_answer(int from, ByteReader& reader) {
  --unanswered_;
  LineKey key;
  Line::Answer answer;
  reader(key, answer);
  // A rank that has left after a failure has told of it before.
  answer.has_left = answer.has_left && !heard_failure_;
  const auto line = lines_.find(key);
  if (line != lines_.end()) line->second->hear(from, answer);
}

}  // namespace moegrad
