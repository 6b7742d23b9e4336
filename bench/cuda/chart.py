#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw what bench/cuda/run measured: chart.py LIMITS.json OUT.svg [--peers TORCH.json]

Times of the floor for each case, forward and with the gradient: what form::automatic takes in full colour, bila's other forms pale,
the peers as open squares. Lower is better and 1 cannot be beaten. Needs matplotlib.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from drawing import INK, SOFT, plt, save, set_log_y

MASKS = {"all_ones": "#8a6d1d", "fixed_decay": "#2a5fa5", "selective_decay": "#c1432e"}
FORMS = {"full": "_", "chunkwise": "+", "chunkwise 512": "1", "chunkwise 1024": "2", "chunkwise 2048": "3", "chunkwise 4096": "4",
         "recurrent": "x"}
PEERS = {"softmax": (INK, "softmax (SDPA)"), "lion": ("#2f7d4f", "LION full, torch.compile"),
         "all_ones": ("#8a6d1d", "q (kᵀv), PyTorch")}
PASSES = {"forward": "forward", "forward_and_gradient": "forward and gradient"}


def draw(limits, peers):
    cases = list({row["case"]: row for row in limits["times"]}.values())
    place = {row["case"]: n for n, row in enumerate(cases)}
    heights = [row[name]["times_floor"] for row in limits["times"] for name in PASSES if name in row]
    heights += [row["times_floor"] for row in (peers["times"] if peers else []) if "ms" in row and row["case"] in place]
    plt.rcParams.update({"font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained", sharey=True)
    for axis, (name, title) in zip(axes, PASSES.items()):
        for n in range(len(cases)):
            axis.axvspan(n - 0.5, n + 0.5, color="#f4f4f4" if n % 2 else "#ffffff", linewidth=0)
        labelled = set()

        def mark(x, y, label, **style):
            axis.plot(x, y, linestyle="", label=None if label in labelled else label, **style)
            labelled.add(label)

        for offset, (mask, color) in zip((-0.3, -0.18, -0.06), MASKS.items()):
            rows = [row for row in limits["times"] if row["mask"] == mask and name in row]
            for form, marker in FORMS.items():
                points = [(place[row["case"]] + offset, row[name]["times_floor"]) for row in rows if row["form"] == form]
                if points:
                    mark(*zip(*points), None, marker=marker, markersize=6, color=color, alpha=0.45)
                    mark([], [], f"form {form}", marker=marker, markersize=6, color="#777777")
            points = [(place[row["case"]] + offset, row[name]["times_floor"]) for row in rows if row["form"] == "automatic"]
            if points:
                mark(*zip(*points), f"bila, {mask.replace('_', ' ')}", marker="o", markersize=6, color=color)
        for offset, (what, (color, label)) in zip((0.1, 0.22, 0.34), PEERS.items()):
            points = [(place[row["case"]] + offset, row["times_floor"]) for row in (peers["times"] if peers else [])
                      if row["what"] == what and row["pass"] == name and "ms" in row and row["case"] in place]
            if points:
                mark(*zip(*points), label, marker="s", markersize=5.5, markerfacecolor="none", color=color)
        axis.axhline(1, color=INK, linewidth=0.8)
        axis.set(title=title, xlim=(-0.5, len(cases) - 0.5))
        sizes = [f"{row['case']}\nB {row['B']}, H {row['H']}\nL {row['L']}" for row in cases]
        axis.set_xticks(range(len(cases)), sizes, fontsize=7.5)
        set_log_y(axis, [1, *heights], lambda y: f"{y:g}")
        axis.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes[0].set_ylabel("times the floor: bytes that must move / copy bandwidth")
    # One legend for both: what is drawn in either, bila first, forms last.
    entries = dict(pair for axis in axes for pair in zip(*axis.get_legend_handles_labels()[::-1]))
    order = sorted(entries, key=lambda label: (label.startswith("form "), not label.startswith("bila")))
    handles = [entries[label] for label in order]
    axes[1].legend(handles, order, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    context = limits["context"]
    beside = f", PyTorch {peers['context']['torch']}" if peers else ""
    figure.suptitle(f"{context['device']}, CUDA {context['cuda']}{beside}; bf16, D = 64, row sums; copy"
                    f" {context['copy_bandwidth'] / 1e12:.2f} TB/s", fontsize=8, color=SOFT)
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
