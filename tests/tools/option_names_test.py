# SPDX-License-Identifier: Apache-2.0
"""Compares the arguments and options that the --help of each tool shows with the list below, so that none
is added, removed or renamed unnoticed: what users run gives them.

usage: option_names_test.py TOOLS      the folder where a build has its tools
"""
import re
import subprocess
import sys
from pathlib import Path

# In the order of --help, with all spellings.
LISTED = {
    "check_golden": "folders --world-size --expert-parallel --tensor-parallel",
    "checkpoint_tool": "list verify diff export",
    "checkpoint_tool list": "root",
    "checkpoint_tool verify": "path",
    "checkpoint_tool diff": "a b",
    "checkpoint_tool export": "path folder",
    "compare_losses": "a b --common --assert-equal --rtol --atol",
    "fsdp_crossover": "--mb-per-second --steps",
    "fsdp_overlap": "--layers --tokens --steps",
    "fsdp_timeline":
        "--preset --world-size --steps --batch --seq-len --latency-us --gb-per-second --prefetch --level "
        "--slow-rank --slow-by --window --trace --summary",
    "inspect_graph": "--preset --config --tokens --dot --critical-path --live-bytes",
    "loss_parity": "--text --preset --steps --micro-batches --batch --seq-len --lr --seed --json --svg",
    "nz_ablation": "--preset --world-size --threads-per-rank --rounds --json",
    "sampler_balance": "--text --budget --micro-batches --seed",
    "schedule":
        "--file --generate --ranks --micro-batches --stages-per-rank --group --merge-backward --recompute "
        "--most-gathered --reduce-grad --transfers --copies --buffers --forward --backward-input "
        "--backward-weight --unshard-time --reduce-grad-time --pair-factor --pairs-in-turn --latency --bytes-per-time "
        "--output-bytes --activation-bytes --input-bytes --parameter-bytes --gradient-bytes --layers --first-less "
        "--last-less --empty-layers --compare --csv --svg --critical-path",
    "train":
        "--config-file --text --data --data-dtype --target-mask --pack --end-of-document --micro-batches --batch "
        "--seq-len --validation-sequences --overfit --preset --config --hf-model --dtype "
        "--grouped-matmul-nz-transpose,--grouped_matmul_nz_transpose --layout --expert-weights --aux-loss-coef "
        "--aux-loss-layers --aux-loss-tokens --z-loss-coef --bias-update-rate --world-size --threads-per-rank "
        "--kernels --replicas --context-parallel --tensor-parallel --sequence-parallel --token-parts --pipeline-parallel --expert-parallel "
        "--collective-deadline --linear-only-shard,--linear_only_shard --prefetch --wire-dtype --reduce-dtype "
        "--reshard --recompute --recompute-layers --offload --offload-window --linear-cross-entropy --memory-budget --optimizer --beta1 --beta2 --eps --amsgrad "
        "--momentum --nesterov --alpha --centered --lr-decay --initial-accumulator-value --beta2-decay --min-rms "
        "--clip-threshold --adjust --steps --lr --schedule --warmup --weight-decay --max-grad-norm "
        "--max-skipped-steps --seed --loss-weights --checkpoint-dir --checkpoint-interval --checkpoint-keep --resume --dry-run "
        "--metrics --validation-interval --tensorboard --profile-steps --profile --export-hf --export-dtype "
        "--prompt --sample-bytes --temperature --log-every --log-level --print-config",
    "training_report": "metrics -o,--output",
}
ALL_HAVE = ["-h,--help", "--version"]


def sections(text):
    """The names in each section of a help text."""
    found = {"Positionals": [], "Options": [], "Subcommands": []}
    section = []
    for line in text.splitlines():
        title = re.fullmatch(r"(\w+):", line)
        name = re.match(r" {2}(\S+)", line)
        if title:
            section = found[title[1]]
        elif name:
            section.append(name[1])
    return found


def shown_by(tools, words):
    """Command -> names, of the command `words` and of its own commands."""
    text = subprocess.run([tools / words[0], *words[1:], "--help"], capture_output=True, text=True,
                          check=True).stdout
    found = sections(text)
    shown = {" ".join(words): [name for names in found.values() for name in names if name not in ALL_HAVE]}
    for command in found["Subcommands"]:
        shown.update(shown_by(tools, [*words, command]))
    return shown


def problems(listed, shown):
    for command in sorted(listed.keys() | shown.keys()):
        before, now = listed.get(command, "").split(), shown.get(command, [])
        for name in now:
            if name not in before:
                yield f"{command}: {name} is not listed; if it is meant, add it to LISTED and document it"
        for name in before:
            if name not in now:
                yield f"{command}: {name} is gone, and what gives it fails; if that is meant, drop it from LISTED"
        if sorted(now) == sorted(before) and now != before:
            yield f"{command}: the order of --help is {' '.join(now)}"


def self_test():
    text = "What it does.\nUsage: a [OPTIONS] b\n\nPositionals:\n  b INPUT REQUIRED\n\nOptions:\n" \
           "  -h,--help                   Print this\n  -c,--cc INT:[0 - 1]=1       of\n" \
           "                              d\n  --e                         f\n\nExit code: 0.\n"
    assert sections(text) == {"Positionals": ["b"], "Options": ["-h,--help", "-c,--cc", "--e"], "Subcommands": []}
    for now, count in [("b --c --d", 0), ("b --c", 1), ("b --c --d --e", 1), ("b --c --e", 2), ("b --d --c", 1),
                       ("b --c,-c --d", 2)]:
        found = list(problems({"a": "b --c --d"}, {"a": now.split()}))
        assert len(found) == count, f"self-test: {now}: expected {count} problems, found {found}"
    assert len(list(problems({"a": "b"}, {}))) == 1 and len(list(problems({}, {"a": ["b"]}))) == 1


self_test()
tools = Path(sys.argv[1]).resolve()
cmake = (Path(__file__).parents[2] / "tools/CMakeLists.txt").read_text(encoding="utf-8")
shown = {}
for tool in re.findall(r"^moegrad_tool\((\w+) ", cmake, re.MULTILINE):
    shown.update(shown_by(tools, [tool]))
assert shown.keys() >= {"train", "checkpoint_tool export"}, shown
found = list(problems(LISTED, shown))
print("\n".join(found) or "option_names_test: ok")
sys.exit(bool(found))
