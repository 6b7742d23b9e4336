#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the GPU on the shapes of bench/cuda/limits.cu: bf16, [B, H, L, D], CUDA events, medians of single calls.

    build/cuda/bila_bench_cuda --out build/cuda/limits.json
    python3 bench/peers/torch_gpu.py --bila build/cuda/limits.json --out build/cuda/torch.json

softmax     scaled_dot_product_attention, the fastest of flash attention and cuDNN
lion        full attention with the selective mask, written from the equations and compiled, with row sums; up to L = 8192
all_ones    q (k^T v) over q (k^T 1), as it stands

The calls are queued behind a sleeping kernel, so the interpreter's time is not counted. With the gradient, lion also gives the
gates'. Without --bila the copy bandwidth is measured here and there are no ratios.
"""

import argparse
import contextlib
import json
import pathlib
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import whole_file

try:
    import torch
except ImportError:
    sys.exit("torch_gpu.py needs PyTorch: pip install torch")

from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = [("ViT-S 224", 256, 6, 197), ("BERT-L 512", 32, 16, 512), ("2k", 16, 16, 2048), ("8k", 4, 16, 8192), ("32k", 1, 16, 32768),
         ("131k", 1, 16, 131072)]
D, EPS = 64, 1e-6
PASSES = {"forward": 4, "forward_and_gradient": 11}  # tensors read and written
DEVICE = "cuda"
LONGEST_LION = 8192


def softmax_by(backend):
    def softmax(q, k, v, a):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return softmax


def lion(q, k, v, a):
    """y = ((q k^T) o M) v / row sum, M_ij = exp of the log gates between i and j; a <= 0, so that is -|c_i - c_j|."""
    c = a.cumsum(-1)
    mask = torch.exp(-(c.unsqueeze(-1) - c.unsqueeze(-2)).abs())
    scores = ((q @ k.mT) * mask).to(q.dtype)
    return ((scores @ v) / (scores.sum(-1, keepdim=True, dtype=torch.float32) + EPS)).to(q.dtype)


def all_ones(q, k, v, a):
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT + EPS)


def check():
    """Both peers on a small problem against a loop over pairs, in float32."""
    generator = torch.Generator().manual_seed(1)
    L = 33
    q, k, v = (torch.rand(1, 1, L, 8, generator=generator) for _ in range(3))
    a = -torch.rand(1, 1, L, generator=generator)
    for call, gates in ((lion, a), (all_ones, torch.zeros_like(a))):
        wanted = torch.zeros(L, 8, dtype=torch.float64)
        for i in range(L):
            total = 0.0
            for j in range(L):
                gaps = gates[0, 0, min(i, j) + 1 : max(i, j) + 1].double()
                weight = torch.exp(gaps.sum()) * (q[0, 0, i].double() @ k[0, 0, j].double())
                wanted[i] += weight * v[0, 0, j].double()
                total += weight
            wanted[i] /= total + EPS
        got = call(*(x.to(DEVICE) for x in (q, k, v, gates)))[0, 0].double().cpu()
        worst = (got - wanted).abs().max().item()
        if not worst < 2e-3:  # products may be tf32
            sys.exit(f"torch_gpu.py: {call.__name__} differs from its definition by {worst}")


class TooSlow(BaseException):
    """No Exception: the compiler catches those, and goes on."""


@contextlib.contextmanager
def at_most(seconds, why):
    def stop(*_):
        raise TooSlow(why)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def milliseconds(call, repetitions):
    """call(n): the nth call, on the tensors of its turn. Median of single calls; fewer where one takes long."""
    call(0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    call(1)
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    repetitions = max(3, min(repetitions, int(0.3 / once)))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repetitions)]
    torch.cuda._sleep(int(2e9 * min(1.5 * host * repetitions + 2e-4, 0.1)))
    for n, (first, last) in enumerate(events):
        first.record()
        call(n)
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in events), repetitions


class Problem:
    def __init__(self, B, H, L):
        generator = torch.Generator(DEVICE).manual_seed(1)
        random = lambda *shape, **kind: torch.rand(*shape, device=DEVICE, generator=generator, **kind)
        self.sets = []
        for _ in range(1 if L > 100000 else 3):
            q, k, v, dy = (random(B, H, L, D, dtype=torch.bfloat16) for _ in range(4))
            rates = torch.tensor([1, 0.1, 0.03, 0.01, 0.001], device=DEVICE).repeat(H)[:H].view(1, H, 1)
            self.sets.append((q, k, 2 * v - 1, -2 * rates * random(B, H, L), 2 * dy - 1))

    def forward(self, call):
        def run(n):
            q, k, v, a, _ = self.sets[n % len(self.sets)]
            with torch.no_grad():
                return call(q, k, v, a)

        return run

    def forward_and_gradient(self, call, gates):
        wanted = [[x.detach().requires_grad_() for x in (q, k, v, a)] for q, k, v, a, _ in self.sets]

        def run(n):
            q, k, v, a = wanted[n % len(wanted)]
            return torch.autograd.grad(call(q, k, v, a), (q, k, v, a) if gates else (q, k, v), self.sets[n % len(wanted)][4])

        return run

    def passes(self, call, gates):
        return {"forward": self.forward(call), "forward_and_gradient": self.forward_and_gradient(call, gates)}


def copy_bandwidth():
    size = min(1 << 31, torch.cuda.mem_get_info()[0] // 4)
    source = torch.full((size,), 0x5A, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ms, _ = milliseconds(lambda n: target.copy_(source), 11)
    return 2e3 * size / ms


def first_line(failure):
    return (str(failure).strip() or type(failure).__name__).splitlines()[0][:80]


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        self.started = time.perf_counter()
        self.rows = []
        self.bila = {}
        self.bandwidth = None
        self.has_compiled = self.too_slow = False
        if arguments.bila:
            with open(arguments.bila, encoding="utf-8") as file:
                ours = json.load(file)
            self.bandwidth = ours["context"]["copy_bandwidth"]
            for row in ours["times"]:
                if row["form"] == "automatic":
                    for what in PASSES:
                        self.bila[row["case"], row["mask"], what] = row.get(what, {}).get("ms")

    def add(self, case, what, mask, name, variants, note=""):
        """variants: name -> ms; the fastest counts."""
        case_name, B, H, L = case
        row = dict(case=case_name, B=B, H=H, L=L, D=D, what=what, mask=mask, note=note)
        row["pass"] = name
        ours = self.bila.get((case_name, mask, name))
        if variants:
            row["variant"] = min(variants, key=variants.get)
            row["ms"] = variants[row["variant"]]
            row["variants"] = variants
            row["times_floor"] = row["ms"] / (1e3 * PASSES[name] * 2 * B * H * L * D / self.bandwidth)
            if ours:
                row["bila_ms"] = ours
                row["ratio"] = row["ms"] / ours
        self.rows.append(row)
        shown = lambda key, form: format(row[key], form) if key in row else "-"
        remarks = "; ".join(filter(None, (row.get("variant"), note)))
        print(f"{case_name:11}{what:9}{'forward' if name == 'forward' else '+gradient':10}{shown('ms', '.4f'):>10}"
              f"{shown('times_floor', '.1f'):>8}{shown('bila_ms', '.4f'):>10}{shown('ratio', '.2f'):>7}   {remarks}", flush=True)

    def measure(self, case, what, mask, calls, gates=False, compiled=False):
        """calls: variant -> function of q, k, v, a. What fails is a row with a note."""
        found = {name: {} for name in PASSES}
        notes = {name: [] for name in PASSES}
        for variant, call in calls.items():
            for name, run in Problem.passes(self.problem, call, gates).items():
                left = self.arguments.seconds - (time.perf_counter() - self.started)
                try:
                    if left < 3:
                        raise TooSlow(f"left out: {self.arguments.seconds:g} s are over")
                    if compiled:
                        if self.too_slow:
                            raise TooSlow("left out: an earlier graph took too long to compile")
                        start = time.perf_counter()
                        # The first graph also pays for the start of the compiler.
                        seconds = min(left, self.arguments.compile_seconds * (1 if self.has_compiled else 2))
                        with at_most(seconds, f"not compiled within {seconds:.0f} s"):
                            run(0)
                            torch.cuda.synchronize()
                        self.has_compiled = True
                        notes[name].append(f"compiled in {time.perf_counter() - start:.1f} s")
                    ms, repetitions = milliseconds(run, self.arguments.repetitions)
                    found[name][variant] = ms
                    if repetitions < self.arguments.repetitions:
                        notes[name].append(f"{repetitions} calls")
                except (TooSlow, RuntimeError) as failure:  # out of memory is a RuntimeError
                    self.too_slow = self.too_slow or compiled and isinstance(failure, TooSlow)
                    notes[name].append(f"{variant}: {first_line(failure)}")
                except Exception as failure:  # the compiler wraps what stopped it
                    if not compiled:
                        raise
                    notes[name].append(f"{variant}: {first_line(failure)}")
                torch.cuda.empty_cache()
        for name in PASSES:
            self.add(case, what, mask, name, found[name], "; ".join(notes[name]))

    def all_of(self, case):
        L = case[3]
        self.problem = Problem(*case[1:])
        flash = {"flash": softmax_by(SDPBackend.FLASH_ATTENTION)}
        self.measure(case, "softmax", "selective_decay",
                     flash if L > 32768 else flash | {"cuDNN": softmax_by(SDPBackend.CUDNN_ATTENTION)})
        self.measure(case, "all_ones", "all_ones", {"eager": all_ones})
        if L <= LONGEST_LION:
            torch._dynamo.reset()  # a graph of its own for each shape, however many there were
            compiled = {"torch.compile": torch.compile(lion, dynamic=False)}
            self.measure(case, "lion", "selective_decay", compiled, gates=True, compiled=True)
        else:
            for name in PASSES:
                self.add(case, "lion", "selective_decay", name, {}, f"left out: L > {LONGEST_LION}")
        del self.problem
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bila", help="JSON of bila_bench_cuda")
    parser.add_argument("--out")
    parser.add_argument("--case", help="one case alone")
    parser.add_argument("--repetitions", type=int, default=21)
    parser.add_argument("--compile-seconds", type=float, default=15, help="what takes longer to compile is left out")
    parser.add_argument("--seconds", type=float, default=80, help="what has not begun by then is left out")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_gpu.py needs a GPU")
    cases = [case for case in CASES if arguments.case in (None, case[0])]
    if not cases:
        sys.exit(f"torch_gpu.py: no such case: {arguments.case}")
    check()
    run = Run(arguments)
    if run.bandwidth is None:
        run.bandwidth = copy_bandwidth()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; floor at {run.bandwidth / 1e12:.2f} TB/s;"
          " bila: form automatic with the same mask, selective beside softmax")
    print(f"{'case':11}{'peer':9}{'pass':10}{'ms':>10}{'x floor':>8}{'bila ms':>10}{'ratio':>7}")
    for case in cases:
        run.all_of(case)
    print(f"{time.perf_counter() - run.started:.0f} s")
    if arguments.out:
        context = dict(torch=torch.__version__, cuda=torch.version.cuda, device=torch.cuda.get_device_name(), type="bf16",
                       layout="[B, H, L, D]", repetitions=arguments.repetitions, copy_bandwidth=run.bandwidth)
        whole_file.write(arguments.out, json.dumps({"context": context, "times": run.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
