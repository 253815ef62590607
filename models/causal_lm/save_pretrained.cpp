// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/save_pretrained.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "framework/distributed/gather_shards.h"
#include "framework/distributed/process_group.h"
#include "framework/distributed/shard_runs.h"
#include "framework/io/atomic_file.h"
#include "framework/io/input_file.h"
#include "framework/io/safetensors_writer.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/family.h"
#include "models/causal_lm/hf_layout.h"
#include "models/hf_checkpoint.h"

namespace moegrad::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigFile = "config.json";

constexpr std::string_view kGenerationFile = "generation_config.json";

/// What else belongs to a model in a folder of Hugging Face.
constexpr std::array kCopiedFiles = std::to_array<std::string_view>(
    {"added_tokens.json", "chat_template.jinja", "chat_template.json", kGenerationFile,
     "merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
     "tokenizer_config.json", "vocab.json"});
/// A tokenizer has one of these.
constexpr std::array kVocabularies =
    std::to_array<std::string_view>({"tokenizer.json", "tokenizer.model", "vocab.json"});

/// A tensor to write, and of which pieces of a parameter it consists.
struct HfTensor {
  std::string name;
  Shape shape;
  std::vector<HfPiece> pieces = {};
};

/// A parameter or buffer and the tensors to write for it.
struct Source {
  Tensor tensor;
  Shape shape;
  Dtype dtype;  // to write
  std::vector<HfTensor> tensors = {};
};

Source source_of(const std::string& name, const Tensor& tensor, const nn::ParameterLayout& layout,
                 HfExperts experts, const HfNames& names) {
  Source source{.tensor = tensor, .shape = global_shape(tensor), .dtype = tensor.dtype()};
  for (auto& piece :
       hugging_face_pieces(name, layout, source.shape, 0, source.shape[0], experts, names)) {
    // The pieces of a fused tensor follow each other.
    if (source.tensors.empty() || source.tensors.back().name != piece.name) {
      source.tensors.push_back({.name = piece.name, .shape = piece.shape});
    }
    source.tensors.back().pieces.push_back(std::move(piece));
  }
  return source;
}

std::vector<Source> list_sources(const nn::Module& module, const SavePretrainedOptions& options,
                                 const HfNames& names) {
  std::vector<Source> sources;
  for (const auto& slot : module.distinct_parameters()) {
    auto source = source_of(slot.name, slot.parameter(), slot.layout, options.experts, names);
    source.dtype = options.dtype.value_or(source.dtype);
    sources.push_back(std::move(source));
  }
  for (const auto& slot : module.buffer_slots()) {
    if (!slot.persistent || !is_floating(slot.tensor->dtype())) continue;
    sources.push_back(source_of(slot.name, *slot.tensor, {}, options.experts, names));
  }
  return sources;
}

/// The tensors in the order of writing, divided into files. A new file begins before the tensor
/// that would make a file larger than the limit.
std::vector<std::vector<SafetensorsEntry>> plan_files(const std::vector<Source>& sources,
                                                      std::int64_t max_bytes) {
  std::vector<std::vector<SafetensorsEntry>> files(1);
  std::int64_t file_bytes = 0;
  for (const auto& source : sources) {
    for (const auto& [name, shape, pieces] : source.tensors) {
      const auto bytes = shape.numel() * size_of(source.dtype);
      if (!files.back().empty() && bytes > max_bytes - file_bytes) {
        files.emplace_back();
        file_bytes = 0;
      }
      file_bytes += bytes;
      files.back().push_back({.name = name,
                              .shape = SafetensorsShape({shape.begin(), shape.end()}),
                              .dtype = safetensors_dtype(source.dtype)});
    }
  }
  return files;
}

std::string file_name(std::size_t i, std::size_t files) {
  if (files == 1) return std::string(kSingleFile);
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1, files);
  return name.data();
}

/// model-NNNNN-of-NNNNN.safetensors
bool is_shard_name(const std::string& name) {
  const std::string pattern = "model-00000-of-00000.safetensors";
  return std::ranges::equal(name, pattern, [](char c, char p) {
    return p == '0' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == p;
  });
}

bool is_weights_name(const std::string& name) {
  return name == kSingleFile || name == kIndexFile || is_shard_name(name);
}

void require(const std::error_code& failure, const char* step, const fs::path& path) {
  check(!failure, "save_pretrained: cannot ", step, " ", path.string(), ": ", failure.message());
}

void remove_if_there(const fs::path& path) {
  std::error_code failure;
  fs::remove(path, failure);
  require(failure, "remove", path);
}

void copy_durably(const fs::path& from, const fs::path& to) {
  constexpr std::int64_t kBlock = 1 << 20;
  const InputFile input(from, "save_pretrained");
  AtomicFile output(to);
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < input.size(); at += kBlock) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, input.size() - at)));
    input.read(at, block);
    output.write_at(static_cast<std::uint64_t>(at), block);
  }
  output.commit();
}

/// A link that leads nowhere is there, and cannot be read.
bool is_there(const fs::path& path) {
  std::error_code failure;
  return fs::symlink_status(path, failure).type() != fs::file_type::not_found;
}

/// Copies kCopiedFiles, as far as they are there. Where a tokenizer is, the other files of an
/// earlier one go.
void copy_files(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  if (fs::equivalent(from, to, failure)) return;
  const bool tokenizer =
      std::ranges::any_of(kVocabularies, [&](const auto name) { return is_there(from / name); });
  for (const auto name : kCopiedFiles) {
    if (is_there(from / name)) {
      copy_durably(from / name, to / name);
    } else if (tokenizer && name != kGenerationFile) {
      remove_if_there(to / name);
    }
  }
}

/// Runs on rank 0: takes whole parameters one after the other.
class Writer {
 public:
  Writer(fs::path folder, std::vector<std::vector<SafetensorsEntry>> files)
      : folder_(std::move(folder)), files_(std::move(files)) {
    std::error_code failure;
    fs::create_directories(folder_, failure);
    require(failure, "create", folder_);
    // An earlier index might point to files of both calls.
    if (files_.size() > 1) remove_if_there(folder_ / kIndexFile);
    open_file();
  }

  void write(const Source& source, const Tensor& whole) {
    const auto size = size_of(whole.dtype());
    const auto* const stored = whole.bytes().data();
    const auto columns = stored_columns(source.shape);
    std::vector<std::byte> turned;
    for (const auto& tensor : source.tensors) {
      const auto bytes = static_cast<std::size_t>(tensor.shape.numel() * size);
      if (in_file_ == files_[file_].size()) {
        close_file();
        ++file_;
        open_file();
      }
      ++in_file_;
      if (tensor.pieces[0].transposed) {
        turned.resize(bytes);
        for (const auto& piece : tensor.pieces) {
          copy_to_hugging_face(piece, stored, columns, turned.data(), size);
        }
        current_->write(tensor.name, 0, turned);
      } else {  // whole rows, as they are
        const auto first = tensor.pieces[0].stored_row;
        current_->write(tensor.name, 0, {stored + first * columns * size, bytes});
      }
      total_bytes_ += bytes;
    }
  }

  void finish() {
    close_file();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < files_.size(); ++i) names.push_back(file_name(i, files_.size()));
    if (files_.size() > 1) {
      write_index(names);
      names.emplace_back(kIndexFile);
    }
    remove_all_but(names);
  }

 private:
  void open_file() {
    const std::map<std::string, std::string> metadata = {{"format", "pt"}};  // for transformers
    current_ = std::make_unique<SafetensorsWriter>(folder_ / file_name(file_, files_.size()),
                                                   files_[file_], metadata);
    in_file_ = 0;
  }

  void close_file() {
    current_->finish();
    current_.reset();
  }

  /// Removes the files of earlier weights.
  void remove_all_but(const std::vector<std::string>& names) const {
    std::error_code failure;
    std::vector<fs::path> stale;
    for (const auto& entry : fs::directory_iterator(folder_, failure)) {
      const auto name = entry.path().filename().string();
      const bool stays = std::ranges::find(names, name) != names.end();
      if (is_weights_name(name) && !stays) stale.push_back(entry.path());
    }
    require(failure, "list", folder_);
    for (const auto& path : stale) remove_if_there(path);
  }

  void write_index(const std::vector<std::string>& names) const {
    nlohmann::json weight_map = nlohmann::json::object();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const auto& entry : files_[i]) weight_map[entry.name] = names[i];
    }
    const nlohmann::json index = {{"metadata", {{"total_size", total_bytes_}}},
                                  {"weight_map", std::move(weight_map)}};
    write_file_atomically(folder_ / kIndexFile, index.dump(/*indent=*/2) + "\n");
  }

  fs::path folder_;
  std::vector<std::vector<SafetensorsEntry>> files_;
  std::size_t file_ = 0;     // the file that is being written
  std::size_t in_file_ = 0;  // tensors of this file that have been written
  std::unique_ptr<SafetensorsWriter> current_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

void save_pretrained(CausalLM& model, const fs::path& folder,
                     const SavePretrainedOptions& options) {
  check<ValueError>(options.max_shard_bytes >= 1,
                    "save_pretrained: max_shard_bytes must be at least 1, got ",
                    options.max_shard_bytes);
  check<ValueError>(model.is_whole(),
                    "save_pretrained: model must be whole, got a part; save a checkpoint instead");
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    const bool mixture = model.config().is_moe_layer(static_cast<std::int64_t>(i));
    check<ValueError>(
        model.layers()[i].is_moe() == mixture, "save_pretrained: mlp of layer ", i,
        " must be the mixture that config.json says, got another module in its place");
  }
  const auto dtype = options.dtype.value_or(model.config().dtype);
  check<DtypeError>(holds_reals(dtype), "save_pretrained: dtype must be of reals, got ", dtype);
  model.restore_parameters();
  const auto& context = RankContext::current();
  const auto sources = list_sources(model, options, family_of(model.config()).names);
  std::unique_ptr<Writer> writer;
  if (context.rank() == 0) {
    check_export_folder(folder, options);
    writer = std::make_unique<Writer>(folder, plan_files(sources, options.max_shard_bytes));
  }
  for (const auto& source : sources) {
    const auto& spec = source.tensor.shard_spec();
    const Tensor whole = spec ? gather_shards(source.tensor, *spec) : source.tensor.detach();
    if (!writer) continue;
    const bool as_it_is = whole.dtype() == source.dtype;
    writer->write(source, as_it_is ? whole : to_dtype(whole, source.dtype));
  }
  if (writer) {
    writer->finish();
    auto config = model.config();
    config.num_nextn_predict_layers = 0;  // such layers are not part of the model
    write_file_atomically(folder / kConfigFile, to_json(config, dtype));
    if (!options.copy_from.empty()) copy_files(options.copy_from, folder);
  }
  // No rank returns before the files are there.
  if (context.group() != nullptr) context.group()->barrier()->wait();
}

bool is_export_name(const std::string& name) {
  return is_weights_name(name) || name == kConfigFile ||
         std::ranges::find(kCopiedFiles, name) != kCopiedFiles.end();
}

void check_export_folder(const fs::path& folder, const SavePretrainedOptions& options) {
  std::error_code failure;  // ignored: writing to the folder reports it
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const auto name = entry.path().filename().string();
    const bool own = is_weights_name(name) || name == kConfigFile;
    if (!own && (options.copy_from.empty() || !is_export_name(name))) continue;
    check<ValueError>(!entry.is_symlink(failure), "save_pretrained: ", entry.path().string(),
                      " must be a file of this folder alone, got a link to ",
                      fs::read_symlink(entry.path(), failure).string());
    check<ValueError>(!entry.is_directory(failure), "save_pretrained: ", entry.path().string(),
                      " must be a file, got a folder");
  }
  if (options.copy_from.empty()) return;
  for (const auto name : kCopiedFiles) {
    const auto path = options.copy_from / name;
    if (is_there(path)) const InputFile readable(path, "save_pretrained");
  }
}

}  // namespace moegrad::models
