# SPDX-License-Identifier: Apache-2.0
"""Where gdb is installed: framework/gdb.py prints tensors, dump can be called, sources are found."""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
#include "framework/tensor/tensor_impl.h"
int main() {
  moegrad::Tensor none, x = moegrad::Tensor::full({2, 3}, 0.5);
  x.storage().set_name("w");
  const moegrad::TensorImpl* impl = x.impl().get();  // optimized libraries know no types
  return impl != nullptr && !none.defined() ? 0 : 1;
}
"""
EXPECTED = [
    "$1 = undefined Tensor",
    "$2 = Tensor 'w' [2, 3] kFloat32 kND",
    "tensor 'w' [2, 3] float32 ND\n[[0.5000, 0.5000, 0.5000],\n [0.5000, 0.5000, 0.5000]]",
    "Tensor Tensor::empty(const Shape& shape, Dtype dtype) {",
]


def standalone(compiler):
    """clang leaves a type out that a library makes, which the optimized ones do not describe."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return ["-fstandalone-debug"] if "clang" in version else []


def main(compiler, libraries):
    if not shutil.which("gdb"):
        print("no gdb: skipped")
        return SKIPPED
    with tempfile.TemporaryDirectory() as tmp:
        source = Path(tmp) / "main.cpp"
        source.write_text(PROGRAM, encoding="utf-8")
        subprocess.run([compiler, "-std=c++20", "-g", *standalone(compiler), "-O0", f"-I{ROOT}", source,
                        "-Wl,--undefined=_ZN7moegrad4dumpERKNS_6TensorE", *libraries,
                        "-lbacktrace", "-lspdlog", "-lfmt", "-pthread", "-o", f"{tmp}/main"],
                       check=True)
        commands = ["break main.cpp:6", "run", "p none", "p x", "tensor x",
                    "list moegrad::Tensor::empty"]
        done = subprocess.run(
            ["gdb", "-nx", "-batch", "-x", ROOT / "framework/gdb.py",
             *(part for command in commands for part in ("-ex", command)), f"{tmp}/main"],
            capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    missing = [line for line in EXPECTED if line not in text]
    if missing:
        print("\n".join(["missing:", *missing, "in:", text]))
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
