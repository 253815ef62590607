// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/program_identity.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"

namespace moegrad::mpi {
namespace {

// The arguments after the program's name, which may be a different path on each host.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string shown;
  for (auto at = all.find('\0'); at != std::string::npos && at + 1 < all.size();) {
    const auto end = all.find('\0', at + 1);
    shown += ' ' + all.substr(at + 1, end - at - 1);
    at = end;
  }
  std::ranges::replace(shown, '\n', ' ');
  // A long one is compared by what it begins with and a checksum.
  constexpr std::size_t kShown = 2048;
  if (shown.size() <= kShown) return shown;
  const auto sum = crc32c(std::as_bytes(std::span(shown)));
  return shown.substr(0, kShown) + "... (checksum " + std::to_string(sum) + ")";
}

std::uint32_t checksum_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> buffer(std::size_t{1} << 20);
  std::uint32_t sum = 0;
  while (file) {
    file.read(buffer.data(), std::ssize(buffer));
    const auto got = static_cast<std::size_t>(file.gcount());
    sum = crc32c(std::as_bytes(std::span(buffer).first(got)), sum);
  }
  return sum;
}

}  // namespace

std::string program_identity(int world_size, const LaunchOptions& options) {
  std::ostringstream text;
  static const auto checksum = checksum_of_program();  // a program may launch many times
  text << "program with checksum " << checksum << '\n'
       << "command line" << command_line() << '\n'
       << "launch of " << world_size << " ranks, deadline " << options.deadline.count()
       << " ms, pieces of " << options.piece_bytes << " bytes, check_nan " << options.check_nan;
  for (const auto& [queue, priority] : options.priorities) {
    if (priority != 0) text << ", priority " << priority << " of queue " << to_string(queue);
  }
  return text.str();
}

void check_same_program(const std::vector<std::string>& identities) {
  for (std::size_t rank = 1; rank < identities.size(); ++rank) {
    if (identities[rank] == identities[0]) continue;
    std::istringstream own(identities[rank]), first(identities[0]);
    std::string line, line_of_0;
    while (std::getline(own, line) && std::getline(first, line_of_0) && line == line_of_0) {
    }
    check<ValueError>(false, "launch_mpi: all ranks must run the same program in the same way; ",
                      "rank 0 has ", line_of_0, ", rank ", rank, " has ", line);
  }
}

}  // namespace moegrad::mpi
