#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Transformers.js 4.3.2 (@huggingface/transformers): layer_norm adds eps to the deviation.
#
# Expected: (x - mean) / sqrt(variance + eps), as in PyTorch, whose name and whose default eps = 1e-5
#     it has.
# Seen: (x - mean) / (sqrt(variance) + eps). Where the deviation is large both agree to five digits, so a
#     test on random rows passes. At a deviation of 1e-3 the result is 3.3 times too large, at 1e-4 29
#     times: such a row comes out with deviation 0.9 rather than 0.03.
# Consequence: embeddings that end in layer_norm (those which are then cut to fewer dimensions) differ
#     from the model's own where a row is nearly constant, and noise is blown up to full size.
# moegrad is not affected: ops::layer_norm and ops::rms_norm add eps to the mean square.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix . @huggingface/transformers@4.3.2 \
  >npm.log 2>&1 || { cat npm.log; exit 1; }

cat >norm.mjs <<'JS'
import { env, layer_norm, Tensor } from '@huggingface/transformers';

console.log('Transformers.js ' + env.version);
for (const deviation of [1, 1e-2, 1e-3, 1e-4]) {
  const row = [-1, 1, -1, 1].map((x) => x * deviation);  // mean 0
  const y = layer_norm(new Tensor('float32', Float32Array.from(row), [1, 4]), [4]).data[1];
  const right = deviation / Math.sqrt(deviation ** 2 + 1e-5);
  console.log(`deviation ${deviation}: ${y.toFixed(4)}, with eps in the root ${right.toFixed(4)}`);
}
JS
node norm.mjs | tee seen

diff - seen <<'TEXT' && echo "as recorded"
Transformers.js 4.3.2
deviation 1: 1.0000, with eps in the root 1.0000
deviation 0.01: 0.9990, with eps in the root 0.9535
deviation 0.001: 0.9901, with eps in the root 0.3015
deviation 0.0001: 0.9091, with eps in the root 0.0316
TEXT
