# SPDX-License-Identifier: Apache-2.0
"""Debian 12 for arm64: programs of its cross compiler, run by qemu-user. Kernels, ops, optimizers, layers,
files, models of transformers, the recorded run; ranks as threads and as processes; checkpoints of amd64 that
resume here, and back."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

from debian_root import PROJECT, DebianRoot, arguments

PACKAGES = [
    "g++-aarch64-linux-gnu", "cmake", "ninja-build", "ccache", "python3", "openssh-client", "bible-kjv-text",
    "libeigen3-dev", "nlohmann-json3-dev", "libcli11-dev", "libboost-graph-dev:arm64", "libspdlog-dev:arm64",
    "libtomlplusplus-dev:arm64", "libgtest-dev:arm64", "libgmock-dev:arm64", "libbenchmark-dev:arm64",
    "libopenmpi-dev:arm64", "openmpi-bin:arm64"]
# The gradient checks of all ops are in op_table_test and ops_test.
TESTS = ["tensor_test", "io_test", "op_table_test", "ops_test", "optim_test", "nn_test"]
STEPS, INTERVAL = 6, 3

given = arguments(__doc__, "folder-of-tools")
tools = Path(getattr(given, "folder-of-tools")).resolve()
if not all((tools / name).exists() for name in ("train", "check_golden")):
    sys.exit(f"{tools} must be a folder with the tools of amd64, such as build/release/tools")


def train(program, name, *more):
    """The words of a run whose metrics are name.jsonl, in a folder with the text."""
    return [program, "--text", "text.txt", "--preset", "tiny", "--steps", STEPS, "--batch", 1, "--seq-len", 32,
            "--sample-bytes", 0, "--validation-sequences", 2, "--checkpoint-dir", f"{name}-checkpoints",
            "--checkpoint-interval", INTERVAL, "--checkpoint-keep", 0, "--metrics", f"{name}.jsonl", *more]


def steps(folder, name):
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in lines if "loss" in line}


def exchange_checkpoints(root):
    folder = root.root / "moegrad/build/exchange"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("".join(f"{i} sheep went to the water and came back.\n" for i in range(300)))

    def on_amd64(name, *more):
        words = train(tools / "train", name, *more)
        subprocess.run([str(word) for word in words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    def on_arm64(name, *more, launcher=""):
        words = train("/moegrad/build/release/tools/train", name, *more)
        root.run(f"cd build/exchange && {launcher} {' '.join(str(word) for word in words)} >/dev/null",
                 OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def resumes(run, name, checkpoints):
        """From the checkpoint of step INTERVAL, which another run has written."""
        shutil.copytree(folder / f"{checkpoints}-checkpoints/step-{INTERVAL:08}",
                        folder / f"{name}-checkpoints/step-{INTERVAL:08}")
        run(name, "--resume")
        assert steps(folder, name) == {step: expected[step] for step in range(INTERVAL, STEPS)}

    on_amd64("amd64")
    expected = steps(folder, "amd64")
    assert len(expected) == STEPS, expected
    on_arm64("threads")
    assert steps(folder, "threads") == expected
    # qemu-user does not know the call by which Open MPI reads another process's memory.
    on_arm64("processes", launcher="mpirun --oversubscribe --mca btl_vader_single_copy_mechanism none -n 2")
    assert steps(folder, "processes") == expected
    resumes(on_arm64, "on_arm64", "amd64")
    resumes(on_amd64, "back", "threads")


def compare_golden(root):
    """The deviations from Hugging Face's values are those on amd64, with all their printed digits: but of the plain
    reference, whose products are Eigen's."""
    golden, out = "tests/golden/a_minimal", "build/golden.txt"
    root.run(f"build/release/tools/check_golden {golden} >{out}")
    on_amd64 = subprocess.run([tools / "check_golden", PROJECT / golden], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def compared(text):
        return [line for line in text.splitlines() if "| plain " not in line]

    assert compared((root.root / "moegrad" / out).read_text()) == compared(on_amd64)
    assert len(compared(on_amd64)) > 200


with DebianRoot("bookworm", given.folder, PACKAGES, foreign="arm64") as here:
    here.run(f"cmake --preset release && cmake --build --preset release --target train check_golden {' '.join(TESTS)}",
             CMAKE_TOOLCHAIN_FILE="/moegrad/tests/platforms/arm64.cmake")
    exchange_checkpoints(here)
    compare_golden(here)
    # qemu-user limits no addresses.
    here.run(f"ctest --test-dir build/release -j 2 --output-on-failure -R '^({'|'.join(TESTS)})$'",
             GTEST_FILTER="-ThreadPool.SaysHowManyThreadsItDidNotGet")
    here.run("python3 tests/tools/recorded_run_test.py build/release/tools --train-alone")
print("arm64: ok")
