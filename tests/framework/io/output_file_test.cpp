// SPDX-License-Identifier: Apache-2.0
#include "framework/io/output_file.h"

#include <ios>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::output_file_test {
namespace {

using namespace test;

// What does not fit into memory is lost to a stream without a word.
TEST(OutputFile, IsNotWrittenUnlessTheStreamHasItAll) {
  const TemporaryFolder folder;
  const auto path = (folder / "file").string();
  write_file(path, "earlier");
  OutputFile file(path);
  file << "a";
  file.setstate(std::ios::badbit);
  file << "b";
  EXPECT_EQ(message_of<ValueError>([&] { file.finish(); }),
            "cannot write file '" + path + "': out of memory");
  EXPECT_EQ(read_file(path), "earlier");
}

}  // namespace
}  // namespace moegrad::output_file_test
