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

ByteWriter begin_message(Message kind) {
  ByteWriter writer;
  writer.number(static_cast<std::uint8_t>(kind));
  return writer;
}

void write(ByteWriter& writer, const LineKey& key) {
  writer.number(key.group);
  writer.number(static_cast<std::uint8_t>(key.queue));
  writer.number(key.from);
  writer.number(key.to);
  writer.number(key.tag);
  writer.number(key.side);
}

LineKey read_line_key(ByteReader& reader) {
  LineKey key;
  key.group = reader.number<std::int64_t>();
  key.queue = static_cast<CollectiveQueue>(reader.number<std::uint8_t>());
  key.from = reader.number<int>();
  key.to = reader.number<int>();
  key.tag = reader.number<int>();
  key.side = reader.number<int>();
  return key;
}

}  // namespace

void Engine::tell(int rank, std::vector<std::byte> message) {
  transport_->send(rank, std::move(message));
  transport_->wake({&rank, 1});
}

void Engine::tell_end() {
  if (!body_ended_ || has_failed() || std::exchange(told_end_, true)) return;
  for (const int rank : world_->ranks) {
    if (rank != rank_) tell(rank, begin_message(Message::kEnd).take());
  }
}

// Ranks of this process know of it.
bool Engine::is_elsewhere(int rank) const {
  return std::ranges::none_of(launch_->engines,
                              [&](const Engine* engine) { return engine->rank_ == rank; });
}

void Engine::tell_failure() {
  auto writer = begin_message(Message::kFailure);
  const auto& failure = launch_->failure();
  writer.text(std::string_view(failure.cause).substr(0, kLongestCause));
  writer.text(std::string_view(failure.origin).substr(0, kLongestCause));
  write(writer, failure.line);
  writer.number(failure.sequence);
  writer.number(static_cast<std::uint8_t>(failure.rank_threw));
  const auto message = writer.take();
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
  auto of_history = begin_message(Message::kHistory);
  std::size_t room = Transport::kLongestMessage - 64;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string_view texts[] = {line->state, line->where, line->sequence, line->signature,
                                      line->label};
    std::size_t size = 0;
    for (const auto text : texts) size += text.size() + sizeof(std::int64_t);
    if (size > room) break;
    room -= size;
    for (const auto text : texts) of_history.text(text);
  }
  tell(0, of_history.take());
}

void Engine::hear(int from, std::span<const std::byte> message) {
  ByteReader reader(message);
  switch (static_cast<Message>(reader.number<std::uint8_t>())) {
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
  failure.cause = reader.text();
  failure.origin = reader.text();
  failure.line = read_line_key(reader);
  failure.sequence = reader.number<std::int64_t>();
  failure.rank_threw = reader.number<std::uint8_t>() != 0;
  if (heard_failure_) return;
  heard_failure_ = std::move(failure);
  heard_at_ = CollectiveClock::now();
}

void Engine::hear_history(int from, ByteReader& reader) {
  std::vector<HistoryLine> lines;
  while (!reader.at_end()) {
    HistoryLine line;
    for (auto* const text :
         {&line.state, &line.where, &line.sequence, &line.signature, &line.label}) {
      *text = reader.text();
    }
    lines.insert(lines.begin(), std::move(line));
  }
  launch_->set_history(from, std::move(lines));
}

void Engine::ask(int rank, const LineKey& line, std::int64_t sequence,
                 CollectiveClock::duration waited) {
  auto writer = begin_message(Message::kQuestion);
  write(writer, line);
  writer.number(sequence);
  writer.number(static_cast<std::int64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count()));
  tell(rank, writer.take());
  ++unanswered_;
}

void Engine::hear_question(int from, ByteReader& reader) {
  const auto key = read_line_key(reader);
  const auto sequence = reader.number<std::int64_t>();
  const std::chrono::nanoseconds waited(reader.number<std::int64_t>());
  const auto group = groups_.find(key.group);
  auto answer = begin_message(Message::kAnswer);
  write(answer, key);
  answer.number(sequence);
  const auto excused = excuses_.within(
      waited, group == groups_.end() ? world_.get() : group->second.get(), world_.get());
  answer.number(static_cast<std::int64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(excused).count()));
  answer.number(static_cast<std::uint8_t>(has_issued(across(key), sequence)));
  answer.number(static_cast<std::uint8_t>(body_ended_));
  tell(from, answer.take());
}

void Engine::hear_answer(int from, ByteReader& reader) {
  --unanswered_;
  const auto key = read_line_key(reader);
  Line::Answer answer;
  answer.sequence = reader.number<std::int64_t>();
  answer.excused = std::chrono::nanoseconds(reader.number<std::int64_t>());
  answer.has_issued = reader.number<std::uint8_t>() != 0;
  // A rank that has left after a failure has told of it before.
  answer.has_left = reader.number<std::uint8_t>() != 0 && !heard_failure_;
  const auto line = lines_.find(key);
  if (line != lines_.end()) line->second->hear(from, answer);
}

}  // namespace moegrad
