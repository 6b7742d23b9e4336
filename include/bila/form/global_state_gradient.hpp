// SPDX-License-Identifier: Apache-2.0
// The gradient of the mask of all ones in both directions: one state and one adjoint serve every token. Keys need not be the
// queries' tokens.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/global_state.hpp>
#include <bila/form/head_gradient.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Let v have one more column, of ones, and dN one more column, dZ. T is the state that all queries see. P is the gradient of the
/// loss with respect to K^T V, through T and through the final states.
///
///     T = K^T V + the initial states                      dq_i = T dN_i
///     P = Q^T dN + the gradients of the final states      dk_j = P v_j,   dv_j = P^T k_j
///
/// Time O((L + Lk) Dk Dv), memory O(Dk Dv). Source: the derivative of the global state form.
struct global_state_gradient {
  template <class T>
  static bool serves(const head<T>& x) {
    return global_state::serves(x.mask.gaps, x.direction, x.diagonal);
  }

  static constexpr index_t block = 64;  // tokens per block

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : qk(memory.padded<Kernel, Real>(block, size.Dk)),
          dqk(memory.padded<Kernel, Real>(block, size.Dk)),
          weighted(memory.padded<Kernel, Real>(block, size.Dk)),
          dyv(memory.padded<Kernel, Real>(block, size.Dv)),
          dv(memory.padded<Kernel, Real>(block, size.Dv)),
          P(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
          Pt(memory.padded<Kernel, Real>(size.Dv, size.Dk)),
          Tt(memory.padded<Kernel, Real>(size.Dv, size.Dk)),
          T_rest(memory, size.Dv, size.Dk, size.Dk, std::type_identity<Kernel>()),
          P_rest(memory, size.Dk, size.Dv, size.Dk, std::type_identity<Kernel>()),
          p(memory.numbers<Kernel, Real>(size.Dk)),
          t(memory.numbers<Kernel, Real>(size.Dk)),
          a(memory.numbers<Kernel, Real>(block)),
          b(memory.numbers<Kernel, Real>(block)),
          ones(memory.numbers<Kernel, Real>(block)),
          dots(memory.numbers<Kernel, double>(block)) {}

    kernel::tile<Real> qk, dqk, weighted, dyv, dv;  // (block, Dk) three times, (block, Dv) twice
    kernel::tile<Real> P, Pt, Tt;                   // (Dk, Dv) (Dv, Dk) (Dv, Dk)
    compensation<Real> T_rest, P_rest;              // (Dv, Dk) (Dk, Dv) rounding errors of Tt and P
    Real *p, *t;                                    // (Dk) the columns of P and T for row sums
    Real *a, *b, *ones;                             // (block) dN_i = a_i dy_i, dZ_i = b_i; ones
    double* dots;                                   // (block) dots dy_i . y_i
  };

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) {
    scratch<Kernel, Real> w(memory, {x.q.count, x.q.width, x.v.width});
    std::fill_n(w.ones, block, Real(1));
    gather(x, w, norm.uses_row_sum);
    pass_queries(x, g, w, norm);
    for (index_t c = 0; c < x.q.width; ++c) {
      for (index_t d = 0; d < x.v.width; ++d) w.P.row(c)[d] = join(x, g, c, d, w.P.row(c)[d]);
      if (norm.uses_row_sum) w.p[c] = join(x, g, c, x.v.width, w.p[c]);
    }
    pass_keys(x, g, w, norm.uses_row_sum);
  }

 private:
  static constexpr direction ways[] = {direction::forward, direction::backward};

  /// Entry (c, d) of a state. Column Dv has the row sums.
  template <class Real>
  static Real entry(const head_state<const Real>& of, index_t c, index_t d, index_t Dv) {
    const rows<const Real>& part = d < Dv ? of.S : of.z;
    return part.data == nullptr ? Real(0) : part(c, d < Dv ? d : 0);
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void gather(const head<T>& x, scratch<Kernel, Real>& w, bool row_sums) {
    const kernel::state<Real> sum{w.Tt};
    kernel::clear(w.Tt);
    w.T_rest.start();
    std::fill_n(w.t, kernel::round_up(x.q.width, Kernel::template lanes<Real>), Real(0));
    for (index_t at = 0; at < x.k.count; at += block) {
      const index_t n = (std::min)(block, x.k.count - at);
      const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.qk);   // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.dyv);  // (n, Dv)
      Kernel::accumulate(sum, {.from = sum, .k = v, .v = k, .rest = w.T_rest.after(1, 1)});
      if (row_sums) Kernel::gather(w.t, w.T_rest.e, Real(1), w.t, k);
    }
    for (const direction way : ways) {
      const Real decay = static_cast<Real>(x.initial(way).decay);
      for (index_t c = 0; c < x.q.width && x.initial(way).given(); ++c) {
        for (index_t d = 0; d < x.v.width; ++d) w.Tt.row(d)[c] += decay * entry(x.initial(way), c, d, x.v.width);
        if (row_sums) w.t[c] += decay * entry(x.initial(way), c, x.v.width, x.v.width);
      }
    }
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void pass_queries(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w,
                                         const norm_view<Real>& norm) {
    const kernel::state<Real> sum{w.P};
    const Real *const t = norm.uses_row_sum ? w.t : nullptr, *const dZ = norm.uses_row_sum ? w.b : nullptr;
    kernel::clear(w.P);
    w.P_rest.start();
    std::fill_n(w.p, kernel::round_up(x.q.width, Kernel::template lanes<Real>), Real(0));
    for (index_t at = 0; at < x.q.count; at += block) {
      const index_t n = (std::min)(block, x.q.count - at);
      g.scale += through_norm<Kernel>(x, g, at, n, w.a, w.b, w.dots, w.dyv, w.dv, norm);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at, n), w.qk);     // (n, Dk)
      const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at, n), w.dyv);  // (n, Dv)
      const auto dq = w.dqk.top(n);                                             // (n, Dk)
      if (g.q.out.data != nullptr) {
        Kernel::read(dq, {.q = dy, .S = w.Tt, .weights = w.a, .A = kernel::one_row(dZ, n), .v = kernel::one_row(t, x.q.width)});
        accumulate_or_store<Kernel>(g.q, at, dq, true, true);
      }
      Kernel::accumulate(sum, {.from = sum, .k = q, .v = dy, .weights = w.a, .weighted = w.weighted, .rest = w.P_rest.after(1, 1)});
      if (norm.uses_row_sum) Kernel::gather(w.p, w.P_rest.e, Real(1), w.p, q, w.b);
    }
  }

  /// Returns entry (c, d) of P: `own`, the sum over queries, plus the gradients of the final states. Also writes that entry of the
  /// initial states' gradients, and adds its part to the gradients of their gaps.
  template <class T, class Real>
  static Real join(const head<T>& x, head_gradient<T>& g, index_t c, index_t d, Real own) {
    const index_t Dv = x.v.width;
    Real sum = own;
    for (const direction way : ways) {
      const Real later = entry(g.final(way), c, d, Dv), whole = own + later;
      const auto& to = d < Dv ? g.initial(way).S : g.initial(way).z;
      const double decay = x.initial(way).decay;
      if (to.data != nullptr) to(c, d < Dv ? d : 0) = static_cast<Real>(decay) * whole;
      if (double* const gaps = g.gaps(way); gaps != nullptr)
        gaps[way == direction::forward ? 0 : x.q.count] +=
            decay * static_cast<double>(entry(x.initial(way), c, d, Dv)) * static_cast<double>(whole);
      sum += later;
    }
    return sum;
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void pass_keys(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, bool row_sums) {
    const Real *const p = row_sums ? w.p : nullptr, *const ones = row_sums ? w.ones : nullptr;
    Kernel::transpose(w.Pt, w.P);
    for (index_t at = 0; at < x.k.count; at += block) {
      const index_t n = (std::min)(block, x.k.count - at);
      const auto dk = w.dqk.top(n), dv = w.dv.top(n);  // (n, Dk) (n, Dv)
      if (g.k.out.data != nullptr) {
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.dyv);  // (n, Dv)
        Kernel::read(dk, {.q = v, .S = w.Pt, .weights = w.ones, .A = kernel::one_row(ones, n), .v = kernel::one_row(p, x.q.width)});
        accumulate_or_store<Kernel>(g.k, at, dk, true, true);
      }
      if (g.v.out.data != nullptr) {
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.qk);  // (n, Dk)
        Kernel::read(dv, {.q = k, .S = w.P, .weights = w.ones});
        accumulate_or_store<Kernel>(g.v, at, dv, true, true);
      }
    }
  }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
