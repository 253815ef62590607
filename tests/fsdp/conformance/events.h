// SPDX-License-Identifier: Apache-2.0
#pragma once

// Event strings: "U U0 R0 P" says that the root and layer 0 are unshard (or prefetched), layer 0 is
// resharded and the root's post-backward runs.

#include <gmock/gmock.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "fsdp/state.h"

namespace moegrad::test {

/// Passes the events whose letter is in `letters` to the mocked method, as a letter and the group:
/// "" for the root, i for "layers.i", else the name itself.
class MockEvents : public fsdp::Observer {
 public:
  explicit MockEvents(std::string letters) : letters_(std::move(letters)) {}

  MOCK_METHOD(void, event, (const std::string& event));

  void on_event(fsdp::Event what, const std::string& group) final {
    const char letter = letter_of(what);
    if (letters_.find(letter) == std::string::npos) return;
    const std::string layers = "layers.";
    const auto name = group.starts_with(layers) ? group.substr(layers.size()) : group;
    seen_ += (seen_.empty() ? "" : " ") + (letter + name);
    event(letter + name);
  }

  /// All events since the last take().
  std::string take() { return std::exchange(seen_, {}); }

 private:
  static char letter_of(fsdp::Event event) {
    switch (event) {
      case fsdp::Event::kUnshard:
      case fsdp::Event::kPrefetch:
        return 'U';
      case fsdp::Event::kReshard:
        return 'R';
      case fsdp::Event::kPostBackward:
        return 'P';
      default:
        return '-';
    }
  }

  std::string letters_;
  std::string seen_;
};

using StrictMockEvents = ::testing::StrictMock<MockEvents>;

/// Sets an observer for these letters on `root` and all below it.
inline std::shared_ptr<StrictMockEvents> observe(fsdp::State& root, const std::string& letters) {
  const auto events = std::make_shared<StrictMockEvents>(letters);
  root.set_observer(events);
  return events;
}

/// Expects that `body` causes exactly `expected`, in this order.
template <class Body>
void expect_events(StrictMockEvents& events, const std::string& expected, const Body& body) {
  {
    const ::testing::InSequence in_sequence;
    std::istringstream words(expected);
    for (std::string word; words >> word;) EXPECT_CALL(events, event(word));
  }
  body();
  EXPECT_TRUE(::testing::Mock::VerifyAndClearExpectations(&events))
      << "expected " << expected << "\n     got " << events.take();
  events.take();
}

}  // namespace moegrad::test
