#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw what bench/cpu/run measured: chart.py FOLDER OUT.svg

Left: milliseconds over the length, bila's forms and, if there is a torch.json, PyTorch's. Right: per cent of the loop of multiply-adds;
the tick on each bar is its goal. Needs matplotlib.
"""

import json
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("chart.py needs matplotlib (Debian: python3-matplotlib)")

LINES = {
    ("bila", "full"): ("#c1432e", "-"),
    ("bila", "chunkwise"): ("#2a5fa5", "-"),
    ("bila", "recurrent"): ("#2f7d4f", "-"),
    ("bila", "all_ones"): ("#8a6d1d", "-"),
    ("PyTorch", "softmax"): ("#222222", ":"),
    ("PyTorch", "full"): ("#c1432e", ":"),
    ("PyTorch", "chunkwise"): ("#2a5fa5", ":"),
    ("PyTorch", "all_ones"): ("#8a6d1d", ":"),
}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    limits = json.loads((folder / "limits.json").read_text())
    peers = json.loads((folder / "torch.json").read_text()) if (folder / "torch.json").exists() else None

    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "bila", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2 if peers else 1, figsize=(11 if peers else 6.5, 5.2), layout="constrained", squeeze=False)
    if peers:
        left = axes[0][0]
        for (who, what), (color, style) in LINES.items():
            points = sorted((t["L"], t["ms"]) for t in peers["times"] if (t["who"], t["what"], t["threads"]) == (who, what, 1))
            if points:
                left.plot(*zip(*points), style, color=color, marker="o", markersize=3, label=f"{who}, {what.replace('_', ' ')}")
        left.set(xscale="log", yscale="log", xlabel="L", ylabel="ms, one thread, fixed decay", title=f"beside PyTorch {peers['torch']}")
        left.legend(frameon=False, fontsize=8)
    right = axes[0][-1]
    bars = [f for f in limits["figures"] if f["unit"] == "%"][::-1]
    right.barh([f["name"] for f in bars], [f["value"] for f in bars], color="#9db8d9")
    for place, f in enumerate(bars):
        right.plot([f["goal"]] * 2, [place - 0.4, place + 0.4], color="#222222", linewidth=1.2)
    right.set(xlim=(0, 100), xlabel="per cent of a loop of multiply-adds (tick: goal)", title="float, H = 12, D = 64, one thread")
    right.tick_params(axis="y", labelsize=7)
    figure.suptitle(f"{limits['context']['processor']}, {limits['context']['compiler']}", fontsize=8, color="#666666")
    figure.savefig(sys.argv[2], metadata={"Date": None} if sys.argv[2].endswith(".svg") else None)


if __name__ == "__main__":
    main()
