#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wider family in PyTorch beside bila in one run: float, 4096 tokens, D = 64, one thread, milliseconds for one head.

    pip install torch
    python3 bench/peers/torch_family.py build/release/bench/bila_bench_family [rounds]

PyTorch runs each member's chunkwise algorithm in both directions, batched over 12 heads, the time divided by 12, with the better of
two chunk lengths; its gradient is autograd's. It is given the faster formulas: in a chunk decays are ratios, which overflow where
gates are strong, and nothing is stabilised. So the figures are what a careful user of PyTorch would get at best.
"""

import os
import re
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
try:
    import torch
except ImportError:
    sys.exit("torch_family.py needs PyTorch: pip install torch")

torch.set_num_threads(1)
H, L, D = 12, 4096, 64
BELOW = {C: torch.ones(C, C).tril(-1) for C in (32, 64)}


def chunks(x, C):
    return x.reshape(H, L // C, C, -1)


def decayed_reads(q, k, v, logs, C, inner):
    """One direction: reads of the states between chunks plus `inner`, a function of the weighed tokens of all chunks."""
    q, k, v = chunks(q, C), chunks(k, C), chunks(v, C)
    a = chunks(logs, C).cumsum(2)
    total = a[:, :, -1:]
    reading, writing = q * a.exp(), k * (total - a).exp()
    y, sums = inner(q, k, v, a, reading), writing.transpose(2, 3) @ v
    S, states = torch.zeros(H, D, D), []
    decays = total.exp().transpose(2, 3)
    for n in range(L // C):
        states.append(S)
        S = decays[:, n] * S + sums[:, n]
    return (y + reading @ torch.stack(states, 1)).reshape(H, L, D)


def gated(q, k, v, logs, C):
    def inner(q, k, v, a, reading):
        return ((reading @ (k * (-a).exp()).transpose(2, 3)) * BELOW[C]) @ v

    return decayed_reads(q, k, v, logs, C, inner)


def weighed(q, k, v, logs, w, C):
    return gated(q, k * (w - w.amax()).exp(), v, logs, C)


def delta(q, k, v, logs, beta, C):
    q, k, v, beta = chunks(q, C), chunks(k, C), chunks(v, C), chunks(beta, C)
    a = chunks(logs, C).cumsum(2)
    total = a[:, :, -1:]
    reading, back = q * a.exp(), k * (-a).exp()
    T = beta * ((k * a.exp()) @ back.transpose(2, 3)) * BELOW[C]
    both = torch.linalg.solve_triangular(torch.eye(C) + T, torch.cat([beta * v, beta * k * a.exp()], 3), upper=False)
    U, W = both[..., :D], both[..., D:]
    A = (reading @ back.transpose(2, 3)) * BELOW[C]
    writing, decays = (k * (total - a).exp()).transpose(2, 3), total.exp().transpose(2, 3)
    S, rows = torch.zeros(H, D, D), []
    for n in range(L // C):
        u = U[:, n] - W[:, n] @ S
        rows.append(reading[:, n] @ S + A[:, n] @ u)
        S = decays[:, n] * S + writing[:, n] @ u
    return torch.stack(rows, 1).reshape(H, L, D)


def log_linear(q, k, v, logs, weights, C):
    near = C.bit_length()  # levels inside a chunk: 0 .. near - 1
    i = torch.arange(C)
    level = torch.log2((i[:, None] ^ i[None, :]).clamp(min=1).float()).long() + 1
    inside = torch.gather(chunks(weights, C), 3, level.expand(H, L // C, C, C))
    qc, kc, vc = chunks(q, C), chunks(k, C), chunks(v, C)
    a = chunks(logs, C).cumsum(2)
    y = (((qc * a.exp()) @ (kc * (-a).exp()).transpose(2, 3)) * BELOW[C] * inside @ vc).reshape(H, L, D)
    for p in range(near, L.bit_length()):
        half = 1 << (p - 1)
        a = logs.reshape(H, -1, 2, half, 1).cumsum(3)
        b = [x.reshape(H, -1, 2, half, D) for x in (q, k, v)]
        S = (b[1][:, :, 0] * (a[:, :, 0, -1:] - a[:, :, 0]).exp()).transpose(2, 3) @ b[2][:, :, 0]
        read = (b[0][:, :, 1] * a[:, :, 1].exp() * weights.reshape(H, -1, 2, half, weights.shape[-1])[:, :, 1, :, p : p + 1]) @ S
        y = y + torch.stack([torch.zeros_like(read), read], 2).reshape(H, L, D)
    return y


def milliseconds(call, rounds):
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times) / H


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    g = torch.Generator().manual_seed(1)

    def numbers(width, low, high):
        return (low + (high - low) * torch.rand(H, L, width, generator=g)).requires_grad_()

    q, k, v, gates, channels = numbers(D, 0.1, 1), numbers(D, 0.1, 1), numbers(D, -1, 1), numbers(1, -0.2, 0), numbers(D, -0.2, 0)
    unit = torch.nn.functional.normalize(torch.rand(H, L, D, generator=g) - 0.5, dim=2).requires_grad_()
    w, beta, levels, dy = numbers(1, -2, 2), numbers(1, 0, 1), numbers(13, 0, 1), torch.rand(H, L, D, generator=g)
    members = {
        "weighed_keys, none": lambda C: weighed(q, k, v, gates, w, C),
        "log_linear, none": lambda C: log_linear(q, k, v, gates, levels, C),
        "channel_decay, none": lambda C: gated(q, k, v, channels, C),
        "delta, none": lambda C: delta(q, unit, v, gates, beta, C),
        "delta of channels, none": lambda C: delta(q, unit, v, channels, beta, C),
    }
    text = subprocess.run([program, str(3 * rounds)], check=True, capture_output=True, text=True).stdout
    bila = {m[1].strip(): (float(m[2]), float(m[4])) for m in re.finditer(r"^(\S.*?) {2,}([\d.]+) +([\d.]+) +([\d.]+) +[\d.]+$", text, re.M)}
    print(f"{'ms for one head':26} {'bila':>8} {'PyTorch':>8} {'times':>6}   {'gradient':>8} {'PyTorch':>8} {'times':>6}")
    for name, call in members.items():
        best = [float("inf"), float("inf")]
        for C in BELOW:

            def forward():
                with torch.no_grad():
                    return call(C), call(C)  # two directions: the same work

            def gradient():
                ((call(C) + call(C)) * dy).sum().backward()

            ahead = milliseconds(forward, rounds)
            best = [min(best[0], ahead), min(best[1], milliseconds(gradient, rounds) - ahead)]
        ahead, back = bila[name]
        print(f"{name:26} {ahead:8.2f} {best[0]:8.2f} {best[0] / ahead:6.1f}   {back:8.2f} {best[1]:8.2f} {best[1] / back:6.1f}")


if __name__ == "__main__":
    main()
