#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the time of each form over the length, from the JSON that bila_compare writes.

    chart.py compare.json compare.svg        the suffix of the output says the format: .svg, .png or .pdf

Solid lines are medians of the repetitions, dotted ones the floor: what the counted operations and the compulsory bytes take at the
limits that the same process measured. Rings are form::automatic; the vertical line is where the fastest linear form meets full,
interpolated between two measured lengths. Needs matplotlib.
"""

import argparse
import json
import math
import re
import statistics
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("chart.py needs matplotlib (Debian: python3-matplotlib)")

FORMS = {"full": "#c1432e", "recurrent": "#2f7d4f", "chunkwise": "#2a5fa5"}
INK, SOFT = "#222222", "#666666"
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def read(path):
    """-> (context, {form: {L: (seconds, floor seconds)}})"""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    samples = {}
    for run in report["benchmarks"]:
        match = re.match(r"(\w+)/\w+/\w+/L:(\d+)/", run["name"])
        if match and run.get("run_type") == "iteration" and not run.get("error_occurred"):
            clock = "real_time" if run["name"].endswith("/real_time") else "cpu_time"  # the one bila_compare went by
            seconds = run[clock] * UNITS[run["time_unit"]]
            samples.setdefault((match[1], int(match[2])), []).append((seconds, run["floor_seconds"]))
    forms = {}
    for (form, length), runs in sorted(samples.items()):
        forms.setdefault(form, {})[length] = (statistics.median(s for s, _ in runs), runs[0][1])
    return report["context"], forms


def crossover(forms):
    """-> (L, seconds) where the fastest linear form meets full, or None"""
    full, linear = forms.get("full", {}), [forms[f] for f in ("recurrent", "chunkwise") if f in forms]
    best = {L: min(f[L][0] for f in linear if L in f) for L in full if any(L in f for f in linear)}
    lengths = sorted(best)
    for left, right in zip(lengths, lengths[1:]):
        before, after = (math.log(full[L][0] / best[L]) for L in (left, right))
        if before < 0 <= after:
            share = before / (before - after)
            return left * (right / left) ** share, full[left][0] * (full[right][0] / full[left][0]) ** share
    return None


def spread(heights, gap):
    """Moves values apart until neighbours differ by `gap`, keeping their order and their middle."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    for _ in range(100):
        for a, b in zip(order, order[1:]):
            lack = gap - (moved[b] - moved[a])
            if lack > 0:
                moved[a] -= lack / 2
                moved[b] += lack / 2
    return moved


def label_ends(axes, forms, names, right):
    """Writes beside the end of each line what it is, and how long the longest call takes."""
    low, high = (math.log10(y) for y in axes.get_ylim())
    labels = []
    for name in names:
        seconds, floor = forms[name][max(forms[name])]
        labels.append((seconds, name, FORMS[name], {"fontsize": 11, "fontweight": "bold"}))
        labels.append((floor, "floor", FORMS[name], {"fontsize": 9}))
    heights = spread([math.log10(label[0]) for label in labels], 0.052 * (high - low))
    for (seconds, text, color, style), height in zip(labels, heights):
        axes.text(right * 1.12, 10**height, f"{text}  {in_units(seconds)}", color=color, va="center", **style)


def in_units(seconds):
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def draw(context, forms):
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "bila",
                         "text.color": INK, "axes.labelcolor": INK, "xtick.color": SOFT, "ytick.color": SOFT})
    figure, axes = plt.subplots(figsize=(9, 5.6))
    figure.subplots_adjust(left=0.11, right=0.81, top=0.83, bottom=0.15)
    names = [name for name in FORMS if name in forms]
    lengths = sorted({L for name in names for L in forms[name]})

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name in names:
        at = sorted(forms[name])
        axes.plot(at, [forms[name][L][0] for L in at], color=FORMS[name], linewidth=2.2, marker="o", markersize=4.5, zorder=3)
        axes.plot(at, [forms[name][L][1] for L in at], color=FORMS[name], linewidth=1.1, linestyle=(0, (1, 2)), zorder=2)
    if "automatic" in forms:
        at = sorted(forms["automatic"])
        axes.plot(at, [forms["automatic"][L][0] for L in at], linestyle="none", marker="o", markersize=10.5,
                  markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.1, zorder=4)

    axes.set_xticks(lengths, [str(L) for L in lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda y, _: in_units(y))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    axes.set_xlabel("sequence length L (tokens)")
    axes.set_ylabel("time of one call")

    meet = crossover(forms)
    if meet:
        axes.axvline(meet[0], color=SOFT, linewidth=1, linestyle=(0, (5, 4)), zorder=1)
        axes.annotate(f"full is faster up to L ≈ {meet[0]:.0f},\na linear form from there on", (meet[0], axes.get_ylim()[0]),
                      xytext=(8, 8), textcoords="offset points", va="bottom", fontsize=10, color=INK)
    label_ends(axes, forms, names, lengths[-1])

    figure.text(0.11, 0.945, "Time of the three forms of bidirectional linear attention", fontsize=14, fontweight="bold")
    figure.text(0.11, 0.900, context.get("tensors", ""), fontsize=10, color=SOFT)
    figure.text(0.11, 0.863, context.get("operator", ""), fontsize=10, color=SOFT)
    machine = f"{context.get('processor', '')}, threads: {context.get('threads', '?')}, {context.get('compiler', '')}"
    figure.text(0.11, 0.045, f"{machine}, limits: {context.get('limits', '')}", fontsize=8.5, color=SOFT)
    figure.text(0.11, 0.015, "Rings: what form::automatic took.  Dotted: the floor of each form at these limits.  "
                "Medians, logarithmic axes.", fontsize=8.5, color=SOFT)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="JSON file of bila_compare --out")
    parser.add_argument("picture", help="file to write; the suffix says the format")
    arguments = parser.parse_args()
    context, forms = read(arguments.report)
    if not any(name in forms for name in FORMS):
        sys.exit(f"{arguments.report} holds no times of bila_compare")
    kept = {"metadata": {"Date": None}} if arguments.picture.endswith(".svg") else {}
    draw(context, forms).savefig(arguments.picture, dpi=150, **kept)


if __name__ == "__main__":
    main()
