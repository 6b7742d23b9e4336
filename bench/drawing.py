# SPDX-License-Identifier: Apache-2.0
"""What the charts share: matplotlib, or a sentence without it; plain numbers on logarithmic axes; files that appear whole."""

import io
import math
import pathlib
import sys

import whole_file

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("the charts need matplotlib (Debian: python3-matplotlib)")

INK, SOFT = "#222222", "#666666"
# Text stays text in an SVG: it can be searched, and a test compares it. The salt gives the same file for the same numbers.
plt.rcParams.update({"font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "bila", "text.color": INK,
                     "axes.labelcolor": INK, "xtick.color": SOFT, "ytick.color": SOFT, "axes.spines.top": False,
                     "axes.spines.right": False})


def save(figure, path):
    """The suffix says the format."""
    suffix = pathlib.Path(path).suffix.lstrip(".")
    content = io.BytesIO()
    kept = {"metadata": {"Date": None}} if suffix == "svg" else {}
    figure.savefig(content, format=suffix, dpi=150, **kept)
    whole_file.write(path, content.getvalue())


def in_units(seconds):
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if seconds >= s), ("ns", 1e-9))
    number = seconds / size
    return f"{number:.3g} {unit}" if number < 99.5 else f"{number:.0f} {unit}"


def round_numbers(low, high):
    """Between two bounds: powers of ten, or where these are fewer than five also 2 and 5 times them."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5)):
        found = [step * 10.0**power for power in decades for step in steps if low <= step * 10.0**power <= high]
        if len(found) > 4:
            break
    return found


def set_log_y(axes, values, label, room=1.5):
    """A logarithmic axis around the values, with at least two labelled ticks: less than a decade would have none."""
    low, high = min(values) / room, max(values) * room
    if high < 6 * low:
        low, high = low / math.sqrt(6 * low / high), high * math.sqrt(6 * low / high)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_yticks(round_numbers(low, high))
    axes.yaxis.set_major_formatter(lambda y, _: label(y))
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def set_log_x(axes, lengths):
    """A logarithmic axis with a tick at each length; where labels would run into each other, the shorter length has none."""
    room = 1.25 if len(lengths) > 1 else 2
    low, high = min(lengths) / room, max(lengths) * room
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    points = axes.get_window_extent().width / axes.figure.dpi * 72
    size = matplotlib.font_manager.FontProperties(size=plt.rcParams["xtick.labelsize"]).get_size_in_points()
    labels, free = [], math.inf
    for length in sorted(lengths, reverse=True):
        at = points * math.log(length / low) / math.log(high / low)
        half = 0.7 * size * len(str(length)) / 2  # a digit is 0.64 wide, and labels need a gap
        shown = at + half <= free
        labels.append(str(length) if shown else "")
        free = at - half if shown else free
    axes.set_xticks(sorted(lengths), labels[::-1])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
