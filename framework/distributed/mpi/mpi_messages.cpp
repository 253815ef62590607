// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other beside their collectives (Control).
#include <utility>

#include "framework/distributed/mpi/mpi_hub.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/runtime/byte_stream.h"
#include "framework/runtime/log.h"

namespace moegrad::mpi {
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

void MpiHub::tell(int rank, std::vector<std::byte> message) {
  control_->send(rank, std::move(message));
  process_.ring(rank);
}

void MpiHub::tell_end() {
  {
    const std::lock_guard lock(mutex_);
    if (!body_ended_ || failure_ || told_end_) return;
    told_end_ = true;
  }
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_) tell(rank, begin_message(Message::kEnd).take());
  }
}

void MpiHub::tell_failure() {
  auto writer = begin_message(Message::kFailure);
  {
    const std::lock_guard lock(mutex_);
    const auto& failure = *failure_;
    writer.text(std::string_view(failure.cause).substr(0, kLongestCause));
    writer.text(std::string_view(failure.origin).substr(0, kLongestCause));
    write(writer, failure.line);
    writer.number(failure.sequence);
    writer.number(static_cast<std::uint8_t>(failure.rank_threw));
  }
  const auto message = writer.take();
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    try {
      tell(rank, message);
    } catch (const Error& error) {  // the others shall know all the same
      log(LogLevel::kDebug, error.what());
    }
  }
  if (rank_ == 0) return;
  std::vector<HistoryLine> lines;
  {
    const std::lock_guard lock(mutex_);
    lines = *histories_[static_cast<std::size_t>(rank_)];
  }
  // The latest first, as many as there is room for.
  auto of_history = begin_message(Message::kHistory);
  std::size_t room = Control::kBytes - 64;
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

void MpiHub::hear(int from, std::span<const std::byte> message) {
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

void MpiHub::hear_failure(ByteReader& reader) {
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

void MpiHub::hear_history(int from, ByteReader& reader) {
  std::vector<HistoryLine> lines;
  while (!reader.at_end()) {
    HistoryLine line;
    for (auto* const text :
         {&line.state, &line.where, &line.sequence, &line.signature, &line.label}) {
      *text = reader.text();
    }
    lines.insert(lines.begin(), std::move(line));
  }
  const std::lock_guard lock(mutex_);
  histories_[static_cast<std::size_t>(from)] = std::move(lines);
}

void MpiHub::ask(int rank, const LineKey& line, std::int64_t sequence,
                 CollectiveClock::duration waited) {
  auto writer = begin_message(Message::kQuestion);
  write(writer, line);
  writer.number(sequence);
  writer.number(static_cast<std::int64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count()));
  tell(rank, writer.take());
  ++unanswered_;
}

void MpiHub::hear_question(int from, ByteReader& reader) {
  const auto key = read_line_key(reader);
  const auto sequence = reader.number<std::int64_t>();
  const std::chrono::nanoseconds waited(reader.number<std::int64_t>());
  const auto group = groups_.find(key.group);
  auto answer = begin_message(Message::kAnswer);
  write(answer, key);
  answer.number(sequence);
  {
    const std::lock_guard lock(mutex_);
    const auto excused = excuses_.within(
        waited, group == groups_.end() ? world_.get() : group->second.get(), world_.get());
    answer.number(static_cast<std::int64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(excused).count()));
    // A call that is on its way from another thread to this one has been issued, too.
    const bool issued = has_issued(across(key), sequence) || !inbox_.empty();
    answer.number(static_cast<std::uint8_t>(issued));
    answer.number(static_cast<std::uint8_t>(body_ended_));
  }
  tell(from, answer.take());
}

void MpiHub::hear_answer(int from, ByteReader& reader) {
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

}  // namespace moegrad::mpi
