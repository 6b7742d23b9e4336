#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw what bench/cuda/run measured: chart.py LIMITS.json OUT.svg [--peers TORCH.json]

Times of the floor for each case, forward and with the gradient: what form::automatic takes in full colour, bila's other forms pale,
the peers as open squares. Lower is better and 1 cannot be beaten. Needs matplotlib.
"""

import argparse
import json
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("chart.py needs matplotlib (Debian: python3-matplotlib)")

MASKS = {"all_ones": "#8a6d1d", "fixed_decay": "#2a5fa5", "selective_decay": "#c1432e"}
FORMS = {"full": "_", "chunkwise": "+", "chunkwise 128": "1", "chunkwise 256": "2", "chunkwise 512": "3", "recurrent": "x"}
PEERS = {"softmax": ("#222222", "softmax (SDPA)"), "lion": ("#2f7d4f", "LION full, torch.compile"),
         "all_ones": ("#8a6d1d", "q (k$^T$v), PyTorch")}
PASSES = {"forward": "forward", "forward_and_gradient": "forward and gradient"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("limits")
    parser.add_argument("picture")
    parser.add_argument("--peers")
    arguments = parser.parse_args()
    with open(arguments.limits, encoding="utf-8") as file:
        limits = json.load(file)
    peers = None
    if arguments.peers:
        with open(arguments.peers, encoding="utf-8") as file:
            peers = json.load(file)

    cases = list({row["case"]: row for row in limits["times"]}.values())
    place = {row["case"]: n for n, row in enumerate(cases)}
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "bila", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained", sharey=True)
    for axis, (name, title) in zip(axes, PASSES.items()):
        for n in range(len(cases)):
            axis.axvspan(n - 0.5, n + 0.5, color="#f4f4f4" if n % 2 else "#ffffff", linewidth=0)
        labelled = set()

        def draw(x, y, label, **style):
            axis.plot(x, y, linestyle="", label=None if label in labelled else label, **style)
            labelled.add(label)

        for offset, (mask, color) in zip((-0.3, -0.18, -0.06), MASKS.items()):
            rows = [row for row in limits["times"] if row["mask"] == mask and name in row]
            for form, marker in FORMS.items():
                points = [(place[row["case"]] + offset, row[name]["times_floor"]) for row in rows if row["form"] == form]
                if points:
                    draw(*zip(*points), None, marker=marker, markersize=6, color=color, alpha=0.45)
                    draw([], [], f"form {form}", marker=marker, markersize=6, color="#777777")
            points = [(place[row["case"]] + offset, row[name]["times_floor"]) for row in rows if row["form"] == "automatic"]
            if points:
                draw(*zip(*points), f"bila, {mask.replace('_', ' ')}", marker="o", markersize=6, color=color)
        for offset, (what, (color, label)) in zip((0.1, 0.22, 0.34), PEERS.items()):
            points = [(place[row["case"]] + offset, row["times_floor"]) for row in (peers["times"] if peers else [])
                      if row["what"] == what and row["pass"] == name and "ms" in row and row["case"] in place]
            if points:
                draw(*zip(*points), label, marker="s", markersize=5.5, markerfacecolor="none", color=color)
        axis.axhline(1, color="#222222", linewidth=0.8)
        axis.set(yscale="log", title=title, xlim=(-0.5, len(cases) - 0.5))
        axis.set_xticks(range(len(cases)), [f"{row['case']}\n{row['B']} x {row['H']} x {row['L']}" for row in cases], fontsize=7)
        axis.set_yticks([step * 10**power for power in range(3) for step in (1, 2, 3, 5)])
        axis.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axis.grid(axis="y", which="both", color="#dddddd", linewidth=0.5)
    axes[0].set_ylabel("times the floor: bytes that must move / copy bandwidth")
    # One legend for both: what is drawn in either, bila first, forms last.
    entries = dict(pair for axis in axes for pair in zip(*axis.get_legend_handles_labels()[::-1]))
    order = sorted(entries, key=lambda label: (label.startswith("form "), not label.startswith("bila")))
    handles = [entries[label] for label in order]
    axes[1].legend(handles, order, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    context = limits["context"]
    beside = f", PyTorch {peers['context']['torch']}" if peers else ""
    figure.suptitle(f"{context['device']}, CUDA {context['cuda']}{beside}; bf16, D = 64, row sums; B x H x L; copy"
                    f" {context['copy_bandwidth'] / 1e12:.2f} TB/s", fontsize=8, color="#666666")
    figure.savefig(arguments.picture, metadata={"Date": None} if arguments.picture.endswith(".svg") else None)


if __name__ == "__main__":
    main()
