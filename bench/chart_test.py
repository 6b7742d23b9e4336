# SPDX-License-Identifier: Apache-2.0
"""The charts can be read, whatever was measured: no two texts overlap, none lies on a curve or leaves the picture, and ticks are plain
numbers. The committed charts are those that the scripts draw from the committed numbers.

    chart_test.py [--redraw]        --redraw draws the committed charts again
"""

import importlib.util
import itertools
import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"


def module(path):
    spec = importlib.util.spec_from_file_location(path.parent.name + "_chart", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


sys.path.insert(0, str(HERE))
compare, cpu, cuda = (module(HERE / name) for name in ("chart.py", "cpu/chart.py", "cuda/chart.py"))

failures = []


def expect(fact, what):
    if not fact:
        failures.append(what)


def readable(figure, name):
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    box = lambda text: text.get_window_extent(renderer)
    texts = list(figure.texts)
    boxes = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_visible()]
            shown = [label for label in shown if label.get_text()]
            shared = axis is axes.yaxis and axes is not figure.axes[0] and axes.get_shared_y_axes().joined(axes, figure.axes[0])
            expect(shared or len(shown) >= (2 if axis is axes.yaxis else 1), f"{name}: an axis has {len(shown)} labelled ticks")
            for label in shown:
                expect(not re.search(r"[$^_]|\de", label.get_text()), f"{name}: the tick {label.get_text()!r} is not in plain words")
            expect(not [label for label in axis.get_minorticklabels() if label.get_text()], f"{name}: minor ticks are labelled")
            texts += shown + [axis.label]
        texts += [axes.title, *axes.texts]
        if axes.get_legend():
            boxes.append(("legend", axes.get_legend().get_window_extent(renderer)))
    boxes += [(text.get_text(), box(text)) for text in texts if text.get_text()]

    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        expect(not one.overlaps(other), f"{name}: {a!r} and {b!r} overlap")
    for text, around in boxes:
        inside = figure.bbox.x0 <= around.x0 and around.x1 <= figure.bbox.x1 and figure.bbox.y0 <= around.y0 and around.y1 <= figure.bbox.y1
        expect(inside, f"{name}: {text!r} leaves the picture")
        for axes in figure.axes:
            for line in axes.lines:
                path = line.get_transform().transform_path(line.get_path())
                expect(not len(path) or not path.intersects_bbox(around, filled=False), f"{name}: {text!r} lies on a curve")
    compare.plt.close(figure)


def report(lengths, crossover=None, one_state=False, factor=1.0):
    """What bila_compare would report: full grows with the square of the length, the others with the length."""
    context = {"tensors": "astronaut.npy: B = 1, H = 3, L = 4096, Dk = 64, Dv = 64", "type": "float",
               "operator": "mask selective_decay (gate::source), norm row_sum", "processor": "AMD EPYC 9B14 96-Core Processor",
               "threads": "1", "compiler": "g++ 12.2.0", "limits": "217 GFLOP/s multiply-add, 12.8 GB/s memory"}
    if crossover is not None:
        context["crossover"] = crossover
    seconds = {"full": lambda L: 1e-8 * L * L, "recurrent": lambda L: 1.6e-6 * L, "chunkwise": lambda L: 1.5e-6 * L}
    if one_state:
        seconds["recurrent"] = seconds["chunkwise"] = lambda L: 0.6e-6 * L
    seconds["automatic"] = lambda L: min(seconds["full"](L), seconds["chunkwise"](L))
    return context, {form: {L: (factor * time(L), 0.6 * factor * time(L)) for L in lengths} for form, time in seconds.items()}


def committed():
    """Every committed chart and how it is drawn: limits and peers of one run share a name."""
    for path in sorted(RESULTS.glob("*.svg")):
        name = path.stem.removesuffix("-cpu")
        peers = RESULTS / f"{name}-torch.json"
        if (RESULTS / f"{path.stem}.json").exists():
            yield path, compare, compare.draw(*compare.read(RESULTS / f"{path.stem}.json"))
        else:
            script = cpu if path.stem.endswith("-cpu") else cuda
            yield path, script, script.draw(script.read(RESULTS / f"{name}-limits.json"), script.read(peers if peers.exists() else None))


def words_of(picture):
    return [text.text for text in xml.parse(picture).iter("{http://www.w3.org/2000/svg}text")]


def main():
    if sys.argv[1:] == ["--redraw"]:
        for path, script, figure in committed():
            script.save(figure, path)
        return
    default = [64, 128, 197, 256, 512, 1024, 2048, 4096]
    readable(compare.draw(*report(default, "148")), "default lengths")
    readable(compare.draw(*report(default, "below 64", one_state=True)), "all ones")
    readable(compare.draw(*report([4096], "above 4096")), "one length")
    readable(compare.draw(*report([20])), "one short length, no crossover")
    readable(compare.draw(*report([64, 128], "above 128")), "two lengths")
    readable(compare.draw(*report([100, 101, 400], "149")), "three lengths")
    readable(compare.draw(*report([1, 7, 8, 9, 1000, 1001, 1002, 100000], "150")), "lengths that crowd")
    readable(compare.draw(*report(default, "148", factor=1e-5)), "nanoseconds")
    readable(compare.draw(*report(default, "148", factor=1e4)), "seconds")
    for path, script, figure in committed():
        with tempfile.TemporaryDirectory() as folder:
            drawn = pathlib.Path(folder) / "drawn.svg"
            script.save(figure, drawn)
            expect(words_of(path) == words_of(drawn), f"{path.name} is older than its numbers or its script: chart_test.py --redraw")
            expect([file.name for file in drawn.parent.iterdir()] == ["drawn.svg"], "saving leaves other files behind")
        readable(figure, path.name)
        if script is cpu:
            limits = cpu.read(RESULTS / (path.stem.removesuffix("-cpu") + "-limits.json"))
            readable(cpu.draw(limits, None), path.name + " without peers")
        elif script is cuda:
            readable(cuda.draw(cuda.read(RESULTS / f"{path.stem}-limits.json"), None), path.name + " without peers")
    print("\n".join(failures) or "The charts can be read.")
    sys.exit(1 if failures else 0)


main()
