#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the processor beside bila, on the same shapes in the same run: float, B = 1, H = 12, D = 64, row sums.

    pip install torch
    python3 bench/peers/torch_cpu.py build/release/bench/bila_peer_times [--out FILE] [--lengths 197,512,1024] [--threads 1,2]

Three rounds, bila and PyTorch in turn; the median of the rounds counts on one thread, PyTorch's best round on more. PyTorch is given
what helps it: its own choice of kernels, masks and work space made beforehand, products and scalings in place, the best of four
chunk lengths and of two ways to carry states. Its chunkwise attention is the same algorithm as bila's, batched over heads and chunks.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import whole_file

# Freed memory stays with the process: page faults would be counted against PyTorch.
if os.environ.get("MALLOC_TRIM_THRESHOLD_") is None:
    os.environ.update(MALLOC_TRIM_THRESHOLD_="-1", MALLOC_MMAP_THRESHOLD_=str(1 << 40), MALLOC_TOP_PAD_=str(1 << 28))
    os.execv(sys.executable, [sys.executable, *sys.argv])

try:
    import torch
except ImportError:
    sys.exit("torch_cpu.py needs PyTorch: pip install torch")

H, D = 12, 64


def seconds_of(call):
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    calls = max(1, int(0.02 / once))
    rounds = []
    for _ in range(5 if once < 0.1 else 1):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - start) / calls)
    return statistics.median(rounds)


class Problem:
    def __init__(self, L):
        generator = torch.Generator().manual_seed(1)
        self.L = L
        self.q, self.k = (torch.rand(1, H, L, D, generator=generator) for _ in range(2))
        self.v = 2 * torch.rand(1, H, L, D, generator=generator) - 1
        self.decay = torch.exp(-0.1 * torch.rand(H, generator=generator))
        self.gates = -0.1 * torch.rand(1, H, L, generator=generator)

    def softmax(self):
        q, k, v = self.q, self.k, self.v
        scores, scale = torch.empty(1, H, self.L, self.L), D**-0.5

        def explicit():
            torch.matmul(q, k.transpose(-1, -2), out=scores)
            return torch.matmul(torch.softmax(scores.mul_(scale), -1), v)

        return {"scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v), "explicit": explicit}

    def full(self):
        q, k, v = self.q, self.k, self.v
        t = torch.arange(self.L)
        mask = self.decay.view(1, H, 1, 1) ** (t.view(-1, 1) - t).abs()
        scores = torch.empty(1, H, self.L, self.L)

        def call():
            torch.matmul(q, k.transpose(-1, -2), out=scores)
            scores.mul_(mask)
            return torch.matmul(scores, v).div_(scores.sum(-1, keepdim=True).add_(1e-6))

        return {"in place": call}

    def full_selective(self):
        q, k, v = self.q, self.k, self.v
        scores, mask = torch.empty(1, H, self.L, self.L), torch.empty(1, H, self.L, self.L)

        def call():  # the mask belongs to the input, so it is made each time
            c = self.gates.cumsum(-1)
            torch.sub(c.unsqueeze(-1), c.unsqueeze(-2), out=mask)
            mask.abs_().neg_().exp_()
            torch.matmul(q, k.transpose(-1, -2), out=scores)
            scores.mul_(mask)
            return torch.matmul(scores, v).div_(scores.sum(-1, keepdim=True).add_(1e-6))

        return {"in place": call}

    def chunkwise(self):
        def make(C, carry):
            n = -(-self.L // C)
            pad = lambda x: torch.nn.functional.pad(x, (0, 0, 0, n * C - self.L)).view(1, H, n, C, D)
            t = torch.arange(C)
            decay = self.decay.view(1, H, 1, 1, 1)
            inside = decay ** (t.view(-1, 1) - t).abs()
            before, after = decay ** (t + 1).view(-1, 1), decay ** (C - t).view(-1, 1)  # from a border to the token, either way
            leaves, enters = decay ** (C - 1 - t).view(-1, 1), decay ** t.view(-1, 1)
            total = (self.decay**C).view(1, H, 1, 1)
            chunk = torch.arange(n)
            apart = chunk.view(-1, 1) - chunk - 1
            weights = torch.where(apart >= 0, self.decay.view(H, 1, 1) ** (C * apart.clamp(min=0)), torch.zeros(())).unsqueeze(0)

            def states(own, reverse):
                if carry == "matmul":
                    w = weights.transpose(-1, -2) if reverse else weights
                    return torch.matmul(w, own.flatten(-2)).view_as(own)
                result, state = torch.empty_like(own), torch.zeros(1, H, D, D + 1)
                for i in reversed(range(n)) if reverse else range(n):
                    result[:, :, i] = state
                    state.mul_(total).add_(own[:, :, i])
                return result

            def call():
                q, k, v = pad(self.q), pad(self.k), pad(self.v)
                v1 = torch.nn.functional.pad(v, (0, 1), value=1.0)
                forward = states(torch.matmul((k * leaves).transpose(-1, -2), v1), False)
                backward = states(torch.matmul((k * enters).transpose(-1, -2), v1), True)
                scores = torch.matmul(q, k.transpose(-1, -2)).mul_(inside)
                out = torch.matmul(scores, v1)
                out.add_(torch.matmul(q * before, forward)).add_(torch.matmul(q * after, backward))
                y = out[..., :D] / out[..., D:].add(1e-6)
                return y.reshape(1, H, n * C, D)[:, :, : self.L]

            return call

        return {f"C = {C}, {carry}": make(C, carry) for C in (32, 64, 128, 256) if C < self.L for carry in ("loop", "matmul")}

    def all_ones(self):
        q, k, v = self.q, self.k, self.v

        def call():
            z = torch.matmul(q, k.sum(-2, keepdim=True).transpose(-1, -2)).add_(1e-6)
            return torch.matmul(q, torch.matmul(k.transpose(-1, -2), v)).div_(z)

        return {"q (k^T v)": call}


def check(problem):
    """The chunkwise peer computes what the full one does."""
    full = problem.full()["in place"]().clone()
    for name, call in problem.chunkwise().items():
        worst = (call() - full).abs().max().item()
        if not worst < 1e-4:
            sys.exit(f"torch_cpu.py: chunkwise, {name}, differs from full by {worst}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bila")
    parser.add_argument("--lengths", default="197,512,1024")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    config = [line.strip("- ").strip() for line in torch.__config__.show().splitlines()]
    blas = [line for line in config if "Math Kernel" in line or "CPU capability" in line]
    blas += [word for line in config for word in line.split(", ") if "BLAS_INFO" in word]
    print("PyTorch", torch.__version__, "|", " | ".join(blas))
    check(Problem(197))
    ratios, times_of_all = [], []
    print(f"{'L':>6} {'threads':>7}  {'what':22} {'bila, ms':>10} {'PyTorch, ms':>11}  ratio   PyTorch's best")
    for threads in map(int, arguments.threads.split(",")):
        torch.set_num_threads(threads)
        for L in map(int, arguments.lengths.split(",")):
            problem = Problem(L)
            ours, theirs = {}, {}
            with torch.inference_mode():
                for _ in range(3):
                    printed = subprocess.run([arguments.bila, str(L), str(threads)], capture_output=True, text=True, check=True).stdout
                    best = {}
                    for form, ms in (line.split() for line in printed.splitlines()):
                        best[form] = min(best.get(form, float("inf")), float(ms))
                    for form, ms in best.items():
                        ours.setdefault(form, []).append(ms)
                    for what in ("softmax", "full", "full_selective", "chunkwise", "all_ones"):
                        times = {name: 1e3 * seconds_of(call) for name, call in getattr(problem, what)().items()}
                        name = min(times, key=times.get)
                        theirs.setdefault(what, []).append((times[name], name))
            best = lambda form: statistics.median(ours[form])
            times_of_all += [dict(L=L, threads=threads, who="bila", what=form, ms=best(form)) for form in ours]
            times_of_all += [dict(L=L, threads=threads, who="PyTorch", what=w, ms=statistics.median(t for t, _ in theirs[w])) for w in theirs]
            fastest = min(ours.keys() - {"all_ones"}, key=best)
            rows = [("full", "full"), ("full_selective", "full_selective"), ("chunkwise", "chunkwise"), ("all_ones", "all_ones"),
                    (fastest, "softmax"), (fastest, "full")]
            for mine, what in rows:
                chosen = sorted(theirs[what])[len(theirs[what]) // 2 if threads == 1 else 0]
                label = what if mine == what else f"{what} / our {mine}"
                ratios.append(dict(L=L, threads=threads, what=label, bila_ms=best(mine), torch_ms=chosen[0], torch=chosen[1]))
                print(f"{L:6} {threads:7}  {label:22} {best(mine):10.3f} {chosen[0]:11.3f} {chosen[0] / best(mine):6.2f}   {chosen[1]}", flush=True)
    if arguments.out:
        whole_file.write(arguments.out, json.dumps({"torch": torch.__version__, "config": blas, "ratios": ratios, "times": times_of_all}, indent=1) + "\n")


if __name__ == "__main__":
    main()
