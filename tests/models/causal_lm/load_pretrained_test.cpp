// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/load_pretrained.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"
#include "tests/framework/io/files.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/random_checkpoint.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::load_pretrained_test {
namespace {

using namespace test;

/// Two mixture layers around a dense one.
CausalLMConfig toy_config(bool tied = false) {
  auto config = test::toy_config();
  config.num_hidden_layers = 3;
  config.mlp_only_layers = {1};
  config.tie_word_embeddings = tied;
  config.dtype = Dtype::kFloat32;
  return config;
}

/// Every parameter of `model` is what the tensors say, by the tests' own mapping.
void expect_holds(const CausalLM& model, const NamedTensors& tensors) {
  for (const auto& [name, expected] : test::state_from_hugging_face(tensors, model)) {
    EXPECT_TRUE(bitwise_equal(test::find(model.state_dict(), name),
                              to_dtype(expected, model.config().dtype)))
        << name;
  }
}

/// Fused as transformers 5 keeps experts in memory: gate_up_proj [E, 2I, H], down_proj [E, H, I].
NamedTensors fuse_experts(const NamedTensors& tensors, const CausalLMConfig& config) {
  const auto e = config.num_experts, h = config.hidden_size, i = config.moe_intermediate_size;
  NamedTensors fused;
  for (const auto& tensor : tensors) {
    if (tensor.name.find(".experts.") == std::string::npos) fused.push_back(tensor);
  }
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_moe_layer(layer)) continue;
    const auto experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<float> gate_up, down;
    const auto append = [&](std::vector<float>& values, std::int64_t expert, const char* name) {
      const Tensor& tensor =
          test::find(tensors, experts + std::to_string(expert) + "." + name + ".weight");
      values.insert(values.end(), tensor.data<float>().begin(), tensor.data<float>().end());
    };
    for (std::int64_t expert = 0; expert < e; ++expert) {
      append(gate_up, expert, "gate_proj");
      append(gate_up, expert, "up_proj");
      append(down, expert, "down_proj");
    }
    fused.push_back({experts + "gate_up_proj", Tensor::from(gate_up, {e, 2 * i, h})});
    fused.push_back({experts + "down_proj", Tensor::from(down, {e, h, i})});
  }
  return fused;
}

TEST(LoadPretrained, FillsEveryParameter) {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    const auto tensors = random_checkpoint(toy_config(tied));
    save_safetensors(folder / "model.safetensors", tensors);
    for (const auto& config : {toy_config(tied), test::hugging_face_oriented(toy_config(tied))}) {
      CausalLM model(config);
      load_pretrained(model, folder / "model.safetensors");
      expect_holds(model, tensors);
    }
  }
}

TEST(LoadPretrained, TakesFusedExperts) {
  const TemporaryFolder folder;
  const auto tensors = random_checkpoint(toy_config());
  save_safetensors(folder / "model.safetensors", fuse_experts(tensors, toy_config()));
  for (const auto& config : {toy_config(), test::hugging_face_oriented(toy_config())}) {
    CausalLM model(config);
    load_pretrained(model, folder / "model.safetensors");
    expect_holds(model, tensors);
  }
}

TEST(LoadPretrained, ConvertsToTheParametersDtype) {
  const TemporaryFolder folder;
  for (const auto from : {Dtype::kBFloat16, Dtype::kFloat32, Dtype::kFloat64}) {
    const auto tensors = random_checkpoint(toy_config(), from);
    save_safetensors(folder / "model.safetensors", tensors);
    for (const auto to : {Dtype::kFloat32, Dtype::kFloat64}) {
      auto config = toy_config();
      config.dtype = to;
      CausalLM model(config);
      load_pretrained(model, folder / "model.safetensors");
      NamedTensors converted;
      for (const auto& [name, tensor] : tensors) converted.push_back({name, to_dtype(tensor, to)});
      expect_holds(model, converted);
    }
  }
}

/// A module with nothing but `values`.
class Vector final : public nn::Module {
 public:
  explicit Vector(std::int64_t n, Dtype dtype = Dtype::kFloat32)
      : values_(Tensor::zeros({n}, dtype)) {
    register_parameter("values", values_);
  }
  const Tensor& values() const { return values_; }

 private:
  Tensor values_;
};

/// A checkpoint with one tensor, "values", of these bytes.
void save_values(const std::filesystem::path& path, SafetensorsDtype dtype, SafetensorsShape shape,
                 std::span<const std::byte> bytes) {
  SafetensorsWriter writer(path, {{.name = "values", .shape = std::move(shape), .dtype = dtype}});
  writer.write("values", 0, bytes);
  writer.finish();
}

TEST(LoadPretrained, WidensEveryHalfPrecisionNumber) {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> halves;
  for (int bits = 0; bits < 0x10000; ++bits) halves.push_back(static_cast<std::uint16_t>(bits));
  save_values(folder / "x.safetensors", SafetensorsDtype::kF16, {0x10000},
              std::as_bytes(std::span(halves)));
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    Vector module(0x10000, dtype);
    load_pretrained(module, folder / "x.safetensors");
    const Tensor loaded = to_dtype(module.values(), Dtype::kFloat64);
    for (int bits = 0; bits < 0x10000; ++bits) {
      const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
      const double value = loaded.data<double>()[static_cast<std::size_t>(bits)];
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
      if (exponent == 31) {
        ASSERT_EQ(std::isnan(value), fraction != 0) << bits;
        ASSERT_EQ(std::isinf(value), fraction == 0) << bits;
      } else {
        const double expected =
            exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        ASSERT_EQ(std::abs(value), expected) << bits;
      }
    }
  }
}

TEST(LoadPretrained, KeepsTheBitsOfWhatNeedsNoConversion) {
  const TemporaryFolder folder;
  std::vector<std::uint32_t> words = {0x7f800001, 0xffc00001, 0x80000000, 1, 0xff800000};  // NaN...
  save_values(folder / "x.safetensors", SafetensorsDtype::kF32, {5},
              std::as_bytes(std::span(words)));
  Vector module(5);
  load_pretrained(module, folder / "x.safetensors");
  EXPECT_EQ(std::memcmp(module.values().storage().data(), words.data(), 20), 0);
}

TEST(LoadPretrained, ReadsTensorsThatAreNotAligned) {
  const TemporaryFolder folder;
  const std::string header = R"({"values":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_NE((8 + header.size()) % 4, 0U);
  const std::vector<float> expected = {1.5F, -2.25F};
  std::string bytes = test::little_endian(header.size()) + header;
  bytes += test::as_text(std::as_bytes(std::span(expected)));
  test::write_file(folder / "x.safetensors", bytes);
  Vector module(2);
  load_pretrained(module, folder / "x.safetensors");
  EXPECT_TRUE(bitwise_equal(module.values(), Tensor::from(expected, {2})));
}

TEST(LoadPretrained, TakesATiedParameterUnderBothNames) {
  const TemporaryFolder folder;
  auto tensors = random_checkpoint(toy_config(true));
  tensors.push_back({"lm_head.weight", test::find(tensors, "model.embed_tokens.weight")});
  save_safetensors(folder / "model.safetensors", tensors);
  CausalLM model(toy_config(true));
  load_pretrained(model, folder / "model.safetensors");
  expect_holds(model, tensors);
}

// ---- what must be refused

struct RefusedCase {
  std::string name;  // of the test
  std::function<void(NamedTensors&)> spoil;
  std::string message;  // PATH stands for the checkpoint's path
  bool tied = false;
};

void PrintTo(const RefusedCase& refused, std::ostream* out) { *out << refused.name; }

void erase(NamedTensors& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
}

/// A case in which the tensor is replaced by zeros of this shape and dtype, or added if it is new.
RefusedCase replaced(const std::string& test, const std::string& name, const Shape& shape,
                     const std::string& message, Dtype dtype = Dtype::kFloat32) {
  return {test,
          [=](NamedTensors& tensors) {
            erase(tensors, name);
            tensors.push_back({name, Tensor::zeros(shape, dtype)});
          },
          message};
}

RefusedCase missing(const std::string& test, const std::string& name) {
  return {test, [=](NamedTensors& tensors) { erase(tensors, name); },
          "load_pretrained: PATH must have tensor '" + name + "', got none"};
}

RefusedCase unexpected(const std::string& test, const std::string& name, const Shape& shape) {
  return replaced(test, name, shape,
                  "load_pretrained: PATH must hold the module's tensors alone, got '" + name + "'");
}

std::vector<RefusedCase> refused_cases() {
  const std::string experts = "model.layers.0.mlp.experts.";
  const auto shape = [](const std::string& name, const std::string& shapes) {
    return "load_pretrained: '" + name + "' must be " + shapes;
  };
  const auto dtype = [](const std::string& got) {
    return "load_pretrained: 'model.norm.weight' must be F16, BF16, F32 or F64, got " + got;
  };
  auto tied_differs =
      replaced("TiedNamesThatDiffer", "lm_head.weight", {37, 20},
               "load_pretrained: 'lm_head.weight' must equal 'model.embed_tokens.weight', to which "
               "it is tied");
  auto tied_shape = replaced("TiedNameOfWrongShape", "lm_head.weight", {37, 19},
                             shape("lm_head.weight", "[37, 20], got [37, 19]"));
  RefusedCase tied_dtype = {
      "TiedNamesOfTwoDtypes",
      [](NamedTensors& tensors) {
        const auto& first = test::find(tensors, "model.embed_tokens.weight");
        tensors.push_back({"lm_head.weight", to_dtype(first, Dtype::kFloat64)});
      },
      tied_differs.message};
  tied_differs.tied = tied_shape.tied = tied_dtype.tied = true;
  return {
      missing("NoEmbedding", "model.embed_tokens.weight"),
      missing("NoHead", "lm_head.weight"),
      missing("NoRouter", "model.layers.2.mlp.gate.weight"),
      missing("NoGateOfTheLastExpert", experts + "4.gate_proj.weight"),
      missing("NoUp", experts + "2.up_proj.weight"),
      missing("NoDown", experts + "0.down_proj.weight"),
      missing("NoDenseLayer", "model.layers.1.mlp.up_proj.weight"),
      unexpected("OneExpertMore", experts + "5.up_proj.weight", {11, 20}),
      unexpected("OneLayerMore", "model.layers.3.input_layernorm.weight", {20}),
      unexpected("ABias", "model.layers.0.self_attn.q_proj.bias", {24}),
      unexpected("ExpertsInADenseLayer", "model.layers.1.mlp.experts.0.up_proj.weight", {11, 20}),
      {"FusedAndPerExpert",
       [](NamedTensors& tensors) {
         const auto fused = fuse_experts(tensors, toy_config());
         const std::string name = "model.layers.2.mlp.experts.gate_up_proj";
         tensors.push_back({name, test::find(fused, name)});
       },
       "load_pretrained: PATH must hold the module's tensors alone, got "
       "'model.layers.2.mlp.experts.0.gate_proj.weight'"},
      replaced("NormTooLong", "model.norm.weight", {21},
               shape("model.norm.weight", "[20], got [21]")),
      replaced("NormAsAMatrix", "model.norm.weight", {1, 20},
               shape("model.norm.weight", "[20], got [1, 20]")),
      replaced("NormAsAScalar", "model.norm.weight", {},
               shape("model.norm.weight", "[20], got []")),
      replaced("ExpertTransposed", experts + "1.down_proj.weight", {11, 20},
               shape(experts + "1.down_proj.weight", "[20, 11], got [11, 20]")),
      replaced("LastExpertTooNarrow", experts + "4.up_proj.weight", {11, 19},
               shape(experts + "4.up_proj.weight", "[11, 20], got [11, 19]")),
      replaced("FusedTransposed", experts + "gate_up_proj", {5, 20, 22},
               shape(experts + "gate_up_proj", "[5, 22, 20], got [5, 20, 22]")),
      replaced("FusedWithAnExpertLess", experts + "down_proj", {4, 20, 11},
               shape(experts + "down_proj", "[5, 20, 11], got [4, 20, 11]")),
      replaced("NormOfIntegers", "model.norm.weight", {20}, dtype("I64"), Dtype::kInt64),
      tied_differs,
      tied_shape,
      tied_dtype,
  };
}

class LoadPretrainedRefuses : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(LoadPretrainedRefuses, AndWritesNothing) {
  const auto& refused = GetParam();
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  auto tensors = random_checkpoint(toy_config(refused.tied));
  refused.spoil(tensors);
  save_safetensors(path, tensors);
  CausalLM model(toy_config(refused.tied));
  NamedTensors before;
  for (const auto& [name, tensor] : model.state_dict()) before.push_back({name, clone(tensor)});

  auto expected = refused.message;
  if (const auto at = expected.find("PATH"); at != std::string::npos) {
    expected.replace(at, 4, path.string());
  }
  const auto load = [&] { load_pretrained(model, path); };
  if (expected.find(" must be F16") != std::string::npos) {
    EXPECT_EQ(message_of<DtypeError>(load), expected);
  } else if (expected.find(" must be [") != std::string::npos) {
    EXPECT_EQ(message_of<ShapeError>(load), expected);
  } else {
    EXPECT_EQ(message_of<ValueError>(load), expected);
  }
  for (const auto& [name, tensor] : before) {
    EXPECT_TRUE(bitwise_equal(test::find(model.state_dict(), name), tensor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, LoadPretrainedRefuses, ::testing::ValuesIn(refused_cases()),
                         [](const auto& test) { return test.param.name; });

TEST(LoadPretrained, RefusesDtypesWithoutArithmetic) {
  const TemporaryFolder folder;
  const std::vector<std::byte> bytes(4);
  for (const auto dtype : {SafetensorsDtype::kF8E4M3, SafetensorsDtype::kU8,
                           SafetensorsDtype::kBool, SafetensorsDtype::kI8}) {
    save_values(folder / "x.safetensors", dtype, {4}, bytes);
    Vector module(4);
    EXPECT_EQ(message_of<DtypeError>([&] { load_pretrained(module, folder / "x.safetensors"); }),
              "load_pretrained: 'values' must be F16, BF16, F32 or F64, got " +
                  std::string(to_string(dtype)));
  }
}

}  // namespace
}  // namespace moegrad::models::load_pretrained_test
