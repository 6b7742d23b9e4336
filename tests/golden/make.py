#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Golden results of the operator, from its equations in 40 decimal digits, so that the output is the same on every machine:
#
#     python3 tests/golden/make.py > tests/golden/golden.hpp                  (needs numpy)
#     python3 tests/golden/make.py family > tests/golden/golden_family.hpp
#
#     [N_i, Z_i] = sum_j s (q_i . k_j) M_ij [v_j, 1],   M_ij = e^(f_{j+1} + ... + f_i) below, delta on, e^(b_{i+1} + ... + b_j) above the diagonal
#
# The family: weighed keys, decays per channel, exclusive reads, levels and the delta rule, each by its definition, so with all pairs of
# tokens, weights that are not stabilised, and for the delta rule the product of what every token between two does to the state.
import itertools
import sys
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


def numbers_of(B, H, L, D, stream, low=-1, high=1):
    return numbers((B, H, L, D), stream, low, high)


class Head:
    """One head of the family. f and b are the log decays of gaps, [L + 1, channels]: gap 0 and gap L lie between an initial state and the
    tokens. carried: by direction the initial state as (S, z), or nothing."""

    def __init__(self, q, k, v, f, b, direction, delta, carried):
        self.q, self.k, self.f, self.b, self.direction, self.delta, self.carried = q, k, f, b, direction, delta, carried
        self.v1 = np.concatenate([v, np.full((len(v), 1), Decimal(1))], axis=1)  # the row sum is one more column of v
        self.L = len(q)

    def passed(self, i, j, exclusive=False):
        """What is left, by channel, of token j when token i reads it; -1 and L stand for the initial states."""
        logs = self.f[j + 1:i + (not exclusive)] if i > j else self.b[i + 1 + exclusive:j + 1]
        return np.array([sum(column, Decimal(0)).exp() for column in logs.T])

    def sees(self, i, j):
        return i == j or self.direction in ("both", "forward" if j < i else "backward")

    def way(self, i, j):
        return "forward" if j < i else "backward"

    def written(self, j):
        """The state that token j, or an initial state, brings along: Dk x (Dv + 1)."""
        if 0 <= j < self.L:
            return np.outer(self.k[j], self.v1[j])
        S, z = self.carried["forward" if j < 0 else "backward"]
        return np.concatenate([S, z[:, None]], axis=1)

    def sources(self):
        """All tokens and the initial states that are given."""
        return [*range(self.L), *([-1] if "forward" in self.carried else []), *([self.L] if "backward" in self.carried else [])]

    def by_pairs(self, weight, diagonal, exclusive=False):
        """[N_i, Z_i] without the scale. weight(i, j): what the pair has besides its decays; diagonal(i): by channel, for j = i."""
        rows = np.full(self.v1.shape, Decimal(0))
        for i, j in itertools.product(range(self.L), self.sources()):
            if i == j:
                rows[i] += (self.q[i] * diagonal(i) * self.delta) @ self.written(i)
            elif self.sees(i, j):
                rows[i] += (self.q[i] * self.passed(i, j, exclusive) * weight(i, j)) @ self.written(j)
        return rows

    def final(self, way, weight):
        """The state after the last token forwards, before the first one backwards."""
        end = self.L - 1 if way == "forward" else 0
        before = [j for j in self.sources() if (j <= end if way == "forward" else j >= end)]
        return sum(self.passed(end, j)[:, None] * weight(j) * self.written(j) for j in before)

    def transition(self, i, way, beta):
        """What token i does to the state: decay through the gap in front of it, then erase what lies along its key."""
        decay = (self.f[i] if way == "forward" else self.b[i + 1])
        decay = np.array([x.exp() for x in (decay if len(decay) > 1 else decay.repeat(self.k.shape[1]))])
        return (np.eye(len(decay), dtype=int) - beta[i] * np.outer(self.k[i], self.k[i])) * decay[None, :]

    def by_transitions(self, betas):
        """Rows and final states of the delta rule. The own token counts once: half of it from each direction that is looked at."""
        rows, finals = np.full(self.v1.shape, Decimal(0)), {}
        ways = [way for way in ("forward", "backward") if self.direction in ("both", way)]
        for way in ways:
            step, end = (1, self.L) if way == "forward" else (-1, -1)
            start = 0 if way == "forward" else self.L - 1
            for j in [j for j in self.sources() if 0 <= j < self.L or j == start - step]:
                left = self.written(j) * (betas[way][j] if 0 <= j < self.L else 1)
                if 0 <= j < self.L:
                    rows[j] += self.q[j] @ left * self.delta / len(ways)
                for i in range(j + step, end, step):
                    left = self.transition(i, way, betas[way]) @ left
                    rows[i] += self.q[i] @ left
                finals[way] = finals.get(way, 0) + left
        return rows, finals


def level(i, j):
    """By the definition: the size of the smallest aligned power-of-two block of tokens that has both, as a power."""
    size = 0
    while i >> size != j >> size:
        size += 1
    return size


def family(index, name, member, gates="target", norm="none", direction="both", delta="1", s="1", B=1, H=2, L=7, Dk=3, Dv=2, eps="0.0625",
           weights=(-2, 1), removed=(), cuts=(), states=False, two_betas=False, spare_levels=0, positive=False):
    """One case. gates: a convention, "all_ones", or "sides" for gaps of their own in each direction. positive: no cancellation in a row sum."""
    positive = positive or norm == "row_sum"
    short = member.startswith("delta")
    size = dict(low=0) if positive else {}
    q, v = numbers_of(B, H, L, Dk, 3 * index + 1, **size), numbers_of(B, H, L, Dv, 3 * index + 3)
    k = numbers_of(B, H, L, Dk, 3 * index + 2, -0.75, 0.75) if short else numbers_of(B, H, L, Dk, 3 * index + 2, **size)
    channels = Dk if "channels" in member or member == "exclusive_read" else 1
    x = dict(name=name, member=member, gates=gates, norm=norm, eps=Decimal(eps if norm == "row_sum" else 0), direction=direction, diagonal=delta, scale=s,
             size=(B, H, L, Dk, Dv), channels=channels, q=q, k=k, v=v)
    if gates != "all_ones":
        x["log_decay"] = numbers_of(B, H, L, channels, 1000 + index, -2, 0)
        for t in cuts:
            x["log_decay"][:, :, t, -1] = CUT
    if gates == "sides":
        x["log_decay_backward"] = numbers_of(B, H, L, channels, 2000 + index, -2, 0)
    if member == "weighed_keys":
        x["log_weights"] = numbers_of(B, H, L, 1, 3000 + index, *weights)
        for t in removed:
            x["log_weights"][:, :, t] = CUT
    if member == "exclusive_read":
        x["bonus"] = numbers_of(1, H, 1, Dk, 3000 + index)
    if member == "log_linear":
        levels = (L - 1).bit_length() + 1 + spare_levels
        x["levels"] = levels
        x["levels_forward"], x["levels_backward"] = (numbers_of(B, H, L, levels, 3000 + n + index, -1, 2) for n in (0, 1000))
    if short:
        for n, side in enumerate(("beta_forward", "beta_backward") if two_betas else ("beta_forward",)):
            x[side] = numbers_of(B, H, L, 1, 3000 + 1000 * n + index, 0, 1)
            for at in np.ndindex(B, H, L):  # 1/2, 1 or 3/2, so that no token overshoots by more than a reflection
                beta = min(x[side][at][0] * 3 // 1 + 1, Decimal(3)) / 2
                while beta * (k[at] @ k[at]) > 2:
                    beta -= Decimal("0.5")
                x[side][at] = beta
        if not two_betas:
            x["beta_backward"] = x["beta_forward"]
    if states:
        for n, way in enumerate(("forward", "backward")):
            if direction not in ("both", way):
                continue
            z = np.full((B, H, Dk, 1), Decimal(0)) if short else numbers_of(B, H, Dk, 1, 7000 + 1000 * n + index, **size)
            x["initial_" + way] = dict(S=numbers_of(B, H, Dk, Dv, 5000 + 1000 * n + index), z=z,
                                       log_decay=numbers_of(B, H, 1, channels, 9000 + 1000 * n + index, -2, 0))

    rows, finals = np.empty((B, H, L, Dv + 1), dtype=object), {}
    for n, h in itertools.product(range(B), range(H)):
        zero = np.full((1, channels), Decimal(0))
        if gates == "sides":
            f, b = x["log_decay"][n, h], x["log_decay_backward"][n, h]
        elif gates == "all_ones":
            f = b = np.full((L, channels), Decimal(0))
        else:
            f, b = (np.stack(side, axis=1) for side in zip(*(gaps(gates, column) for column in x["log_decay"][n, h].T)))
        enters = {way: x["initial_" + way] for way in ("forward", "backward") if "initial_" + way in x}
        log_decay = {way: enters[way]["log_decay"][n, h] if way in enters else zero for way in ("forward", "backward")}
        one = Head(q[n, h], k[n, h], v[n, h], np.concatenate([log_decay["forward"], f[1:], zero]),
                   np.concatenate([zero, b[1:], log_decay["backward"]]), direction, Decimal(delta),
                   {way: (state["S"][n, h], state["z"][n, h, :, 0]) for way, state in enters.items()})
        ways = [way for way in ("forward", "backward") if direction in ("both", way)]
        end = {}
        if short:
            rows[n, h], end = one.by_transitions({way: x["beta_" + way][n, h, :, 0] for way in ways})
        else:
            def key_weight(j):
                return x["log_weights"][n, h, j, 0].exp() if member == "weighed_keys" and 0 <= j < L else Decimal(1)

            def weight(i, j):
                return x["levels_" + one.way(i, j)][n, h, i, level(i, j)] if member == "log_linear" else key_weight(j)

            def diagonal(i):
                if member == "log_linear":
                    return sum(x["levels_" + way][n, h, i, 0] for way in ways) / len(ways)
                return x["bonus"][0, h, 0] if member == "exclusive_read" else key_weight(i)

            rows[n, h] = one.by_pairs(weight, diagonal, member == "exclusive_read")
            if member != "log_linear":
                end = {way: one.final(way, key_weight) for way in ways}
        for way, state in end.items():
            finals.setdefault(way, np.empty((B, H, Dk, Dv + 1), dtype=object))[n, h] = state
    N, Z, scale = rows[..., :-1], rows[..., -1:], Decimal(s)
    x["y"] = scale * N / (np.maximum(abs(scale * Z), Decimal(1)) if norm == "max_one" else 1) if norm != "row_sum" else N / (Z + x["eps"])
    if norm != "none":
        x["row_sum"] = Z
    for way, state in finals.items():
        x["final_" + way] = dict(S=state[..., :-1], z=state[..., -1:])
    return x


def family_cases():
    for norm in ("none", "row_sum", "max_one"):
        yield dict(name="weighed_keys_" + norm, member="weighed_keys", norm=norm, s="0.5")
    yield dict(name="weighed_keys_ones", member="weighed_keys", gates="all_ones", norm="max_one")
    yield dict(name="weighed_keys_sides", member="weighed_keys", gates="sides", norm="row_sum", delta="0.25", B=2, H=1)
    yield dict(name="weighed_keys_source", member="weighed_keys", gates="source", norm="max_one", s="4")
    yield dict(name="weighed_keys_far", member="weighed_keys", gates="later", norm="max_one", weights=(-40, 40), L=9, positive=True)
    yield dict(name="weighed_keys_far_row_sum", member="weighed_keys", gates="later", norm="row_sum", weights=(-40, 40), L=9)
    yield dict(name="weighed_keys_cut", member="weighed_keys", gates="source", norm="row_sum", cuts=(2, 5), removed=(0, 3))
    yield dict(name="weighed_keys_forward", member="weighed_keys", norm="max_one", direction="forward", states=True)
    yield dict(name="weighed_keys_backward", member="weighed_keys", norm="row_sum", direction="backward", states=True)
    yield dict(name="weighed_keys_states", member="weighed_keys", norm="row_sum", s="0.5", states=True)
    for gate, norm in ("later", "none"), ("source", "row_sum"), ("target", "max_one"), ("earlier", "none"):
        yield dict(name="channels_" + gate, member="channels", gates=gate, norm=norm, s="0.5")
    yield dict(name="channels_sides", member="channels", gates="sides", B=2, H=1, Dv=4)
    yield dict(name="channels_cut", member="channels", gates="source", norm="row_sum", cuts=(2, 5), L=11)
    yield dict(name="channels_forward", member="channels", direction="forward", delta="0.5")
    yield dict(name="channels_backward", member="channels", direction="backward", gates="sides", delta="0")
    yield dict(name="channels_states", member="channels", norm="row_sum", s="0.5", states=True)
    yield dict(name="exclusive_target", member="exclusive_read")
    yield dict(name="exclusive_source", member="exclusive_read", gates="source", s="0.5", delta="2", B=2, H=1)
    yield dict(name="exclusive_sides", member="exclusive_read", gates="sides", L=11, Dv=4)
    yield dict(name="exclusive_cut", member="exclusive_read", cuts=(2, 5))
    yield dict(name="exclusive_forward", member="exclusive_read", direction="forward")
    yield dict(name="exclusive_states", member="exclusive_read", states=True)
    yield dict(name="delta_ones", member="delta", gates="all_ones", s="0.5", L=9)
    yield dict(name="delta_gated", member="delta", L=13)
    yield dict(name="delta_source", member="delta", gates="source", B=2, H=1, Dv=4, delta="0.5")
    yield dict(name="delta_later", member="delta", gates="later")
    yield dict(name="delta_sides", member="delta", gates="sides")
    yield dict(name="delta_two_betas", member="delta", two_betas=True, s="0.5", L=9)
    yield dict(name="delta_cut", member="delta", cuts=(2, 5))
    yield dict(name="delta_forward", member="delta", direction="forward", states=True)
    yield dict(name="delta_backward", member="delta", gates="all_ones", direction="backward", states=True)
    yield dict(name="delta_states", member="delta", two_betas=True, states=True)
    yield dict(name="delta_channels_target", member="delta_channels", L=13, s="0.5")
    yield dict(name="delta_channels_source", member="delta_channels", gates="source", B=2, H=1, Dv=4)
    yield dict(name="delta_channels_sides", member="delta_channels", gates="sides", two_betas=True, cuts=(4,))
    yield dict(name="delta_channels_forward", member="delta_channels", direction="forward", L=9)
    yield dict(name="delta_channels_states", member="delta_channels", states=True)
    yield dict(name="log_linear_both", member="log_linear", L=13, s="0.5")
    yield dict(name="log_linear_source", member="log_linear", gates="source", L=11, B=2, H=1, delta="0.5", spare_levels=2)
    yield dict(name="log_linear_ones", member="log_linear", gates="all_ones", L=8, Dv=4)
    yield dict(name="log_linear_max_one", member="log_linear", gates="later", norm="max_one", s="2", L=9)
    yield dict(name="log_linear_cut", member="log_linear", gates="sides", cuts=(2, 5), L=10)
    yield dict(name="log_linear_forward", member="log_linear", direction="forward", L=13)
    yield dict(name="log_linear_backward", member="log_linear", direction="backward", L=13)


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


FAMILY_HEAD = """// SPDX-License-Identifier: Apache-2.0
// Golden results of the wider family of masks and of the delta rule. Made by make.py, which says how; not to be edited.
#pragma once

#include <bila/mask/selective_decay.hpp>
#include <bila/view/direction.hpp>

#include <array>
#include <limits>
#include <span>

namespace test {
namespace golden {

enum class family { weighed_keys, channels, exclusive_read, delta, delta_channels, log_linear };

/// Where the decays of gaps come from: none; the gates of tokens, by a convention; or gaps of their own in each direction.
enum class decays { all_ones, gates, sides };

enum class divides_by { one, row_sum, max_one };

/// [B, H, Dk, Dv] [B, H, Dk] [B, H, channels]; the delta rule, which has no row sum, has no z.
struct family_state {
  std::span<const double> S = {}, z = {}, log_decay = {};
};

/// All tensors in logical order; what a member does not have is empty. sides: log_decay and log_decay_backward are f_t and b_t, with
/// entry 0 unused. row_sum: Z without the scale and without any stabiliser. A call of one direction has the final state of that one.
struct family_case {
  const char* name;
  family member;
  decays by = decays::gates;
  bila::gate crossing = bila::gate::target;
  bila::direction direction = bila::direction::both;
  double scale = 1, diagonal = 1;
  divides_by norm = divides_by::one;
  double eps = 0;
  bila::index_t B, H, L, Dk, Dv;
  bila::index_t channels = 1, levels = 0;
  std::span<const double> q, k, v;
  std::span<const double> log_decay = {}, log_decay_backward = {};    // [B, H, L, channels]
  std::span<const double> log_weights = {};                           // [B, H, L]
  std::span<const double> bonus = {};                                 // [H, Dk]
  std::span<const double> beta_forward = {}, beta_backward = {};      // [B, H, L]; the same array when one beta serves both
  std::span<const double> levels_forward = {}, levels_backward = {};  // [B, H, L, levels]
  std::span<const double> y;                                          // [B, H, L, Dv]
  std::span<const double> row_sum = {};                               // [B, H, L], of a norm that uses it
  family_state initial_forward = {}, initial_backward = {}, final_forward = {}, final_backward = {};
};

inline constexpr double inf = std::numeric_limits<double>::infinity();
"""

FAMILY_TAIL = """
}  // namespace golden
}  // namespace test"""


def declared(name, values):
    text = f"inline constexpr double {name}[] = {listed(values)};"
    return "\n".join(textwrap.wrap(text, 130, subsequent_indent="    "))


def print_family():
    print(FAMILY_HEAD)
    names = []
    for index, asked in enumerate(family_cases(), 201):
        x = family(index, **asked)
        names.append(x["name"])
        print(f"namespace {x['name']} {{")
        fields = [f'.name = "{x["name"]}"', f".member = family::{x['member']}"]
        if x["gates"] in ("all_ones", "sides"):
            fields.append(f".by = decays::{x['gates']}")
        else:
            fields.append(f".crossing = bila::gate::{x['gates']}")
        fields += [f".direction = bila::direction::{x['direction']}", f".scale = {x['scale']}", f".diagonal = {x['diagonal']}"]
        if x["norm"] != "none":
            fields += [f".norm = divides_by::{x['norm']}", f".eps = {literal(x['eps'])}"]
        fields += [f".{axis} = {n}" for axis, n in zip(("B", "H", "L", "Dk", "Dv"), x["size"])]
        fields += [f".{name} = {x[name]}" for name in ("channels", "levels") if name in x]
        for name in ("q", "k", "v", "log_decay", "log_decay_backward", "log_weights", "bonus", "beta_forward", "beta_backward", "levels_forward",
                     "levels_backward", "y", "row_sum"):
            if name == "beta_backward" and x.get(name) is x.get("beta_forward") is not None:
                fields.append(".beta_backward = beta_forward")
            elif name in x:
                print(declared(name, x[name]))
                fields.append(f".{name} = {name}")
        for name in ("initial_forward", "initial_backward", "final_forward", "final_backward"):
            parts = [part for part in x.get(name, {}) if part != "z" or not x["member"].startswith("delta")]
            for part in parts:
                print(declared(f"{name}_{part}", x[name][part]))
            if parts:
                fields.append(f".{name} = {{" + ", ".join(f".{part} = {name}_{part}" for part in parts) + "}")
        text = "inline constexpr family_case all{" + ", ".join(fields) + "};"
        print("\n".join(textwrap.wrap(text, 130, subsequent_indent="                                 ")))
        print(f"}}  // namespace {x['name']}\n")
    text = f"inline constexpr std::array<const family_case*, {len(names)}> family_cases{{" + ", ".join(f"&{name}::all" for name in names) + "};"
    print("\n".join(textwrap.wrap(text, 130, subsequent_indent="    ")))
    print(FAMILY_TAIL)


def main():
    if sys.argv[1:] == ["family"]:
        return print_family()
    print(HEAD)
    for x in cases():
        norm = "row_sum{%s}" % x["eps"] if x["norm"] == "row_sum" else x["norm"] + "{}"
        fields = [f"mask_kind::{x['mask']}", f"bila::norm::{norm}", f"bila::direction::{x['direction']}", x["diagonal"], x["scale"]]
        fields += [listed(x[name]) for name in ("sizes", "offsets", "lengths", "q", "k", "v", "gates", "y")]
        print(textwrap.fill("{" + ", ".join(fields) + "},", 130, initial_indent="      ", subsequent_indent="       "))
    print(TAIL)


if __name__ == "__main__":
    main()
