#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the time of each form over the length, from the JSON that bila_compare writes.

    chart.py compare.json compare.svg        the suffix of the output says the format: .svg, .png or .pdf

Solid lines are medians of the repetitions, dotted ones the floor: what the counted operations and the compulsory bytes take at the
limits that the same process measured. Rings are form::automatic; the vertical line is the crossover that bila_compare found. Needs
matplotlib.
"""

import argparse
import json
import math
import re
import statistics
import sys

from drawing import INK, SOFT, in_units, plt, save, set_log_x, set_log_y

FORMS = {"full": "#c1432e", "recurrent": "#2f7d4f", "chunkwise": "#2a5fa5"}
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


def in_words(crossover):
    """What bila_compare wrote, a length or "below 64" or "above 4096", as a sentence."""
    if crossover.isdigit():
        return f"Full is the fastest up to L ≈ {crossover} (dashed), a linear form from there on."
    side, _, length = crossover.partition(" ")
    return {"below": "A linear form is the fastest at all of these lengths.",
            "above": f"Full is the fastest form up to L = {length}."}.get(side, "")


def spread(heights, gap, low, high):
    """Moves values apart until neighbours differ by `gap`, keeping their order, and all of them between two bounds."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    for _ in range(100):
        for a, b in zip(order, order[1:]):
            lack = gap - (moved[b] - moved[a])
            if lack > 0:
                moved[a] -= lack / 2
                moved[b] += lack / 2
    shift = max(0, low - min(moved)) - max(0, max(moved) - high)
    return [height + shift for height in moved]


def label_ends(axes, forms, names):
    """Writes beside the axes, at the height of the end of each line, what it is, and how long the longest call takes."""
    low, high = (math.log10(y) for y in axes.get_ylim())
    labels = []
    for name in names:
        seconds, floor = forms[name][max(forms[name])]
        labels.append((seconds, name, FORMS[name], {"fontsize": 11, "fontweight": "bold"}))
        labels.append((floor, "floor", FORMS[name], {"fontsize": 9}))
    gap = 0.056 * (high - low)
    heights = spread([math.log10(label[0]) for label in labels], gap, low + gap, high - gap)
    for (seconds, text, color, style), height in zip(labels, heights):
        axes.text(1.01, (height - low) / (high - low), f"{text}  {in_units(seconds)}", color=color, va="center",
                  transform=axes.transAxes, **style)


def draw(context, forms):
    plt.rcParams.update({"font.size": 10})
    figure, axes = plt.subplots(figsize=(9, 6))
    figure.subplots_adjust(left=0.11, right=0.79, top=0.795, bottom=0.19)
    names = [name for name in FORMS if name in forms]
    set_log_x(axes, sorted({L for name in names for L in forms[name]}))
    set_log_y(axes, [seconds for name in names for pair in forms[name].values() for seconds in pair], in_units)
    for name in names:
        at = sorted(forms[name])
        axes.plot(at, [forms[name][L][0] for L in at], color=FORMS[name], linewidth=2.2, marker="o", markersize=4.5, zorder=3)
        dots = {"marker": "_"} if len(at) == 1 else {}
        axes.plot(at, [forms[name][L][1] for L in at], color=FORMS[name], linewidth=1.1, linestyle=(0, (1, 2)), zorder=2, **dots)
    if "automatic" in forms:
        at = sorted(forms["automatic"])
        axes.plot(at, [forms["automatic"][L][0] for L in at], linestyle="none", marker="o", markersize=10.5,
                  markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.1, zorder=4)

    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    axes.set_xlabel("sequence length L (tokens)")
    axes.set_ylabel("time of one call")
    label_ends(axes, forms, names)

    crossover = context.get("crossover", "")
    if crossover.isdigit():
        axes.axvline(int(crossover), color=SOFT, linewidth=1, linestyle=(0, (5, 4)), zorder=1)

    def line(y, text, size, **style):
        figure.text(0.11, y, text, fontsize=size, **style)

    line(0.95, "Time of the three forms of bidirectional linear attention", 14, fontweight="bold")
    line(0.905, ", ".join(filter(None, (context.get("tensors"), context.get("type")))), 10, color=SOFT)
    line(0.868, context.get("operator", ""), 10, color=SOFT)
    line(0.825, in_words(crossover), 10)
    line(0.076, f"{context.get('processor', '')}, threads: {context.get('threads', '?')}, {context.get('compiler', '')}", 8.5, color=SOFT)
    line(0.047, f"Limits: {context.get('limits', '')}.  Dotted: the floor of each form at these limits.", 8.5, color=SOFT)
    line(0.018, "Rings: what form::automatic took.  Medians, logarithmic axes.", 8.5, color=SOFT)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="JSON file of bila_compare --out")
    parser.add_argument("picture", help="file to write; the suffix says the format")
    arguments = parser.parse_args()
    context, forms = read(arguments.report)
    if not any(name in forms for name in FORMS):
        sys.exit(f"{arguments.report} holds no times of bila_compare")
    save(draw(context, forms), arguments.picture)


if __name__ == "__main__":
    main()
