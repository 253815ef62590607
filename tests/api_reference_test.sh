#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The API reference is made without a warning, and has what a user looks for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

# doxygen_with LINE...: with docs/Doxyfile and these lines.
doxygen_with() { { cat docs/Doxyfile; printf '%s\n' "OUTPUT_DIRECTORY=$folder" "$@"; } | doxygen -; }

# A header with a mistake in its comment, to see that one is noticed.
printf '/// \\file\n\n/// Text.\n/// \\param b bad\nvoid g(int a);\n' >"$folder/planted.h"
if doxygen_with "INPUT=$folder/planted.h" "USE_MDFILE_AS_MAINPAGE=" 2>/dev/null; then
  echo "api_reference_test: a planted mistake went unnoticed"
  exit 1
fi
rm -rf "$folder"/html

# The headers and pages of the repository alone, whatever else stands beside them.
mapfile -t inputs < <(sed -n 's/^INPUT *= *//p' docs/Doxyfile | tr ' ' '\n')
files="$(python3 tests/repository_files.py "${inputs[@]%%/*}" | grep -E '\.(h|md)$' | tr '\n' ' ')"
[[ $files == *framework/tensor/tensor.h* ]]
doxygen_with "INPUT=$files"
for name in Tensor Function CheckpointSaver; do
  ls "$folder"/html/classmoegrad_1_1"$name".html >/dev/null
done
grep -q fully_shard "$folder"/html/namespacemoegrad_1_1fsdp.html
grep -q expert_parallel "$folder"/html/namespacemoegrad_1_1parallel.html
echo "api_reference_test: ok"
