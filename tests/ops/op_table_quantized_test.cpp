// SPDX-License-Identifier: Apache-2.0
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/ops/op_table_test.h"

namespace moegrad::test::op_table_quantized_test {
namespace {

class OpTableQuantized : public ::testing::TestWithParam<OpEntry> {};

// Views and copies; mm_all_reduce, which reads them, is no entry.
const std::set<std::string> kTakesThem{"cast",      "clone",     "contiguous", "expand", "flatten",
                                       "narrow",    "permute",   "reshape",    "select", "squeeze",
                                       "transpose", "unsqueeze", "view"};

// Blocks of them cannot be made.
std::vector<OpEntry> entries() {
  auto all = op_table();
  std::erase_if(all, [](const OpEntry& entry) { return entry.op == "nz_to_nd"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(, OpTableQuantized, ::testing::ValuesIn(entries()), test_name);

TEST_P(OpTableQuantized, TakesInt32AndInt8WhereItMovesElementsElseRefusesThemByName) {
  const auto& entry = GetParam();
  for (const auto& sample : entry.samples) {
    for (const auto dtype : {Dtype::kInt32, Dtype::kInt8}) {
      for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
        SCOPED_TRACE(sample.what + ", input " + std::to_string(i));
        auto inputs = draw_inputs(sample, Dtype::kFloat32, 1);
        inputs[i] = Tensor::ones(inputs[i].shape(), dtype);
        const auto raised = raised_by([&] { entry.run(inputs, sample.args); });
        if (kTakesThem.contains(entry.op)) {
          EXPECT_EQ(raised, "nothing");
        } else {
          // An operator, and what makes an op's arguments, has a name of its own.
          const auto text = std::string(to_string(dtype));
          EXPECT_TRUE(
              std::regex_match(raised, std::regex("DtypeError: [a-z0-9_]+: .*" + text + ".*")))
              << raised;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::test::op_table_quantized_test
