// SPDX-License-Identifier: Apache-2.0
#include "framework/io/same_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <system_error>

#include "framework/distributed/collectives.h"
#include "framework/distributed/slow_storage.h"
#include "framework/io/checkpoint_manifest.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

namespace fs = std::filesystem;

struct Seen {
  std::string names;   // and sizes, one per line
  std::string copies;  // which files they are, whatever the host
};

Seen look_at(std::string_view what, const std::vector<fs::path>& files) {
  std::ostringstream names, copies;
  for (const auto& path : files) {
    struct stat status = {};
    const int error = stat(path.c_str(), &status) == 0 ? 0 : errno;
    check(error == 0, what, ": ", path.string(), " must be readable, got ",
          std::generic_category().message(error));
    names << in_quotes(path.filename().string()) << " of " << status.st_size << " bytes\n";
    // No program can set ctim, so two files on two hosts have the same one, to the nanosecond, and
    // the same number only if they are one file, or on copies of one disk.
    copies << status.st_ino << ' ' << status.st_ctim.tv_sec << ' ' << status.st_ctim.tv_nsec << ' '
           << status.st_mtim.tv_sec << ' ' << status.st_mtim.tv_nsec << '\n';
  }
  return {names.str(), copies.str()};
}

void check_same_names(std::string_view what, const std::vector<std::string>& names) {
  for (std::size_t rank = 1; rank < names.size(); ++rank) {
    if (names[rank] == names[0]) continue;
    std::istringstream first(names[0]), other(names[rank]);
    std::string of_0, own;
    while (of_0 == own) {
      if (!std::getline(first, of_0)) of_0 = "no more";
      if (!std::getline(other, own)) own = "no more";
    }
    check<ValueError>(false, what, ": all ranks must read the same files, rank 0 has ", of_0,
                      ", rank ", rank, " has ", own);
  }
}

}  // namespace

void check_same_files(std::string_view what, const std::shared_ptr<ProcessGroup>& group,
                      const std::vector<fs::path>& files) {
  if (group == nullptr || group->size() == 1) return;
  const CollectiveOptions label = {.label = "files"};
  const auto own = look_at(what, files);
  check_same_names(what, all_gather_texts(group, own.names, label));
  const auto copies = all_gather_texts(group, own.copies, label);
  if (ranks_that_differ(copies).empty()) return;

  std::map<std::string_view, std::vector<std::size_t>> together;  // ranks that see the same copies
  for (std::size_t rank = 0; rank < copies.size(); ++rank) together[copies[rank]].push_back(rank);
  // They deal the files out among themselves.
  const auto reader_of = [&](std::size_t file, std::size_t rank) {
    const auto& ranks = together.at(copies[rank]);
    return ranks[file % ranks.size()];
  };
  const auto rank = static_cast<std::size_t>(group->rank());
  std::vector<std::int64_t> checksums(files.size()), all(files.size() * copies.size());
  {
    const SlowStorage storage(group, std::string(what) + ": reading files");
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (reader_of(i, rank) == rank) checksums[i] = describe_file(files[i]).crc32c;
    }
  }
  all_gather(*group, checksums, std::span(all), label);
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::vector<std::string> seen;  // of each rank
    for (std::size_t r = 0; r < copies.size(); ++r) {
      seen.push_back(std::to_string(all[reader_of(i, r) * files.size() + i]));
    }
    const auto others = ranks_that_differ(seen);
    check<ValueError>(others.empty(), what, ": all ranks must read the same ",
                      in_quotes(files[i].filename().string()),
                      ", got others than rank 0's on rank ", others);
  }
}

}  // namespace moegrad
