// SPDX-License-Identifier: Apache-2.0
#include "tests/framework/io/recorded_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <utility>

namespace moegrad::test {
namespace {

namespace fs = std::filesystem;

RecordedDisk* recorder = nullptr;

struct Write {
  std::size_t offset;
  std::string bytes;

  void apply_to(std::string& contents) const {
    contents.resize(std::max(contents.size(), offset + bytes.size()));
    contents.replace(offset, bytes.size(), bytes);
  }
};

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Names = std::map<std::string, NodePtr>;

// One entry of a folder gone, and one come: both or neither.
struct Change {
  std::string removed;
  std::string added;
  NodePtr node;

  void apply_to(Names& names) const {
    names.erase(removed);
    if (node != nullptr) names[added] = node;
  }
};

struct Node {
  enum Kind { kFolder, kFile, kLink } kind;
  std::string durable = {};  // contents, or a link's target
  std::vector<Write> writes = {};
  Names durable_names = {};
  std::vector<Change> changes = {};

  Names names() const {
    Names all = durable_names;
    for (const auto& change : changes) change.apply_to(all);
    return all;
  }

  void flush() {
    durable_names = names();
    changes.clear();
    for (const auto& write : writes) write.apply_to(durable);
    writes.clear();
  }
};

}  // namespace

// The files below the base: what is durable, and what has been done since.
class RecordedDisk::Disk {
 public:
  void apply(const Operation& operation) {
    const auto name = operation.path.filename().string();
    switch (operation.kind) {
      case Kind::kFolder:
        parent_of(operation.path)
            ->changes.push_back({"", name, std::make_shared<Node>(Node{Node::kFolder})});
        break;
      case Kind::kLink:
        parent_of(operation.path)
            ->changes.push_back(
                {"", name, std::make_shared<Node>(Node{Node::kLink, operation.bytes})});
        break;
      case Kind::kWrite:
        // The first write also stands for the creation just before it.
        if (!parent_of(operation.path)->names().contains(name)) {
          parent_of(operation.path)
              ->changes.push_back({"", name, std::make_shared<Node>(Node{Node::kFile})});
        }
        find(operation.path)->writes.push_back({operation.offset, operation.bytes});
        break;
      case Kind::kFlush:
        find(operation.path)->flush();
        break;
      case Kind::kRename:
        EXPECT_EQ(operation.path.parent_path(), operation.other.parent_path());
        parent_of(operation.path)
            ->changes.push_back({name, operation.other.filename(), find(operation.path)});
        break;
      case Kind::kRemove:
        parent_of(operation.path)->changes.push_back({name, "", nullptr});
        break;
    }
  }

  void restore(Left left, std::uint64_t seed, const fs::path& target) const {
    std::mt19937_64 bits(seed);
    restore(*base_, left, bits, target);
  }

 private:
  static void restore(const Node& folder, Left left, std::mt19937_64& bits, const fs::path& path) {
    const auto stays = [&](Left always) {
      return left == always || (left == Left::kSome && bits() % 2 == 0);
    };
    Names names = folder.durable_names;
    for (const auto& change : folder.changes) {
      if (stays(Left::kNames)) change.apply_to(names);
    }
    for (const auto& [name, node] : names) {
      if (node->kind == Node::kFolder) {
        fs::create_directory(path / name);
        restore(*node, left, bits, path / name);
      } else if (node->kind == Node::kLink) {
        fs::create_symlink(node->durable, path / name);
      } else {
        std::string contents = node->durable;
        for (const auto& write : node->writes) {
          if (left == Left::kSome && bits() % 2 == 0) write.apply_to(contents);
        }
        std::ofstream(path / name, std::ios::binary) << contents;
      }
    }
  }

  NodePtr find(const fs::path& path) const {
    NodePtr node = base_;
    for (const auto& name : path) {
      if (name != ".") node = node->names().at(name.string());
    }
    return node;
  }
  NodePtr parent_of(const fs::path& path) const { return find(path.parent_path()); }

  NodePtr base_ = std::make_shared<Node>(Node{Node::kFolder});
};

RecordedDisk::RecordedDisk(fs::path base) : base_(fs::canonical(base)) { recorder = this; }
RecordedDisk::~RecordedDisk() { recorder = nullptr; }
RecordedDisk* RecordedDisk::current() { return recorder; }

void RecordedDisk::restore(std::size_t operations, Left left, std::uint64_t seed,
                           const fs::path& target) const {
  Disk disk;
  for (std::size_t i = 0; i < operations; ++i) disk.apply(operations_[i]);
  disk.restore(left, seed, target);
}

void RecordedDisk::record(Operation operation) {
  const auto below = [&](const fs::path& path) {
    const auto relative = fs::weakly_canonical(path.parent_path()).lexically_relative(base_);
    return (relative / path.filename()).lexically_normal();
  };
  if (operation.path == base_) {
    operation.path = ".";
  } else {
    operation.path = below(operation.path);
  }
  if (!operation.other.empty()) operation.other = below(operation.other);
  if (operation.path.string().starts_with("..")) return;  // not ours
  operations_.push_back(std::move(operation));
}

void RecordedDisk::made_folder(const fs::path& path) {
  record({.kind = Kind::kFolder, .path = path});
}
void RecordedDisk::wrote(const fs::path& path, std::size_t offset, std::string_view bytes) {
  record({.kind = Kind::kWrite, .path = path, .bytes = std::string(bytes), .offset = offset});
}
void RecordedDisk::flushed(const fs::path& path) { record({.kind = Kind::kFlush, .path = path}); }
void RecordedDisk::renamed(const fs::path& from, const fs::path& to) {
  record({.kind = Kind::kRename, .path = from, .other = to});
}
void RecordedDisk::linked(const fs::path& path, std::string_view target) {
  record({.kind = Kind::kLink, .path = path, .bytes = std::string(target)});
}
void RecordedDisk::removed(const fs::path& path) { record({.kind = Kind::kRemove, .path = path}); }

}  // namespace moegrad::test
