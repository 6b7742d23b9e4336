#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Results of another library: the naive code of flash-linear-attention, run on a CPU.
#
#     pip install torch numpy einops
#     pip install --no-deps flash-linear-attention fla-core                          (their dependencies are for GPUs)
#     python3 tests/golden/make_naive.py > tests/golden/golden_naive.hpp
#
# Only numbers are kept. The inputs are short binary fractions, so float, double and the text of the header have them exactly. All but the
# log-linear function compute in float whatever they are given, and a different processor may give other last digits.
import importlib.metadata
import importlib.util
import textwrap
from decimal import Decimal

import numpy as np
import torch

from make import declared, literal, numbers

PACKAGE = "fla-core"  # has fla/ops; flash-linear-attention of the same version depends on it


def naive(path):
    """A module by its path below fla/ops. Importing the package itself would need a compiler for GPUs."""
    file = importlib.metadata.distribution(PACKAGE).locate_file(f"fla/ops/{path}.py")
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def to_torch(x, dtype):
    return torch.tensor(np.asarray(x, dtype=float), dtype=dtype)


def heads_last(x):
    """[B, H, T, ...] to [B, T, H, ...], and back."""
    return x.transpose(1, 2)


def digits(x):
    """The fewest digits that tell the number from its neighbours of the same type."""
    return [Decimal(str(y)) for y in x.numpy().ravel()]


def log(x):
    return Decimal(repr(float(np.log(x))))


class Case:
    """Inputs [B, H, T, D] in decimal, and their tensors in the type that the naive code computes in."""

    def __init__(self, index, name, member, H, T, Dk, Dv, dtype=torch.float32, key_size=1, low=-1, channels=0):
        self.name, self.member, self.size, self.dtype = name, member, dict(B=1, H=H, L=T, Dk=Dk, Dv=Dv), dtype
        self.index, self.scale, self.eps, self.levels = index, Dk**-0.5, 0.0, 0
        self.channels, self.arrays = channels, {}
        self.state_shape, self.token_shape = (1, H, Dk, Dv), (1, H, T)
        self.q = self.random("q", (1, H, T, Dk), low, 1)
        self.k = self.random("k", (1, H, T, Dk), max(low, -key_size), key_size)
        self.v = self.random("v", (1, H, T, Dv))

    def keep(self, name, values):
        self.arrays[name] = values

    def random(self, name, shape, low=-1, high=1, divide=1):
        values = numbers(shape, 100 * self.index + len(self.arrays), low, high) / divide
        self.keep(name, values)
        return to_torch(values, self.dtype)

    def log_decay(self):
        """Log decays in [-1/4, 0], so that a token is still seen after many others."""
        return self.random("log_decay", self.token_shape + ((self.channels,) if self.channels else ()), -2, 0, 8)

    def beta(self):
        return self.random("beta", self.token_shape, 0, 1)

    def initial(self):
        return self.random("initial_S", self.state_shape)

    def results(self, y, S=None, z=None):
        assert y.dtype == self.dtype
        self.keep("y", digits(y))
        if S is not None:
            self.keep("final_S", digits(S))
        if z is not None:
            self.keep("final_z", digits(z))
        return self


def cases():
    run = naive("linear_attn/naive").naive_recurrent_linear_attn
    x = Case(1, "linear_attn", "all_ones", H=1, T=24, Dk=8, Dv=10)
    y, S = run(*map(heads_last, (x.q, x.k, x.v)), initial_state=x.initial(), output_final_state=True)
    yield x.results(heads_last(y), S)

    x = Case(2, "linear_attn_normalized", "all_ones", H=1, T=37, Dk=8, Dv=6, low=0)
    initial = x.initial(), heads_last(x.random("initial_z", (1, 1, 1, 8), 0, 1))
    y, (S, z) = run(*map(heads_last, (x.q, x.k, x.v)), initial_state=initial, output_final_state=True, normalize=True)
    x.eps = 1e-10 / x.scale  # it is added to the scaled row sum there
    yield x.results(heads_last(y), S, heads_last(z))

    x = Case(3, "retention", "fixed_decay", H=2, T=29, Dk=8, Dv=6)
    x.keep("log_decay", np.array([log(1 - 2.0 ** (-5 - h)) for h in range(2)], dtype=object))
    yield x.results(naive("retention/naive").naive_retention(x.q, x.k, x.v))

    x = Case(4, "simple_gla", "selective_decay", H=2, T=25, Dk=8, Dv=6)
    run = naive("simple_gla/naive").naive_recurrent_simple_gla
    y, S = run(*map(heads_last, (x.q, x.k, x.v, x.log_decay())), initial_state=x.initial(), output_final_state=True)
    yield x.results(heads_last(y), S)

    x = Case(5, "hgrn", "selective_decay", H=6, T=40, Dk=1, Dv=1)  # a head of width one for each feature, whose q and k are 1
    for name in "qk":
        x.keep(name, np.full((1, 6, 40, 1), Decimal(1)))
    x.scale = 1
    run = naive("hgrn/naive").naive_recurrent_hgrn
    y, S = run(heads_last(x.v[..., 0]), heads_last(x.log_decay()), initial_state=x.initial()[..., 0, 0], output_final_state=True)
    yield x.results(heads_last(y), S)

    x = Case(6, "gla", "channel_decay", H=1, T=31, Dk=8, Dv=10, channels=8)
    run = naive("gla/naive").naive_recurrent_gla
    y, S = run(*map(heads_last, (x.q, x.k, x.v, x.log_decay())), initial_state=x.initial(), output_final_state=True)
    yield x.results(heads_last(y), S)

    x = Case(7, "rwkv6", "exclusive_read", H=2, T=22, Dk=10, Dv=8, channels=10)
    bonus = x.random("bonus", (2, 10))
    run = naive("rwkv6/recurrent_naive").naive_recurrent_rwkv6
    yield x.results(*run(x.q, x.k, x.v, x.log_decay(), bonus, initial_state=x.initial(), output_final_state=True))

    x = Case(8, "delta_rule", "delta", H=2, T=21, Dk=8, Dv=6, key_size=0.5)
    yield x.results(*naive("delta_rule/naive").delta_rule_recurrence(x.q, x.k, x.v, x.beta(), initial_state=x.initial()))

    x = Case(9, "gated_delta_rule", "gated_delta", H=1, T=35, Dk=8, Dv=6, key_size=0.5)
    run = naive("gated_delta_rule/naive").naive_recurrent_gated_delta_rule
    y, S = run(*map(heads_last, (x.q, x.k, x.v, x.beta(), x.log_decay())), initial_state=x.initial(), output_final_state=True)
    yield x.results(heads_last(y), S)

    x = Case(10, "kda", "channel_delta", H=1, T=26, Dk=8, Dv=10, key_size=0.5, channels=8)
    run = naive("kda/naive").naive_recurrent_kda
    y, S = run(*map(heads_last, (x.q, x.k, x.v, x.log_decay(), x.beta())), initial_state=x.initial(), output_final_state=True)
    yield x.results(heads_last(y), S)

    x = Case(11, "log_linear_attn", "log_linear", H=2, T=21, Dk=8, Dv=6, dtype=torch.float64)
    x.scale, x.levels = 1, (21 - 1).bit_length() + 1
    levels = heads_last(x.random("levels", (1, 2, 21, x.levels), -1, 2))
    run = naive("log_linear_attn/naive").naive_log_linear_attn
    yield x.results(heads_last(run(*map(heads_last, (x.q, x.k, x.v, x.log_decay())), levels)))


HEAD = """// SPDX-License-Identifier: Apache-2.0
// Results of the naive code of {versions},
// on a CPU. Made by make_naive.py, which says how; not to be edited.
#pragma once

#include <bila/view/tensor_view.hpp>

#include <array>
#include <limits>
#include <span>

namespace test {{
namespace naive {{

/// What bila calls it. delta: over all_ones; gated_delta: over a decay per token; channel_delta: over one per token and channel.
enum class member {{
  all_ones,
  fixed_decay,
  selective_decay,
  channel_decay,
  exclusive_read,
  delta,
  gated_delta,
  channel_delta,
  log_linear
}};

/// One direction, forward. All tensors in logical order; what a member does not have is empty. The gap in front of a token has that
/// token's log decay, the gap behind the initial state too. eps > 0: divided by the row sum.
struct naive_case {{
  const char* name;
  member is;
  double precision;  // the epsilon of the type that the reference computed in
  double scale = 1, eps = 0;
  bila::index_t B, H, L, Dk, Dv;
  bila::index_t channels = 1, levels = 0;
  std::span<const double> q, k, v;
  std::span<const double> log_decay = {{}};                  // [B, H, L, channels], or [H] of fixed_decay
  std::span<const double> bonus = {{}};                      // [H, Dk]
  std::span<const double> beta = {{}};                       // [B, H, L]
  std::span<const double> levels_forward = {{}};             // [B, H, L, levels]
  std::span<const double> initial_S = {{}}, initial_z = {{}};  // [B, H, Dk, Dv] [B, H, Dk]
  std::span<const double> y;                               // [B, H, L, Dv]
  std::span<const double> final_S = {{}}, final_z = {{}};
}};
"""

TAIL = """
}  // namespace naive
}  // namespace test"""


def print_case(x):
    print(f"namespace {x.name} {{")
    for name, values in x.arrays.items():
        print(declared(name, values))
    precision = {torch.float32: "float", torch.float64: "double"}[x.dtype]
    fields = [f'.name = "{x.name}"', f".is = member::{x.member}", f".precision = std::numeric_limits<{precision}>::epsilon()",
              f".scale = {literal(x.scale)}"]
    fields += [f".eps = {literal(x.eps)}"] if x.eps else []
    fields += [f".{axis} = {n}" for axis, n in x.size.items()]
    fields += [f".channels = {x.channels}"] if x.channels else []
    fields += [f".levels = {x.levels}"] if x.levels else []
    order = ["q", "k", "v", "log_decay", "bonus", "beta", "levels", "initial_S", "initial_z", "y", "final_S", "final_z"]
    assert set(x.arrays) <= set(order)
    fields += [f".{'levels_forward' if name == 'levels' else name} = {name}" for name in order if name in x.arrays]
    text = "inline constexpr naive_case all{" + ", ".join(fields) + "};"
    print("\n".join(textwrap.wrap(text, 130, subsequent_indent="                                ")))
    print(f"}}  // namespace {x.name}\n")


def main():
    torch.set_num_threads(1)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in (PACKAGE, "flash-linear-attention", "torch", "numpy")]
    print(HEAD.format(versions="{} ({}) with {} and {}".format(*versions)))
    names = []
    for x in cases():
        names.append(x.name)
        print_case(x)
    text = f"inline constexpr std::array<const naive_case*, {len(names)}> cases{{" + ", ".join(f"&{name}::all" for name in names) + "};"
    print("\n".join(textwrap.wrap(text, 130, subsequent_indent="    ")))
    print(TAIL)


if __name__ == "__main__":
    main()
