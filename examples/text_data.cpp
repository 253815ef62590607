// SPDX-License-Identifier: Apache-2.0
#include "examples/text_data.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"

namespace moegrad::examples {
namespace {

// One byte in twenty is held out.
constexpr std::int64_t kHeldOut = 20;

std::string read_king_james() {
  const auto close = [](std::FILE* pipe) { static_cast<void>(pclose(pipe)); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(
      popen("bible -f 'gen1:1-rev22:21' 2>/dev/null", "r"), close);
  std::string text;
  std::array<char, 1 << 16> block{};
  while (pipe) {
    const auto n = std::fread(block.data(), 1, block.size(), pipe.get());
    if (n == 0) break;
    text.append(block.data(), n);
  }
  check<ValueError>(!text.empty(),
                    "text: the default needs the Debian packages bible-kjv and bible-kjv-text; "
                    "install them or name a file with --text");
  return text;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check<ValueError>(file.good(), "text: cannot read file '", path, "'");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

TextData::TextData(const std::string& path, std::int64_t sequence_length)
    : TextData(path.empty() ? read_king_james() : read_file(path),
               path.empty() ? "King James text" : path, sequence_length) {}

TextData::TextData(std::string text, const std::string& name, std::int64_t sequence_length)
    : text_(std::move(text)), sequence_length_(sequence_length) {
  const auto size = std::ssize(text_);
  check<ValueError>(size > 0, "text: '", name, "' is empty");
  training_bytes_ = size - size / kHeldOut;
  // A sequence of n tokens needs n + 1 bytes, the last one a target.
  const auto shorter = std::min(training_bytes_, size - training_bytes_);
  check<ValueError>(shorter > sequence_length, "text: sequences of ", sequence_length,
                    " tokens need at least ", kHeldOut * (sequence_length + 1), " bytes, '", name,
                    "' has ", size);
}

MicroBatch TextData::pack(const std::vector<std::int64_t>& starts) const {
  const auto total = std::ssize(starts) * sequence_length_;
  MicroBatch batch{.tokens = Tensor::empty({total}, Dtype::kInt64),
                   .targets = Tensor::empty({total}, Dtype::kInt64),
                   .cu_seqlens = {0}};
  auto tokens = batch.tokens.mutable_data<std::int64_t>();
  auto targets = batch.targets.mutable_data<std::int64_t>();
  std::size_t at = 0;
  for (const auto start : starts) {
    for (std::int64_t i = start; i < start + sequence_length_; ++i, ++at) {
      tokens[at] = static_cast<unsigned char>(text_[static_cast<std::size_t>(i)]);
      targets[at] = static_cast<unsigned char>(text_[static_cast<std::size_t>(i + 1)]);
    }
    batch.cu_seqlens.push_back(static_cast<std::int64_t>(at));
  }
  return batch;
}

MicroBatch TextData::training_batch(std::uint64_t seed, std::int64_t step, std::int64_t index,
                                    std::int64_t micro_batches, std::int64_t sequences) const {
  const Random random(seed, "training sequences");
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const auto number = (step * micro_batches + index) * sequences + i;
    starts.push_back(
        random.integer(static_cast<std::uint64_t>(number), training_bytes_ - sequence_length_));
  }
  return pack(starts);
}

MicroBatch TextData::validation_batch(std::int64_t first, std::int64_t sequences) const {
  check<ValueError>(0 <= first && first + sequences <= validation_sequences(),
                    "text: validation sequences [", first, ", ", first + sequences,
                    ") asked for, there are ", validation_sequences());
  std::vector<std::int64_t> starts;
  for (std::int64_t i = first; i < first + sequences; ++i) {
    starts.push_back(training_bytes_ + i * sequence_length_);
  }
  return pack(starts);
}

std::int64_t TextData::validation_sequences() const {
  return (std::ssize(text_) - training_bytes_ - 1) / sequence_length_;
}

}  // namespace moegrad::examples
