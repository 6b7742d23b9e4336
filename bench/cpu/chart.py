#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw what bench/cpu/run measured: chart.py LIMITS.json OUT.svg [--peers TORCH.json]

Left, with peers only: the time of one call over the length, bila's forms and PyTorch's. Right: per cent of the loop of multiply-adds;
the tick on each bar is its goal. Needs matplotlib.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from drawing import INK, SOFT, in_units, plt, save, set_log_x, set_log_y

LINES = {
    ("bila", "full"): ("#c1432e", "-"),
    ("bila", "chunkwise"): ("#2a5fa5", "-"),
    ("bila", "recurrent"): ("#2f7d4f", "-"),
    ("bila", "all_ones"): ("#8a6d1d", "-"),
    ("PyTorch", "softmax"): (INK, ":"),
    ("PyTorch", "full"): ("#c1432e", ":"),
    ("PyTorch", "chunkwise"): ("#2a5fa5", ":"),
    ("PyTorch", "all_ones"): ("#8a6d1d", ":"),
}


def in_words(name):
    """The micro-kernel's products as they are written on paper."""
    return name.replace("^3", "³").replace("^T", "ᵀ")


def draw_times(axes, peers):
    lines = {}
    for who, what in LINES:
        points = sorted((t["L"], 1e-3 * t["ms"]) for t in peers["times"] if (t["who"], t["what"], t["threads"]) == (who, what, 1))
        if points:
            lines[who, what] = dict(points)
    set_log_x(axes, sorted({L for points in lines.values() for L in points}))
    set_log_y(axes, [seconds for points in lines.values() for seconds in points.values()], in_units)
    for (who, what), points in lines.items():
        color, style = LINES[who, what]
        axes.plot(points.keys(), points.values(), style, color=color, marker="o", markersize=3,
                  label=f"{who}, {what.replace('_', ' ')}")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set(xlabel="sequence length L (tokens)", ylabel="time of one call", title=f"beside PyTorch {peers['torch']}, fixed decay")
    axes.legend(frameon=False, fontsize=8, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))


def draw_shares(axes, figures):
    bars = [f for f in figures if f["unit"] == "%"][::-1]
    axes.barh([in_words(f["name"]) for f in bars], [f["value"] for f in bars], color="#9db8d9")
    for place, f in enumerate(bars):
        axes.plot([f["goal"]] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=1.2)
    axes.set(xlim=(0, 100), ylim=(-0.7, len(bars) - 0.3), xlabel="per cent of a loop of multiply-adds (tick: goal)",
             title="beside the processor's limit")
    axes.tick_params(axis="y", labelsize=7)


def draw(limits, peers):
    plt.rcParams.update({"font.size": 9})
    figure, axes = plt.subplots(1, 2 if peers else 1, figsize=(11 if peers else 6.5, 5.6), squeeze=False)
    if peers:
        figure.subplots_adjust(left=0.07, right=0.98, top=0.88, bottom=0.25, wspace=0.55)
        axes[0][-1].set_position([0.65, 0.09, 0.33, 0.79])
        draw_times(axes[0][0], peers)
    else:
        figure.subplots_adjust(left=0.42, right=0.96, top=0.88, bottom=0.09)
    draw_shares(axes[0][-1], limits["figures"])
    context = limits["context"]
    figure.suptitle(f"{context['processor']}, {context['compiler']}; float, 12 heads, D = 64, one thread", fontsize=9, color=SOFT)
    return figure


def read(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8")) if path else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("limits")
    parser.add_argument("picture")
    parser.add_argument("--peers")
    arguments = parser.parse_args()
    save(draw(read(arguments.limits), read(arguments.peers)), arguments.picture)


if __name__ == "__main__":
    main()
