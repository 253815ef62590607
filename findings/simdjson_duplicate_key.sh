#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# simdjson 3.0.1 (Debian libsimdjson-dev 3.0.1-1): of a key that occurs twice, the on-demand reader
# returns the first or the second value, by what was looked up before.
#
# Expected: one rule, "the first" (as simdjson's own DOM reader has it) or "the last" (as JSON.parse and
#     Python's json have it), and the same answer to the same question.
# Seen: a lookup starts where the last one stopped, and wraps around. Asked repeatedly, header["w"] takes
#     turns between its two values; asked once, it is the second if a key between the two was read
#     before, and the first otherwise. There is no error in any case.
# Consequence: a header of safetensors, or a config.json, that names something twice (two tools that
#     each append their entry) is not just ambiguous: a loader can check the offsets of one tensor
#     and then read the bytes of the other, and a change of the order of lookups changes the model.
# moegrad is not affected: its readers of headers and of JSON refuse a name or key that occurs twice.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download libsimdjson-dev=3.0.1-1 libsimdjson14=3.0.1-1 2>apt.log || { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done
libraries="$(dirname "$(find usr -name libsimdjson.so.14)")"

cat >lookup.cpp <<'CPP'
#include <cstdint>
#include <iostream>
#include <string>

#include "simdjson.h"
using namespace simdjson;

int main() {
  const auto header = R"({"w": {"data_offsets": [0, 8]}, "b": {"data_offsets": [8, 12]},
                          "w": {"data_offsets": [12, 20]}})"_padded;
  std::cout << "simdjson " << SIMDJSON_VERSION_MAJOR << '.' << SIMDJSON_VERSION_MINOR << '.'
            << SIMDJSON_VERSION_REVISION << '\n';

  dom::parser dom_parser;
  const dom::element document = dom_parser.parse(header);
  const auto dom_start = [&](const char* name) {
    return std::int64_t(document[name]["data_offsets"].at(0));
  };
  std::cout << "DOM: w starts at " << dom_start("w") << ", again " << dom_start("w") << '\n';

  const auto start = [](ondemand::document& file, const char* name) {
    return std::int64_t(file[name]["data_offsets"].at(0));
  };
  ondemand::parser parser;
  {
    ondemand::document file = parser.iterate(header);
    std::cout << "on demand: w starts at " << start(file, "w");
    for (int again = 0; again < 3; ++again) std::cout << ", again " << start(file, "w");
    std::cout << '\n';
  }
  {
    ondemand::document file = parser.iterate(header);
    std::cout << "on demand, after b at " << start(file, "b");
    std::cout << ": w starts at " << start(file, "w") << '\n';
  }
}
CPP
g++ -std=c++17 -O1 -I usr/include lookup.cpp -o lookup "$libraries/libsimdjson.so.14"
LD_LIBRARY_PATH="$libraries" ./lookup | tee seen

diff - seen <<'TEXT' && echo "as recorded"
simdjson 3.0.1
DOM: w starts at 0, again 0
on demand: w starts at 0, again 12, again 0, again 12
on demand, after b at 8: w starts at 12
TEXT
