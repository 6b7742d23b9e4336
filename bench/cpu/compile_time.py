#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to compile bila: seconds of processor time, peak memory, code size. The least of three runs, against the goals.

The goals are those of a machine where <Eigen/Core> alone takes 0.9 s; on another, seconds are scaled by that.

    compile_time.py [--compiler g++] [--eigen /usr/include/eigen3] [--gate] [--out FILE]

--gate exits with 1 where the limit that must not be crossed is crossed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import whole_file

EMPTY = "#include <Eigen/Core>\n"
INCLUDE = "#include <bila/bila.hpp>\n"
EVERYTHING = """#include <bila/bila.hpp>
template <class Form, class Mask>
void one(const Form& form, const Mask& mask, const bila::inputs<float>& in, const bila::tensor_view<float>& y) {
  bila::attend(form, mask, bila::norm::row_sum{1e-6}, in, y);
}
template <class Form>
void all(const Form& form, const bila::inputs<float>& in, const bila::tensor_view<float>& y, const float* a) {
  one(form, bila::mask::all_ones{}, in, y);
  one(form, bila::mask::fixed_decay{bila::vec(a, 12)}, in, y);
  one(form, bila::mask::selective_decay{bila::bhl(a, 1, 12, 1024), bila::gate::source}, in, y);
}
void use(const bila::inputs<float>& in, const bila::tensor_view<float>& y, const float* a) {
  all(bila::form::full{}, in, y, a);
  all(bila::form::recurrent{}, in, y, a);
  all(bila::form::chunkwise{}, in, y, a);
}
"""


def compile_once(arguments, source, folder):
    unit, result = folder / "unit.cpp", folder / "unit.o"
    unit.write_text(source)
    command = [arguments.compiler, "-std=c++20", "-O3", "-march=native", "-DNDEBUG", "-w", f"-I{ROOT}/include",
               "-isystem", arguments.eigen, "-c", str(unit), "-o", str(result)]
    child = os.fork()
    if child == 0:
        os.execvp(command[0], command)
    _, status, used = os.wait4(child, 0)  # what the compiler itself took
    if status != 0:
        sys.exit("compile_time.py: " + " ".join(command) + " failed")
    size = subprocess.run(["size", str(result)], capture_output=True, text=True, check=True)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, int(size.stdout.splitlines()[1].split()[0]) / 1024


def least(arguments, source):
    with tempfile.TemporaryDirectory() as folder:
        runs = [compile_once(arguments, source, pathlib.Path(folder)) for _ in range(3)]
    return tuple(min(column) for column in zip(*runs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--eigen", default="/usr/include/eigen3")
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    eigen, include, everything = (least(arguments, source) for source in (EMPTY, INCLUDE, EVERYTHING))
    slower = eigen[0] / 0.9
    rows = [
        ("including bila, beyond <Eigen/Core>", "s", (include[0] - eigen[0]) / slower, 0.25, 0.5),
        ("three forms, three masks, float: time", "s", everything[0] / slower, 5, 8),
        ("three forms, three masks, float: memory", "MB", everything[1], 550, 800),
        ("three forms, three masks, float: code", "KB", everything[2], 100, None),
    ]
    print(f"{arguments.compiler}, -O3 -march=native; <Eigen/Core> alone: {eigen[0]:.2f} s, {eigen[1]:.0f} MB; seconds below are measured / {slower:.2f}")
    print(f"{'':42} {'measured':>11} {'goal':>8} {'at most':>8}")
    crossed = False
    for name, unit, value, goal, limit in rows:
        verdict = "" if value <= goal else "  above the goal" if limit is None or value <= limit else "  ABOVE"
        crossed = crossed or (limit is not None and value > limit)
        print(f"{name:42} {value:8.2f} {unit:2} {goal:8} {'-' if limit is None else limit:>8}{verdict}")
    if arguments.out:
        figures = [dict(name=n, unit=u, value=v, goal=g, gate=l) for n, u, v, g, l in rows]
        whole_file.write(arguments.out, json.dumps({"compiler": arguments.compiler, "figures": figures}, indent=1) + "\n")
    return 1 if arguments.gate and crossed else 0


if __name__ == "__main__":
    sys.exit(main())
