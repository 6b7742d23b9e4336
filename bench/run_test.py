# SPDX-License-Identifier: Apache-2.0
"""bench/run with a program that is built already: where results go, what is left of the run before, what is said meanwhile.

    run_test.py BILA_COMPARE FILES        FILES: the folder with q.npy, k.npy and v.npy
"""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
COMPARE, FILES = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
FAST = ["--seconds=1e-6", "--repetitions=1"]
OWN = ["--q=q.npy", "--k", "k.npy", "--v=v.npy"]
HAS_MATPLOTLIB = bool(subprocess.run([HERE / "find_python.sh", "matplotlib"], capture_output=True, text=True, check=True).stdout)


class Run(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.folder = pathlib.Path(self.place.name)
        for name in ("q.npy", "k.npy", "v.npy"):
            (self.folder / name).write_bytes((FILES / name).read_bytes())

    def run_it(self, *arguments, program=COMPARE):
        return subprocess.run([HERE / "run", *arguments], cwd=self.folder, env={**os.environ, "BILA_COMPARE": str(program)},
                              capture_output=True, text=True)

    def left(self):
        return sorted(path.name for path in self.folder.iterdir() if path.suffix != ".npy")

    def test_help_needs_no_program(self):
        told = self.run_it("--help", program="/no/such/program")
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        self.assertEqual(told.stdout, subprocess.run([COMPARE, "--help"], capture_output=True, text=True, check=True).stdout)
        self.assertLessEqual(max(map(len, told.stdout.splitlines())), 80)

    def test_results_lie_where_the_caller_said(self):
        (self.folder / "results").mkdir()
        for out in (["--out", "results/mine.json"], ["--out=other.json"]):
            done = self.run_it(*OWN, *FAST, *out)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            file = out[-1].removeprefix("--out=")
            self.assertIn(f"Numbers: {file}\n", done.stdout)
            self.assertTrue(json.loads((self.folder / file).read_text())["benchmarks"])
            if HAS_MATPLOTLIB:
                self.assertIn(f"Chart:   {file.removesuffix('.json')}.svg\n", done.stdout)
                self.assertIn("<svg", (self.folder / file).with_suffix(".svg").read_text())
        charts = ["other.svg"] if HAS_MATPLOTLIB else []
        self.assertEqual(self.left(), ["other.json", *charts, "results"])

    def test_one_crossover_in_terminal_json_and_chart(self):
        picture = ["--patches", str(HERE / "data/astronaut.npy"), "--lengths", "8,512", "--seconds=1e-4", "--repetitions=3"]
        done = self.run_it(*picture, "--out=mine.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        printed = re.search(r"^Crossover: (?:L = )?([^,]+),", done.stdout, re.M)[1]
        self.assertEqual(json.loads((self.folder / "mine.json").read_text())["context"]["crossover"], printed)
        if HAS_MATPLOTLIB and printed.isdigit():
            self.assertIn(f"L ≈ {printed} (dashed)", (self.folder / "mine.svg").read_text(encoding="utf-8"))

    def test_a_refused_call_leaves_the_run_before(self):
        (self.folder / "mine.json").write_text("of the run before")
        for wrong in (["--threads", "none"], ["--lengths", "21"], ["--log-decay", "absent.npy"], ["--benchmark_nothing=1"],
                      ["--benchmark_filter=nothing"]):
            done = self.run_it(*OWN, *FAST, "--out", "mine.json", *wrong)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertEqual((self.folder / "mine.json").read_text(), "of the run before", wrong)
            self.assertEqual(self.left(), ["mine.json"], wrong)

    def test_a_killed_run_leaves_the_run_before(self):
        (self.folder / "mine.json").write_text("of the run before")
        with subprocess.Popen([COMPARE, *OWN, "--seconds=600", "--out=mine.json"], cwd=self.folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as running:
            while not running.stderr.readline().startswith("timing"):
                self.assertIsNone(running.poll())
            running.send_signal(signal.SIGKILL)
        self.assertEqual((self.folder / "mine.json").read_text(), "of the run before")
        self.assertEqual(self.left(), ["mine.json"])

    def test_tables_fit_80_columns_and_each_length_is_announced(self):
        done = subprocess.run([COMPARE, "--patches", HERE / "data/astronaut.npy", "--lengths=64,300", *FAST], capture_output=True,
                              text=True, check=True)
        after_the_facts = done.stdout.split("\n\n", 1)[1]
        self.assertLessEqual(max(map(len, after_the_facts.splitlines())), 80)
        for step in ("checking L = 64 against the definition", "checking L = 300 against the definition", "timing L = 64", "timing L = 300"):
            self.assertEqual(done.stderr.splitlines().count(step), 1, done.stderr)

    def test_a_terminal_has_one_line_of_progress_and_no_rest_of_it(self):
        terminal, end = pty.openpty()
        with open(os.dup(terminal), "rb", buffering=0) as screen:
            subprocess.run([COMPARE, *OWN, *FAST], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=end, check=True)
            os.close(end)
            shown = b""
            while part := self.read(screen):
                shown += part
        os.close(terminal)
        self.assertIn(b"\r\033[Kchecking L = 20 against the definition: head 2 of 2 (", shown)
        self.assertIn(b"\r\033[Ktiming L = 20: automatic, 4 of 4 (", shown)
        self.assertNotIn(b"\n", shown)
        self.assertTrue(shown.endswith(b"\r\033[K"))

    @staticmethod
    def read(screen):
        try:
            return screen.read(4096)
        except OSError:  # how Linux says that the other side was closed
            return b""


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
