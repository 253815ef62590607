# SPDX-License-Identifier: Apache-2.0
"""What scaling.sh measured, as a table with verdicts and three plots.

    scaling_plots.py RESULTS PLOTS

RESULTS: folder of what bench_train_step --json wrote, a file for each point and round. PLOTS:
folder for scaling_threads.svg, scaling_tokens.svg and scaling_experts.svg. A dot is the median over
the rounds, its bar goes from the least to the most.
"""
import json
import statistics
import sys
from collections import namedtuple
from pathlib import Path

Point = namedtuple("Point", "threads sequences length experts")
BASE = Point(threads=2, sequences=4, length=512, experts=32)
LONE = BASE._replace(sequences=1)

MIN_SPEEDUP = 1.85  # of two threads over one
MAX_MISFIT = 0.05   # of a step's time from the fit
MAX_SPREAD = 0.15   # of forward + backward, slowest over fastest


def read_runs(folder):
    """The runs of each point, in the order of their rounds."""
    runs = {}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        runs.setdefault(Point(*(run[field] for field in Point._fields)), []).append(run)
    return runs


def sweep(runs, field, start=BASE):
    """{value: runs} of the points that differ from `start` in nothing but `field`."""
    found = {}
    for point in sorted(runs):
        value = getattr(point, field)
        if point == start._replace(**{field: value}):
            found[value] = runs[point]
    return found


def rate(run):
    return run["tokens_per_second"]


def seconds(run):
    return run["step_ms"] / 1e3


def forward_backward(run):
    return (run["forward_ms"] + run["backward_ms"]) / 1e3


def medians(runs, quantity):
    return {key: statistics.median(map(quantity, each)) for key, each in runs.items()}


def determinant(m):
    (a, b, c), (d, e, f), (g, h, i) = m
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def terms(point):
    """What a, b and c are multiplied with: 1, tokens, and the sum of the squared lengths."""
    return 1, point.sequences * point.length, point.sequences * point.length**2


def fit_time(times):
    """a, b, c of t = a + b tokens + c sum(length^2) with the least sum of squared relative errors,
    by Cramer's rule from the normal equations. `times`: seconds by point."""
    rows = [[term / time for term in terms(point)] for point, time in times.items()]
    normal = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    right = [sum(row[i] for row in rows) for i in range(3)]

    def with_right_as(column):
        return [[right[i] if j == column else normal[i][j] for j in range(3)] for i in range(3)]

    return [determinant(with_right_as(j)) / determinant(normal) for j in range(3)]


def predicted(fit, point):
    return sum(factor * term for factor, term in zip(fit, terms(point)))


def token_points(runs):
    """The two sweeps over tokens: more sequences, and a longer one."""
    return {"sequences of 512": [BASE._replace(sequences=n) for n in sweep(runs, "sequences")],
            "one sequence": [LONE._replace(length=n) for n in sweep(runs, "length", LONE)]}


def verdict(holds):
    return "holds" if holds else "DOES NOT HOLD"


def report_threads(runs):
    swept = sweep(runs, "threads")
    rates = medians(swept, rate)
    peaks = medians(swept, lambda run: run["fma_peak_gflops"])
    for threads, value in rates.items():
        yield f"{threads} threads: {value:.0f} tokens/s"
    speedup = rates[2] / rates[1]
    single = [rate(two) / rate(one) for one, two in zip(swept[1], swept[2])]
    yield (f"2 threads over 1: {speedup:.2f} (single rounds {min(single):.2f} to "
           f"{max(single):.2f}; FMA peak {peaks[2] / peaks[1]:.2f}); at least {MIN_SPEEDUP}: "
           f"{verdict(speedup >= MIN_SPEEDUP)}")


def report_tokens(runs, fit):
    times = medians(runs, seconds)
    a, b, c = fit
    yield (f"step = {1e3 * a:.1f} ms + {1e6 * b:.1f} us x tokens + {1e9 * c:.2f} ns x sum(length^2)"
           ", fitted to both sweeps")
    for name, points in token_points(runs).items():
        misfits = []
        for point in points:
            misfits.append(times[point] / predicted(fit, point) - 1)
            shown = round(100 * misfits[-1], 1) + 0.0  # no -0.0
            yield (f"{point.sequences} x {point.length} tokens: {1e3 * times[point]:.0f} ms, "
                   f"fit {1e3 * predicted(fit, point):.0f} ms ({shown:+.1f} %)")
        worst = max(map(abs, misfits))
        yield (f"{name}: at most {100 * worst:.1f} % from the fit; at most "
               f"{100 * MAX_MISFIT:.0f} %: {verdict(worst <= MAX_MISFIT)}")


def report_experts(runs):
    times = medians(sweep(runs, "experts"), forward_backward)
    for experts, time in times.items():
        yield f"{experts} experts: forward + backward {1e3 * time:.0f} ms"
    spread = max(times.values()) / min(times.values()) - 1
    yield (f"slowest over fastest: +{100 * spread:.1f} %; at most {100 * MAX_SPREAD:.0f} %: "
           f"{verdict(spread <= MAX_SPREAD)}")


def report(runs):
    fit = fit_time({point: time for point, time in medians(runs, seconds).items()
                    if point in sum(token_points(runs).values(), [])})
    return [*report_threads(runs), *report_tokens(runs, fit), *report_experts(runs)], fit


def draw(runs, fit, folder):
    import matplotlib
    matplotlib.use("svg")
    # The same file for the same results.
    matplotlib.rcParams.update({"svg.hashsalt": "moegrad", "svg.fonttype": "none"})
    from matplotlib import pyplot

    def figure(x_label, y_label):
        _, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        return axes

    def dots(axes, swept, quantity, label, x=lambda key: key):
        values = {x(key): [quantity(run) for run in each] for key, each in swept.items()}
        middle = [statistics.median(each) for each in values.values()]
        below = [y - min(each) for y, each in zip(middle, values.values())]
        above = [max(each) - y for y, each in zip(middle, values.values())]
        axes.errorbar(list(values), middle, (below, above), fmt="o", capsize=3, label=label)

    def save(axes, name):
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.figure.savefig(folder / f"scaling_{name}.svg", metadata={"Date": None})

    def line(axes, points, value, **style):
        axes.plot([p.sequences * p.length for p in points], [value(p) for p in points], **style)

    swept = sweep(runs, "threads")
    axes = figure("threads", "tokens/s")
    dots(axes, swept, rate, "measured")
    axes.plot(list(swept), [n * medians(swept, rate)[1] for n in swept], "--", color="gray",
              label="proportional to threads")
    axes.set_xticks(list(swept))
    save(axes, "threads")

    axes = figure("tokens per step", "step time [s]")
    for (name, points), colour in zip(token_points(runs).items(), ("C0", "C1")):
        dots(axes, {p: runs[p] for p in points}, seconds, name,
             x=lambda p: p.sequences * p.length)
        line(axes, points, lambda p: predicted(fit, p), color=colour, label=f"fit, {name}")
    line(axes, token_points(runs)["one sequence"], lambda p: predicted((fit[0], fit[1], 0), p),
         color="gray", linestyle="--", label="fit without the attention term")
    save(axes, "tokens")

    swept = sweep(runs, "experts")
    axes = figure("experts, 4 used by a token", "time of a step's part [s]")
    dots(axes, swept, forward_backward, "forward + backward")
    dots(axes, swept, lambda run: run["optimizer_ms"] / 1e3, "optimizer")
    least = min(medians(swept, forward_backward).values())
    axes.axhspan(least, least * (1 + MAX_SPREAD), alpha=0.15,
                 label=f"{100 * MAX_SPREAD:.0f} % above the fastest")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(swept), map(str, swept))
    save(axes, "experts")


if __name__ == "__main__":
    measured = read_runs(Path(sys.argv[1]))
    lines, fitted = report(measured)
    print("\n".join(lines))
    draw(measured, fitted, Path(sys.argv[2]))
