// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/call_stack.h"

#include <backtrace.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace moegrad {
namespace {

// A name that cannot be resolved is shown as an address.
void ignore_error(void* /*data*/, const char* /*message*/, int /*number*/) {}

backtrace_state* state() {
  // Reads the program's symbols once. The library never frees the state and locks it itself.
  static backtrace_state* const instance =
      backtrace_create_state(nullptr, /*threaded=*/1, ignore_error, nullptr);
  return instance;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string text = status == 0 ? readable.get() : name;
  // A tag of the library's ABI, which clang gives to operators, too.
  for (std::size_t at; (at = text.find("[abi:cxx11]")) != text.npos;) text.erase(at, 11);
  return text;
}

struct Frame {
  std::string function;
  std::string file;
  int line = 0;
};

// The calls at an address, innermost first: several if the compiler has inlined.
std::vector<Frame> frames_at(std::uintptr_t address) {
  std::vector<Frame> frames;
  backtrace_pcinfo(
      state(), address,
      [](void* data, std::uintptr_t, const char* file, int line, const char* function) {
        static_cast<std::vector<Frame>*>(data)->push_back(
            {function != nullptr ? demangled(function) : "", file != nullptr ? file : "", line});
        return 0;
      },
      ignore_error, &frames);
  if (frames.empty()) frames.emplace_back();
  // The symbol table has namespaces and arguments, but no inlined calls.
  backtrace_syminfo(
      state(), address,
      [](void* data, std::uintptr_t, const char* symbol, std::uintptr_t, std::uintptr_t) {
        if (symbol != nullptr) static_cast<Frame*>(data)->function = demangled(symbol);
      },
      ignore_error, &frames.back());
  return frames;
}

bool is_below_the_program(const Frame& frame) {
  return frame.function.starts_with("__libc_start") || frame.function.starts_with("start_thread") ||
         frame.function.starts_with("void std::__invoke") ||
         frame.function.starts_with("std::thread::_State");
}

// "f<...>(g<...>)" for "f<int, h<char> >(g<long>)"; operators with < or > in their names stay.
std::string without_template_arguments(const std::string& name) {
  std::string text;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool in_operator = text.ends_with("operator") || text.ends_with("operator<") ||
                             text.ends_with("operator>") || text.ends_with("operator-") ||
                             text.ends_with("operator<=");
    if (depth == 0 && in_operator && (name[i] == '<' || name[i] == '>')) {
      text += name[i];
    } else if (name[i] == '<') {
      if (depth++ == 0) text += "<...>";
    } else if (name[i] == '>' && depth > 0 && name[i - 1] != '-') {
      --depth;
    } else if (depth == 0) {
      text += name[i];
    }
  }
  return depth == 0 ? text : name;
}

}  // namespace

CallStack CallStack::capture() {
  CallStack stack;
  backtrace_simple(
      state(), /*skip=*/1,
      [](void* data, std::uintptr_t address) {
        static_cast<std::vector<std::uintptr_t>*>(data)->push_back(address);
        return 0;
      },
      ignore_error, &stack.addresses_);
  return stack;
}

std::vector<std::string> CallStack::describe(const std::vector<std::string>& hidden_files) const {
  std::vector<std::string> lines;
  for (const auto address : addresses_) {
    for (const auto& frame : frames_at(address)) {
      if (is_below_the_program(frame)) return lines;
      const bool hidden = std::ranges::any_of(
          hidden_files, [&](const std::string& suffix) { return frame.file.ends_with(suffix); });
      const bool in_library = frame.file.find("/include/c++/") != std::string::npos;
      if (hidden || in_library || frame.function.empty()) continue;
      auto line = without_template_arguments(frame.function);
      if (!frame.file.empty()) line += " (" + frame.file + ":" + std::to_string(frame.line) + ")";
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace moegrad
