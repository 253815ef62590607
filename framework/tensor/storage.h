// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/arena.h"
#include "framework/tensor/layout.h"

namespace moegrad {

/// What fills the bytes of a storage, such as a collective. When it is destroyed it blocks until
/// that has ended.
class PendingBytes {
 public:
  virtual ~PendingBytes() = default;
  /// Blocks until that has ended. Throws what went wrong, each time. May be called from any thread
  /// of the rank.
  virtual void wait() = 0;
};

/// What reads the bytes of a storage. It holds no handle of that storage.
class ReaderOfBytes {
 public:
  virtual ~ReaderOfBytes() = default;
  /// Blocks until that has ended, well or not. May be called from any thread. Error where nothing
  /// may block, as in the consumer of a collective.
  virtual void await_end() = 0;
  virtual bool has_ended() const = 0;
};

/// Where the bytes come from, for who can make them again.
class BytesOrigin {
 public:
  virtual ~BytesOrigin() = default;
};

/// The bytes behind tensors.
///
/// Note [Storage that is freed and refilled]
/// Handles may outlive the bytes: fully_shard releases a gathered parameter after forward and
/// refills it before backward, while the tensors that Functions saved keep pointing here. release()
/// and refill() do not change the version counter, because the values that come back are the ones
/// that were saved. Reading released bytes throws an error that names the parameter.
///
/// A storage made under a MetaGuard has never had bytes: it is meta until the first refill().
///
/// Note [Bytes that are under way]
/// A collective returns at once, and its result is a tensor like any other. Its storage holds what
/// fills it, and whoever first asks for the bytes waits there: an op, the engine, a program that
/// reads data(). So communication overlaps with what is computed in between, in forward and in
/// backward, and neither the engine nor an op knows of it. A failure shows at that first use. The
/// storage that a collective reads holds it, too: whoever writes there (bump_version()), or frees
/// the bytes, waits. Several ranks may have the bytes of one tensor read at the same time.
class Storage {
 public:
  /// Allocates from the current rank's arena under the current MemoryTag, unless meta_enabled().
  /// Bytes are not cleared.
  explicit Storage(std::int64_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::int64_t bytes() const { return bytes_; }
  bool released() const { return data_ == nullptr && !meta_; }
  bool is_meta() const { return meta_; }
  /// Throws Error, with the reason, if there are no bytes. Waits for what fills them.
  std::byte* data() const;
  /// From now on data() waits for `filling`, and release() for its end.
  void fill_by(std::unique_ptr<PendingBytes> filling) { filling_ = std::move(filling); }
  /// bump_version() and release() wait for `reader` until it has ended.
  void read_by(std::shared_ptr<ReaderOfBytes> reader);

  /// Gives the bytes back to the arena, as soon as nobody reads or fills them; idempotent. A meta
  /// storage counts as released from then on.
  void release();
  /// Allocates the bytes, again or for the first time, under the storage's tag. Their contents are
  /// undefined. Idempotent.
  void refill();
  void retag(MemoryTag tag);
  MemoryTag tag() const { return tag_; }

  /// Counts in-place modifications; SavedTensor compares it. bump_version() comes before one.
  std::uint64_t version() const { return version_; }
  void bump_version() {
    if (has_readers_.load(std::memory_order_acquire)) await_readers();
    ++version_;
  }

  /// Null unless somebody has said where the bytes come from.
  const BytesOrigin* origin() const { return origin_.get(); }
  void set_origin(std::shared_ptr<const BytesOrigin> origin) { origin_ = std::move(origin); }

  /// The form of FRACTAL_NZ matrices of bfloat16. It belongs to the bytes: whoever writes them anew
  /// in another form says so here, and all handles see it.
  NzPairs nz_pairs() const { return nz_pairs_; }
  void set_nz_pairs(NzPairs pairs) { nz_pairs_ = pairs; }

  /// A parameter's full name. Errors show it.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

 private:
  void await_readers();

  std::shared_ptr<Arena> arena_;  // null until there are bytes: the rank that refills gives its own
  std::byte* data_ = nullptr;
  std::int64_t bytes_;
  MemoryTag tag_;
  bool meta_ = true;
  std::uint64_t version_ = 0;
  NzPairs nz_pairs_;
  std::string name_;
  std::shared_ptr<const BytesOrigin> origin_;
  std::unique_ptr<PendingBytes> filling_;
  std::atomic<bool> has_readers_ = false;
  std::mutex readers_mutex_;
  std::vector<std::shared_ptr<ReaderOfBytes>> readers_;
};

}  // namespace moegrad
