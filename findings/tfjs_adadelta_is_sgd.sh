#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# TensorFlow.js 4.22.0 (@tensorflow/tfjs-core): tf.train.adadelta is plain gradient descent.
#
# Expected: Zeiler's Adadelta, as in Keras and PyTorch: with g^2 averaged first, a step is
#     sqrt(E[u^2] + eps) / sqrt(E[g^2] + eps) * g, which starts near sqrt(eps / (1 - rho)) and hardly
#     changes when the loss is scaled.
# Seen: the step divides by the average of before this gradient. Both averages start at 0, so the
#     first factor is 1, the update is g, both averages get the same value, and the factor stays 1:
#     every step is -lr * g, with the bits of tf.train.sgd, whatever rho and epsilon are.
# Consequence: a run "with Adadelta" has no adaptive rates, diverges where the loss is scaled up,
#     and its two averages, half of what the checkpoint of the optimizer holds, are equal.
# moegrad is not affected: it has no Adadelta; its RMSprop and Adam average before they divide.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix . \
  @tensorflow/tfjs-core@4.22.0 @tensorflow/tfjs-backend-cpu@4.22.0 \
  >npm.log 2>&1 || { cat npm.log; exit 1; }

cat >adadelta.cjs <<'JS'
const tf = require('@tensorflow/tfjs-core');
require('@tensorflow/tfjs-backend-cpu');

// Twenty steps on a quadratic loss; Adadelta and its averages as the paper has them, in doubles.
const target = [0.3, 0.7, -1], curvature = [1, 3, 0.2], start = [1, -2, 0.5];
const gradient = (w, i) => 2 * curvature[i] * (w - target[i]);
function trained(optimizer) {
  const w = tf.variable(tf.tensor1d(start));
  for (let step = 0; step < 20; ++step) {
    optimizer.applyGradients({[w.name]: tf.tensor1d([...w.dataSync()].map(gradient))});
  }
  return [...w.dataSync()];
}
function adadelta(lr, rho, eps) {
  return start.map((w, i) => {
    let squares = 0, updates = 0;
    for (let step = 0; step < 20; ++step) {
      const g = gradient(w, i);
      squares = rho * squares + (1 - rho) * g * g;
      const u = Math.sqrt(updates + eps) / Math.sqrt(squares + eps) * g;
      updates = rho * updates + (1 - rho) * u * u;
      w -= lr * u;
    }
    return w;
  });
}

(async () => {
  await tf.setBackend('cpu');
  console.log('TensorFlow.js ' + tf.version_core);
  const show = (name, w) => console.log(name.padEnd(30) + w.map((x) => x.toFixed(7)).join(' '));
  const sgd = trained(tf.train.sgd(0.1));
  show('sgd(0.1)', sgd);
  let same = true;
  for (const [rho, eps] of [[0.95, 1e-7], [0.5, 1e-7], [0.95, 1e-3]]) {
    const optimizer = tf.train.adadelta(0.1, rho, eps);
    const w = trained(optimizer);
    show(`adadelta(0.1, ${rho}, ${eps})`, w);
    same = same && w.every((x, i) => x === sgd[i]);
    const [, squares, updates] = (await optimizer.getWeights()).map((x) => [...x.tensor.dataSync()]);
    same = same && squares.every((x, i) => x === updates[i]);
  }
  show('the paper, (0.1, 0.95, 1e-7)', adadelta(0.1, 0.95, 1e-7));
  console.log('bits of sgd, and averages equal: ' + same);
})();
JS
node adadelta.cjs 2>log | tee seen || { cat log; exit 1; }
[[ "$(head -1 seen)" == "TensorFlow.js 4.22.0" && "$(tail -1 seen)" == *": true" ]] && echo "as recorded"
