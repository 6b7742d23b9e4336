#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Golden results of the operator, from its equations in 40 decimal digits, so that the output is the same on every machine:
#
#     python3 tests/golden/make.py > tests/golden/golden.hpp        (needs numpy)
#
#     [N_i, Z_i] = sum_j s (q_i . k_j) M_ij [v_j, 1],   M_ij = e^(f_{j+1} + ... + f_i) below, delta on, e^(b_{i+1} + ... + b_j) above the diagonal
import itertools
import textwrap
from decimal import Decimal, getcontext

import numpy as np

getcontext().prec = 40
CUT = Decimal("-Infinity")


def numbers(shape, stream, low, high):
    """Multiples of 1/16 in [low, high]: exact in float, double and decimal alike."""
    state, result = stream * 2654435761 % 2**32, []
    for _ in range(int(np.prod(shape))):
        state = (state * 1664525 + 1013904223) % 2**32
        result.append(Decimal(low * 16 + (state >> 8) % ((high - low) * 16 + 1)) / 16)
    return np.array(result, dtype=object).reshape(shape)


def gaps(mask, gates):
    """(f, b) of one head; entry 0 is not used. Whose gate gap t has: its own token's or the one before."""
    if mask == "all_ones":
        return np.full(len(gates), Decimal(0)), np.full(len(gates), Decimal(0))
    if mask == "fixed":
        return np.full(len(gates), gates[0]), np.full(len(gates), gates[0])
    before = np.roll(gates, 1)
    return {"later": (gates, gates), "source": (before, gates), "target": (gates, before), "earlier": (before, before)}[mask]


def weights(f, b, delta, direction, segment):
    L = len(f)
    M = np.full((L, L), Decimal(0))
    for i, j in itertools.product(range(L), repeat=2):
        if segment[i] != segment[j] or segment[i] < 0 or (direction == "forward" and j > i) or (direction == "backward" and j < i):
            continue
        M[i, j] = delta if i == j else sum(f[j + 1:i + 1] if i > j else b[i + 1:j + 1], Decimal(0)).exp()
    return M


def attend(q, k, v, M, s, norm, eps):
    A = q @ k.T * M
    N, Z = A @ v, A.sum(axis=1)
    if norm == "row_sum":
        return np.array([n / (z + eps) if z + eps else n * 0 for n, z in zip(N, Z)], dtype=object)
    if norm == "max_one":
        return np.array([s * n / max(abs(s * z), Decimal(1)) for n, z in zip(N, Z)], dtype=object)
    return s * N


def golden(index, mask, norm, direction="both", delta="1", s="1", B=1, H=2, L=7, Dk=3, Dv=2, Hk=None, offsets=(), lengths=(), cuts=()):
    Hk = Hk or H
    eps = Decimal("0.0625") if norm == "row_sum" else Decimal(0)
    low = 0 if norm == "row_sum" else -1
    q, k = numbers((B, H, L, Dk), 3 * index + 1, low, 1), numbers((B, Hk, L, Dk), 3 * index + 2, low, 1)
    v, gates = numbers((B, Hk, L, Dv), 3 * index + 3, -1, 1), numbers((B, H, L), 1000 + index, -2, 0)
    for t in cuts:
        gates[:, :, t] = CUT
    if mask == "fixed":
        gates[:, :, :] = gates[:1, :, :1]
    y = np.empty((B, H, L, Dv), dtype=object)
    for n, h in itertools.product(range(B), range(H)):
        segment = np.searchsorted(offsets, np.arange(L), side="right") if offsets else np.zeros(L, int)
        if lengths:
            segment = np.where(np.arange(L) < lengths[n], 0, -1)
        M = weights(*gaps(mask, gates[n, h]), Decimal(delta), direction, segment)
        y[n, h] = attend(q[n, h], k[n, h // (H // Hk)], v[n, h // (H // Hk)], M, Decimal(s), norm, eps)
    return dict(mask=mask, norm=norm, eps=eps, direction=direction, diagonal=delta, scale=s, sizes=(B, H, L, Dk, Dv, H, Hk, Hk), offsets=offsets,
                lengths=lengths, q=q, k=k, v=v, gates=gates[0, :, 0] if mask == "fixed" else gates, y=y)


def cases():
    index = itertools.count(1)
    for mask in ("all_ones", "fixed", "later", "source", "target", "earlier"):
        for norm in ("none", "row_sum", "max_one"):
            yield golden(next(index), mask, norm, s="0.5")
    for direction in ("forward", "backward"):
        for mask in ("all_ones", "source"):
            yield golden(next(index), mask, "row_sum", direction=direction, delta="0.25")
    yield golden(next(index), "source", "none", delta="0")
    yield golden(next(index), "later", "none", delta="2", Hk=1)
    yield golden(next(index), "source", "row_sum", cuts=(2, 5))
    yield golden(next(index), "later", "row_sum", L=11, H=1, offsets=(0, 3, 3, 8, 11))
    yield golden(next(index), "target", "row_sum", B=3, H=1, L=6, lengths=(6, 0, 4))
    yield golden(next(index), "source", "row_sum", H=1, L=1)
    yield golden(next(index), "source", "row_sum", H=1, L=70, Dk=1, Dv=1)


def literal(x):
    return "-inf" if x == CUT else repr(float(x)).removesuffix(".0")


def listed(values):
    return "{" + ", ".join(literal(x) for x in np.asarray(values, dtype=object).ravel()) + "}"


HEAD = """// SPDX-License-Identifier: Apache-2.0
// Golden results of the operator. Made by make.py, which says how; not to be edited.
#pragma once

#include "support/problem.hpp"

#include <limits>
#include <vector>

namespace test {

struct golden_case {
  mask_kind mask;
  any_norm norm;
  bila::direction direction;
  double diagonal, scale;
  sizes size;
  std::vector<index_t> offsets, lengths;
  std::vector<double> q, k, v, gates, y;  // [B, H, L, D] in logical order; gates: log decays [B, H, L], or [H] of a fixed mask
};

inline std::vector<golden_case> golden_cases() {
  constexpr double inf = std::numeric_limits<double>::infinity();
  return {"""

TAIL = """  };
}

}  // namespace test"""


def main():
    print(HEAD)
    for x in cases():
        norm = "row_sum{%s}" % x["eps"] if x["norm"] == "row_sum" else x["norm"] + "{}"
        fields = [f"mask_kind::{x['mask']}", f"bila::norm::{norm}", f"bila::direction::{x['direction']}", x["diagonal"], x["scale"]]
        fields += [listed(x[name]) for name in ("sizes", "offsets", "lengths", "q", "k", "v", "gates", "y")]
        print(textwrap.fill("{" + ", ".join(fields) + "},", 130, initial_indent="      ", subsequent_indent="       "))
    print(TAIL)


if __name__ == "__main__":
    main()
