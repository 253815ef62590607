// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/load_pretrained.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "framework/distributed/shard_runs.h"
#include "framework/distributed/slow_storage.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"
#include "framework/runtime/utf8.h"
#include "models/causal_lm/family.h"
#include "models/causal_lm/hf_layout.h"
#include "models/hf_checkpoint.h"

namespace moegrad::models {
namespace {

using FileDtype = SafetensorsDtype;

/// IEEE half precision: 1 sign, 5 exponent, 10 fraction bits.
struct Half {
  std::uint16_t bits = 0;

  explicit operator float() const {
    const auto sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fU;
    const std::uint32_t fraction = bits & 0x3ffU;
    if (exponent == 0x1f) {  // infinity, NaN
      return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
    }
    if (exponent == 0) {  // zero, subnormal: fraction * 2^-24
      const auto magnitude = static_cast<float>(fraction) * 0x1p-24F;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }
};

template <class To, class From>
To widen(From value) {
  if constexpr (sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class To, class From>
void fill(const HfPiece& piece, std::span<const std::byte> tensor, std::span<To> stored,
          std::int64_t columns) {
  for_each_element(piece, columns, [&](std::int64_t to, std::int64_t from) {
    From value;
    std::memcpy(&value, tensor.data() + static_cast<std::size_t>(from) * sizeof(From),
                sizeof(From));
    stored[static_cast<std::size_t>(to)] = widen<To>(value);
  });
}

template <class To>
void fill(const HfPiece& piece, const HfCheckpoint::Entry& source, std::span<To> stored,
          std::int64_t columns) {
  switch (source.entry->dtype) {
    case FileDtype::kF16:
      return fill<To, Half>(piece, source.bytes(), stored, columns);
    case FileDtype::kBF16:
      return fill<To, BFloat16>(piece, source.bytes(), stored, columns);
    case FileDtype::kF32:
      return fill<To, float>(piece, source.bytes(), stored, columns);
    default:
      return fill<To, double>(piece, source.bytes(), stored, columns);
  }
}

bool is_supported(FileDtype dtype) {
  return dtype == FileDtype::kF16 || dtype == FileDtype::kBF16 || dtype == FileDtype::kF32 ||
         dtype == FileDtype::kF64;
}

/// A parameter and the tensors of the checkpoint that it takes.
class Target {
 public:
  Target(const nn::ParameterSlot& slot, const HfCheckpoint& checkpoint, const HfNames& names)
      : slot_(slot), checkpoint_(&checkpoint), names_(names) {
    shape_ = global_shape(*slot.tensor);
    // A fused tensor, or another one, has the module's own name in what transformers 5 may write.
    if (checkpoint.find(slot.name) != nullptr) experts_ = HfExperts::kFused;
  }

  const std::string& name() const { return slot_.name; }
  const Tensor& tensor() const { return *slot_.tensor; }

  /// Checks the tensors of the whole parameter, so that all ranks get the same result, and adds
  /// their names to `used`.
  void check_tensors(std::set<std::string>& used) const {
    for (const auto& piece : rows(0, shape_[0])) {
      if (!used.insert(piece.name).second) continue;  // fused
      const auto* const found = checkpoint_->find(piece.name);
      check<ValueError>(found != nullptr, "load_pretrained: ", checkpoint_->path().string(),
                        " must have tensor ", in_quotes(piece.name), ", got none");
      const auto& entry = *found->entry;
      check<ShapeError>(std::ranges::equal(entry.shape.dims(), piece.shape),
                        "load_pretrained: ", in_quotes(piece.name), " must be ", piece.shape,
                        ", got ", Shape(entry.shape.dims()));
      check<DtypeError>(is_supported(entry.dtype), "load_pretrained: ", in_quotes(piece.name),
                        " must be F16, BF16, F32 or F64, got ", entry.dtype);
    }
  }

  /// Fills this rank's part of the parameter.
  void load() const {
    Tensor own = slot_.parameter().detach();
    dispatch_floating(own.dtype(), [&]<class T>() {
      const std::span<T> stored = own.mutable_data<T>();
      for (const auto& piece : own_pieces()) {
        fill<T>(piece, *checkpoint_->find(piece.name), stored, stored_columns(own.shape()));
      }
    });
  }

 private:
  std::vector<HfPiece> rows(std::int64_t begin, std::int64_t end) const {
    return hugging_face_pieces(slot_.name, slot_.layout, shape_, begin, end, experts_, names_);
  }

  std::vector<HfPiece> own_pieces() const {
    const auto [begin, shape] = shard_box(slot_.parameter());
    const auto own_rows = rows(begin[0], begin[0] + shape[0]);
    if (shape_.ndim() < 2) return own_rows;
    return cut_columns(own_rows, begin[1], begin[1] + shape[1]);
  }

  nn::ParameterSlot slot_;
  const HfCheckpoint* checkpoint_;
  Shape shape_;  // of the whole parameter
  HfExperts experts_ = HfExperts::kPerExpert;
  HfNames names_;
};

/// Whether both tensors have the same bits in the files. All ranks get the same result.
bool identical(const HfCheckpoint::Entry* a, const HfCheckpoint::Entry* b) {
  return a != nullptr && b != nullptr && a->entry->dtype == b->entry->dtype &&
         std::ranges::equal(a->bytes(), b->bytes());
}

/// Whether a tensor holds what rope computes by itself: files of transformers before 4.32 have
/// such.
bool is_rope_table(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

/// Whether a tensor belongs to a layer that predicts further tokens, whatever config.json says of
/// such layers: one behind the others, which joins an embedding to the hidden state (eh_proj).
bool is_of_prediction_layer(std::string_view name, const CausalLMConfig& config,
                            const HfCheckpoint& checkpoint) {
  constexpr std::string_view kLayers = "model.layers.";
  if (config.model_type != ModelType::kGlm4Moe || !name.starts_with(kLayers)) return false;
  const auto number = name.substr(kLayers.size());
  std::int64_t layer = -1;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), layer);
  if (read.ec != std::errc() || layer < config.num_hidden_layers) return false;
  const auto folder = std::string(name.data(), read.ptr) + ".";
  return name.starts_with(folder) && checkpoint.find(folder + "eh_proj.weight") != nullptr;
}

// `is_elsewhere`: whether a tensor of that name belongs to another part of the model, or to none.
void load(nn::Module& module, const std::filesystem::path& path, const HfNames& names,
          const std::function<bool(std::string_view name, const HfCheckpoint& checkpoint)>&
              is_elsewhere) {
  const SlowStorage storage("reading " + path.string());
  const HfCheckpoint checkpoint(path);
  if (!checkpoint.warning().empty() && RankContext::current().rank() == 0) {
    log(LogLevel::kWarning, "load_pretrained: " + checkpoint.warning());
  }
  module.restore_parameters();
  std::vector<Target> targets;
  std::set<std::string> used;
  auto slots = module.parameter_slots();
  for (const auto& buffer : module.buffer_slots()) {
    const bool is_kept = buffer.persistent && is_floating(buffer.tensor->dtype());
    if (is_kept) slots.push_back({.name = buffer.name, .tensor = buffer.tensor, .layout = {}});
  }
  for (const auto& slot : slots) {
    const Target target(slot, checkpoint, names);
    const auto first = std::ranges::find_if(
        targets, [&](const Target& seen) { return seen.tensor().is(slot.parameter()); });
    if (first == targets.end()) {
      target.check_tensors(used);
      targets.push_back(target);
    } else if (checkpoint.find(slot.name) != nullptr) {
      target.check_tensors(used);
      check<ValueError>(identical(checkpoint.find(slot.name), checkpoint.find(first->name())),
                        "load_pretrained: ", in_quotes(slot.name), " must equal ",
                        in_quotes(first->name()), ", to which it is tied");
    }
  }
  for (const auto& [name, entry] : checkpoint.tensors()) {
    check<ValueError>(used.contains(name) || is_rope_table(name) || is_elsewhere(name, checkpoint),
                      "load_pretrained: ", checkpoint.path().string(),
                      " must hold the module's tensors alone, got ", in_quotes(name));
  }
  for (const auto& target : targets) target.load();
}

}  // namespace

void load_pretrained(nn::Module& module, const std::filesystem::path& path) {
  load(module, path, {}, [](std::string_view, const HfCheckpoint&) { return false; });
}

void load_pretrained(CausalLM& model, const std::filesystem::path& path) {
  load(model, path, family_of(model.config()).names,
       [&](std::string_view name, const HfCheckpoint& checkpoint) {
         return model.is_elsewhere(name) ||
                is_of_prediction_layer(name, model.config(), checkpoint);
       });
}

}  // namespace moegrad::models
