// SPDX-License-Identifier: Apache-2.0
// Every verb of every kernel layer against its equation in long double, over odd shapes, with poison wherever it must not look;
// and the promise that the bits of an element depend on nothing but the numbers that enter it.
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

#include <bila/kernel/contract.hpp>
#include <bila/kernel/eigen.hpp>
#include <bila/kernel/reference.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace {

using bila::index_t;
using bila::kernel::tile;
using test::wide;

template <class Kernel, class Real>
struct on {
  using kernel = Kernel;
  using real = Real;
};

/// Rows and columns of numbers, and nothing else.
template <class Real>
struct plain {
  index_t rows, columns;
  std::vector<Real> x;

  plain(index_t m, index_t n) : rows(m), columns(n), x(static_cast<std::size_t>(m * n)) {}

  Real& operator()(index_t i, index_t j) { return x[static_cast<std::size_t>(i * columns + j)]; }
  const Real& operator()(index_t i, index_t j) const { return x[static_cast<std::size_t>(i * columns + j)]; }

  /// The first m rows and n columns.
  plain part(index_t m, index_t n) const {
    plain result(m, n);
    for (index_t i = 0; i < m; ++i)
      for (index_t j = 0; j < n; ++j) result(i, j) = (*this)(i, j);
    return result;
  }
};

template <class Real>
plain<Real> random(test::random_source& from, index_t m, index_t n) {
  plain<Real> result(m, n);
  for (Real& x : result.x) x = static_cast<Real>(from.uniform(-1, 1));
  return result;
}

template <class Real>
bool same_bits(const plain<Real>& a, const plain<Real>& b) {
  return a.rows == b.rows && a.columns == b.columns && std::memcmp(a.x.data(), b.x.data(), a.x.size() * sizeof(Real)) == 0;
}

/// Where a tile lies: elements past an aligned address, and packets (or elements) between its rows.
struct place {
  index_t offset = 0, apart = 0;
};

/// Memory for a tile: NaN before it, behind it and between its rows; zeros up to the next whole packet where the tile is padded.
template <class Kernel, class Real>
class room {
 public:
  enum class kind { padded, by_element };

  room(const plain<Real>& from, kind what, place where) : rows_(from.rows), columns_(from.columns), first_(guard + where.offset) {
    const index_t lanes = what == kind::padded ? Kernel::template lanes<Real> : 1;
    width_ = bila::kernel::round_up(columns_, lanes);
    stride_ = width_ + where.apart * lanes;
    memory_.assign(static_cast<std::size_t>(first_ + rows_ * stride_ + guard), std::numeric_limits<Real>::quiet_NaN());
    for (index_t i = 0; i < rows_; ++i)
      for (index_t j = 0; j < width_; ++j) at(i, j) = j < columns_ ? from(i, j) : Real(0);
  }

  tile<Real> get() { return {memory_.data() + first_, rows_, columns_, stride_}; }
  Real* numbers() { return memory_.data() + first_; }

  /// What was there before must not matter: NaN everywhere, in the padding too.
  void forget() { std::fill(memory_.begin(), memory_.end(), std::numeric_limits<Real>::quiet_NaN()); }

  plain<Real> content() {
    plain<Real> result(rows_, columns_);
    for (index_t i = 0; i < rows_; ++i)
      for (index_t j = 0; j < columns_; ++j) result(i, j) = at(i, j);
    return result;
  }

  /// The poison is still there, and so are the zeros of the padding.
  bool clean() {
    std::vector<Real> expected(memory_.size(), std::numeric_limits<Real>::quiet_NaN());
    for (index_t i = 0; i < rows_; ++i)
      for (index_t j = 0; j < width_; ++j)
        expected[static_cast<std::size_t>(first_ + i * stride_ + j)] = j < columns_ ? at(i, j) : Real(0);
    for (std::size_t n = 0; n < memory_.size(); ++n)
      if (std::isnan(expected[n]) ? !std::isnan(memory_[n]) : memory_[n] != expected[n]) return false;
    return true;
  }

 private:
  static constexpr index_t guard = 64;  // elements

  Real& at(index_t i, index_t j) { return memory_[static_cast<std::size_t>(first_ + i * stride_ + j)]; }

  index_t rows_, columns_, first_, width_ = 0, stride_ = 0;
  std::vector<Real> memory_;
};

/// The verbs on plain matrices. Every call checks that nothing but the result was written.
template <class Kernel, class Real>
struct verbs {
  using space = room<Kernel, Real>;
  static constexpr auto padded = space::kind::padded;
  static constexpr auto by_element = space::kind::by_element;
  using matrix = plain<Real>;

  place where{};

  space tile_of(const matrix& x) const { return space(x, padded, where); }
  space elements_of(const matrix& x) const { return space(x, by_element, where); }

  matrix score(const matrix& q, const matrix& kt) const {
    space A = tile_of(matrix(q.rows, kt.columns)), left = elements_of(q), right = tile_of(kt);
    A.forget();
    Kernel::score(A.get(), left.get(), right.get());
    CHECK((A.clean() && left.clean() && right.clean()));
    return A.content();
  }

  std::pair<matrix, matrix> weigh(const matrix& scores, const matrix& M, const matrix& z, bool sums = true) const {
    space A = tile_of(scores), weights = tile_of(M), sum = elements_of(z);
    Kernel::weigh(A.get(), weights.get(), sums ? sum.numbers() : nullptr);
    CHECK((A.clean() && weights.clean() && sum.clean()));
    return {A.content(), sum.content()};
  }

  std::pair<matrix, matrix> weigh(const matrix& scores, const matrix& r, const matrix& c, const matrix& z, bool sums = true) const {
    space A = tile_of(scores), left = elements_of(r), right = tile_of(c), sum = elements_of(z);
    Kernel::weigh(A.get(), left.numbers(), right.numbers(), sums ? sum.numbers() : nullptr);
    CHECK((A.clean() && left.clean() && right.clean() && sum.clean()));
    return {A.content(), sum.content()};
  }

  matrix apply(const matrix& before, const matrix& A, const matrix& v) const {
    space N = tile_of(before), left = tile_of(A), right = tile_of(v);
    Kernel::apply(N.get(), left.get(), right.get());
    CHECK((N.clean() && left.clean() && right.clean()));
    return N.content();
  }

  std::pair<matrix, matrix> read(const matrix& before, const matrix& z, const matrix& r, const matrix& q, const matrix& S,
                                 const matrix& s, bool sums = true) const {
    space N = tile_of(before), sum = elements_of(z), weight = elements_of(r), left = elements_of(q), state = tile_of(S),
          row = tile_of(s);
    Kernel::read(N.get(), sums ? sum.numbers() : nullptr, weight.numbers(), left.get(), state.get(), row.numbers());
    CHECK((N.clean() && sum.clean() && weight.clean() && left.clean() && state.clean() && row.clean()));
    return {N.content(), sum.content()};
  }

  std::pair<matrix, matrix> accumulate(const matrix& before, const matrix& s, Real g, const matrix& k, const matrix& w,
                                       const matrix& v, bool sums = true) const {
    space S = tile_of(before), row = tile_of(s), left = elements_of(k), weight = elements_of(w), right = tile_of(v), x = tile_of(k);
    x.forget();
    Kernel::accumulate(S.get(), sums ? row.numbers() : nullptr, g, left.get(), weight.numbers(), right.get(), x.get());
    CHECK((S.clean() && row.clean() && left.clean() && weight.clean() && right.clean()));
    return {S.content(), row.content()};
  }

  struct after_step {
    matrix n, z, S, s;
  };

  after_step step(const matrix& n, const matrix& z, Real r, const matrix& q, const matrix& S, const matrix& s, Real g, Real w,
                  const matrix& k, const matrix& v, bool sums = true) const {
    space row = tile_of(n), sum = elements_of(z), left = elements_of(q), state = tile_of(S), total = tile_of(s),
          key = elements_of(k), value = tile_of(v);
    Kernel::step(row.numbers(), sums ? sum.numbers() : nullptr, r, left.numbers(), state.get(), sums ? total.numbers() : nullptr, g,
                 w, key.numbers(), value.numbers());
    CHECK((row.clean() && sum.clean() && left.clean() && state.clean() && total.clean() && key.clean() && value.clean()));
    return {row.content(), sum.content(), state.content(), total.content()};
  }

  std::pair<matrix, matrix> diagonal(const matrix& n, const matrix& z, Real w, const matrix& q, const matrix& k, const matrix& v,
                                     bool sums = true) const {
    space row = elements_of(n), sum = elements_of(z), left = elements_of(q), key = elements_of(k), value = elements_of(v);
    Kernel::diagonal(row.numbers(), sums ? sum.numbers() : nullptr, w, left.numbers(), key.numbers(), q.columns, value.numbers(),
                     v.columns);
    CHECK((row.clean() && sum.clean() && left.clean() && key.clean() && value.clean()));
    return {row.content(), sum.content()};
  }

  matrix divide(const matrix& n, Real factor, Real divisor) const {
    space row = elements_of(n);
    Kernel::divide(row.numbers(), n.columns, factor, divisor);
    CHECK(row.clean());
    return row.content();
  }

  matrix apply_transposed(const matrix& before, const matrix& A, const matrix& q) const {
    space N = tile_of(before), left = tile_of(A), right = tile_of(q);
    Kernel::apply_transposed(N.get(), left.get(), right.get());
    CHECK((N.clean() && left.clean() && right.clean()));
    return N.content();
  }

  matrix outer(const matrix& before, const matrix& a, const matrix& b) const {
    space N = tile_of(before), left = elements_of(a), right = tile_of(b);
    Kernel::outer(N.get(), left.numbers(), right.numbers());
    CHECK((N.clean() && left.clean() && right.clean()));
    return N.content();
  }

  matrix gather(const matrix& before, Real g, const matrix& k, const matrix& w) const {
    space s = tile_of(before), from = elements_of(k), weight = elements_of(w);
    Kernel::gather(s.numbers(), g, from.get(), weight.numbers());
    CHECK((s.clean() && from.clean() && weight.clean()));
    return s.content();
  }

  std::vector<double> dots(const matrix& a, const matrix& b) const {
    space left = tile_of(a), right = tile_of(b);
    std::vector<double> z(static_cast<std::size_t>(a.rows), std::numeric_limits<double>::quiet_NaN());
    Kernel::dots(z.data(), left.get(), right.get());
    CHECK((left.clean() && right.clean()));
    return z;
  }

  double inner(const matrix& a, const matrix& b) const {
    space left = tile_of(a), right = tile_of(b);
    const double result = Kernel::inner(left.get(), right.get());
    CHECK((left.clean() && right.clean()));
    return result;
  }

  matrix transpose(const matrix& k) const {
    space kt = tile_of(matrix(k.columns, k.rows)), from = elements_of(k);
    kt.forget();
    Kernel::transpose(kt.get(), from.get());
    CHECK((kt.clean() && from.clean()));
    return kt.content();
  }
};

/// An exact element and the sum of the absolute values of its terms.
struct element {
  wide value = 0, size = 0;

  void add(wide term) {
    value += term;
    size += std::fabs(term);
  }
};

/// |x - exact| <= u (roundings, grown as in oracle.hpp) (sum of |terms|)
template <class Real>
bool close(Real x, const element& exact, index_t roundings) {
  const wide u = std::numeric_limits<Real>::epsilon() / 2;
  return std::fabs(wide(x) - exact.value) <= u * test::grown(static_cast<wide>(roundings)) * exact.size;
}

/// Every element of x against f(i, j).
template <class Real, class Exact>
bool close(const plain<Real>& x, index_t roundings, const Exact& f) {
  for (index_t i = 0; i < x.rows; ++i)
    for (index_t j = 0; j < x.columns; ++j)
      if (!close(x(i, j), f(i, j), roundings)) return false;
  return true;
}

struct shape {
  index_t m, n, Dk, Dv;
};

/// Every size of a register tile and of a packet, one less and one more, then anything.
std::vector<shape> shapes(test::random_source& from) {
  std::vector<shape> result;
  for (const index_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33}) {
    result.push_back({n, 5, 3, 2});
    result.push_back({3, n, 5, 2});
    result.push_back({3, 2, n, 5});
    result.push_back({5, 2, 3, n});
  }
  for (int i = 0; i < 40; ++i) result.push_back({1 + from.below(20), 1 + from.below(70), 1 + from.below(40), 1 + from.below(70)});
  return result;
}

std::string words(const shape& s) {
  return "m=" + std::to_string(s.m) + " n=" + std::to_string(s.n) + " Dk=" + std::to_string(s.Dk) + " Dv=" + std::to_string(s.Dv);
}

}  // namespace

#define ALL_LAYERS                                                                                               \
  (on<bila::kernel::reference, float>), (on<bila::kernel::reference, double>), (on<bila::kernel::eigen, float>), \
      (on<bila::kernel::eigen, double>)

TEMPLATE_TEST_CASE("both layers keep the contract", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  STATIC_REQUIRE(bila::kernel::layer<Kernel, Real>);
  test::random_source from(401);

  for (const shape& s : shapes(from)) {
    INFO(words(s));
    const verbs<Kernel, Real> run{{from.below(5), from.below(3)}};
    const auto q = random<Real>(from, s.m, s.Dk), k = random<Real>(from, s.n, s.Dk), v = random<Real>(from, s.n, s.Dv);
    const auto N = random<Real>(from, s.m, s.Dv), S = random<Real>(from, s.Dk, s.Dv), A = random<Real>(from, s.m, s.n),
               M = random<Real>(from, s.m, s.n);
    const auto z = random<Real>(from, 1, s.m), r = random<Real>(from, 1, s.m), c = random<Real>(from, 1, s.n),
               sums = random<Real>(from, 1, s.Dk);
    const Real g = static_cast<Real>(from.uniform(0, 1)), w = static_cast<Real>(from.uniform(-2, 2));
    const auto wd = [](Real x) { return wide(x); };

    const auto kt = run.transpose(k);
    bool transposed = true;
    for (index_t j = 0; j < s.n; ++j)
      for (index_t d = 0; d < s.Dk; ++d) transposed = transposed && kt(d, j) == k(j, d);
    CHECK(transposed);

    CHECK(close(run.score(q, kt), s.Dk + 1, [&](index_t i, index_t j) {
      element x;
      for (index_t d = 0; d < s.Dk; ++d) x.add(wd(q(i, d)) * wd(k(j, d)));
      return x;
    }));

    for (const bool with_sums : {true, false}) {
      const auto [dense, dense_z] = run.weigh(A, M, z, with_sums);
      CHECK(close(dense, 1, [&](index_t i, index_t j) {
        return element{wd(A(i, j)) * wd(M(i, j)), std::fabs(wd(A(i, j)) * wd(M(i, j)))};
      }));
      const auto dense_sum = [&](index_t, index_t i) {
        element x{wd(z(0, i)), std::fabs(wd(z(0, i)))};
        for (index_t j = 0; j < s.n; ++j) x.add(wd(A(i, j)) * wd(M(i, j)));
        return x;
      };
      CHECK((with_sums ? close(dense_z, s.n + 2, dense_sum) : same_bits(dense_z, z)));

      const auto [ranked, ranked_z] = run.weigh(A, r, c, z, with_sums);
      const auto rank_one = [&](index_t i, index_t j) { return wd(A(i, j)) * wd(r(0, i)) * wd(c(0, j)); };
      CHECK(close(ranked, 2, [&](index_t i, index_t j) { return element{rank_one(i, j), std::fabs(rank_one(i, j))}; }));
      const auto rank_sum = [&](index_t, index_t i) {
        element x{wd(z(0, i)), std::fabs(wd(z(0, i)))};
        for (index_t j = 0; j < s.n; ++j) x.add(rank_one(i, j));
        return x;
      };
      CHECK((with_sums ? close(ranked_z, s.n + 3, rank_sum) : same_bits(ranked_z, z)));

      const auto [from_state, from_sums] = run.read(N, z, r, q, S, sums, with_sums);
      CHECK(close(from_state, s.Dk + 3, [&](index_t i, index_t d) {
        element x{wd(N(i, d)), std::fabs(wd(N(i, d)))};
        for (index_t e = 0; e < s.Dk; ++e) x.add(wd(r(0, i)) * wd(q(i, e)) * wd(S(e, d)));
        return x;
      }));
      const auto read_sum = [&](index_t, index_t i) {
        element x{wd(z(0, i)), std::fabs(wd(z(0, i)))};
        for (index_t e = 0; e < s.Dk; ++e) x.add(wd(r(0, i)) * wd(q(i, e)) * wd(sums(0, e)));
        return x;
      };
      CHECK((with_sums ? close(from_sums, s.Dk + 3, read_sum) : same_bits(from_sums, z)));

      const auto [state, state_sums] = run.accumulate(S, sums, g, k, c, v, with_sums);
      CHECK(close(state, s.n + 3, [&](index_t e, index_t d) {
        element x;
        x.add(wd(g) * wd(S(e, d)));
        for (index_t j = 0; j < s.n; ++j) x.add(wd(c(0, j)) * wd(k(j, e)) * wd(v(j, d)));
        return x;
      }));
      const auto accumulated_sum = [&](index_t, index_t e) {
        element x;
        x.add(wd(g) * wd(sums(0, e)));
        for (index_t j = 0; j < s.n; ++j) x.add(wd(c(0, j)) * wd(k(j, e)));
        return x;
      };
      CHECK((with_sums ? close(state_sums, s.n + 3, accumulated_sum) : same_bits(state_sums, sums)));

      const auto row = N.part(1, s.Dv), one_z = z.part(1, 1), query = q.part(1, s.Dk), key = k.part(1, s.Dk),
                 value = v.part(1, s.Dv);
      const auto after = run.step(row, one_z, r(0, 0), query, S, sums, g, w, key, value, with_sums);
      const wide read = wd(r(0, 0)), write = wd(w);
      CHECK(close(after.n, s.Dk + 3, [&](index_t, index_t d) {
        element x{wd(row(0, d)), std::fabs(wd(row(0, d)))};
        for (index_t e = 0; e < s.Dk; ++e) x.add(read * wd(query(0, e)) * wd(S(e, d)));
        return x;
      }));
      CHECK(close(after.S, 4, [&](index_t e, index_t d) {
        element x;
        x.add(wd(g) * wd(S(e, d)));
        x.add(wd(g) * write * wd(key(0, e)) * wd(value(0, d)));
        return x;
      }));
      const auto step_z = [&](index_t, index_t) {
        element x{wd(one_z(0, 0)), std::fabs(wd(one_z(0, 0)))};
        for (index_t e = 0; e < s.Dk; ++e) x.add(read * wd(query(0, e)) * wd(sums(0, e)));
        return x;
      };
      const auto step_s = [&](index_t, index_t e) {
        element x;
        x.add(wd(g) * wd(sums(0, e)));
        x.add(wd(g) * write * wd(key(0, e)));
        return x;
      };
      CHECK((with_sums ? close(after.z, s.Dk + 3, step_z) && close(after.s, 3, step_s)
                       : same_bits(after.z, one_z) && same_bits(after.s, sums)));

      const auto [own, own_z] = run.diagonal(row, one_z, w, query, key, value, with_sums);
      const auto own_score = [&](wide times) {
        element x;
        for (index_t e = 0; e < s.Dk; ++e) x.add(wd(w) * wd(query(0, e)) * wd(key(0, e)) * times);
        return x;
      };
      CHECK(close(own, s.Dk + 4, [&](index_t, index_t d) {
        element x = own_score(wd(value(0, d)));
        x.add(wd(row(0, d)));
        return x;
      }));
      const auto diagonal_z = [&](index_t, index_t) {
        element x = own_score(1);
        x.add(wd(one_z(0, 0)));
        return x;
      };
      CHECK((with_sums ? close(own_z, s.Dk + 4, diagonal_z) : same_bits(own_z, one_z)));
    }

    CHECK(close(run.apply(N, A, v), s.n + 2, [&](index_t i, index_t d) {
      element x{wd(N(i, d)), std::fabs(wd(N(i, d)))};
      for (index_t j = 0; j < s.n; ++j) x.add(wd(A(i, j)) * wd(v(j, d)));
      return x;
    }));

    const auto other = random<Real>(from, s.m, s.Dv);
    CHECK(close(run.apply_transposed(v, A, other), s.m + 2, [&](index_t j, index_t d) {
      element x{wd(v(j, d)), std::fabs(wd(v(j, d)))};
      for (index_t i = 0; i < s.m; ++i) x.add(wd(A(i, j)) * wd(other(i, d)));
      return x;
    }));
    CHECK(close(run.outer(A, r, c), 2, [&](index_t i, index_t j) {
      element x{wd(A(i, j)), std::fabs(wd(A(i, j)))};
      x.add(wd(r(0, i)) * wd(c(0, j)));
      return x;
    }));
    CHECK(close(run.gather(sums, g, k, c), s.n + 3, [&](index_t, index_t e) {
      element x;
      x.add(wd(g) * wd(sums(0, e)));
      for (index_t j = 0; j < s.n; ++j) x.add(wd(c(0, j)) * wd(k(j, e)));
      return x;
    }));

    // Sums in double of products that may have been made in Real.
    const wide u = std::numeric_limits<Real>::epsilon() / 2;
    const auto rows = run.dots(N, other);
    element all;
    for (index_t i = 0; i < s.m; ++i) {
      element row;
      for (index_t d = 0; d < s.Dv; ++d) row.add(wd(N(i, d)) * wd(other(i, d)));
      CHECK(std::fabs(wide(rows[static_cast<std::size_t>(i)]) - row.value) <=
            u * test::grown(static_cast<wide>(s.Dv + 1)) * row.size);
      all.value += row.value;
      all.size += row.size;
    }
    CHECK(std::fabs(wide(run.inner(N, other)) - all.value) <= u * test::grown(static_cast<wide>(s.m * s.Dv + 1)) * all.size);

    CHECK(close(run.divide(N.part(1, s.Dv), w, g + 1), 2, [&](index_t, index_t d) {
      const wide exact = wd(w) * wd(N(0, d)) / wd(g + 1);
      return element{exact, std::fabs(exact)};
    }));
  }
}

TEMPLATE_TEST_CASE("an element has the same bits at any address, beside any other rows and columns", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  test::random_source from(402);
  const shape s{19, 37, 21, 43};
  const auto q = random<Real>(from, s.m, s.Dk), kt = random<Real>(from, s.Dk, s.n), v = random<Real>(from, s.n, s.Dv),
             k = random<Real>(from, s.n, s.Dk);
  const auto N = random<Real>(from, s.m, s.Dv), S = random<Real>(from, s.Dk, s.Dv), A = random<Real>(from, s.m, s.n),
             M = random<Real>(from, s.m, s.n);
  const auto z = random<Real>(from, 1, s.m), r = random<Real>(from, 1, s.m), c = random<Real>(from, 1, s.n),
             sums = random<Real>(from, 1, s.Dk);
  const Real g = Real(0.7), w = Real(1.3);
  const verbs<Kernel, Real> here{};

  const auto scores = here.score(q, kt), products = here.apply(N, A, v), quotients = here.divide(N.part(1, s.Dv), w, g);
  const auto dense = here.weigh(A, M, z), ranked = here.weigh(A, r, c, z), states_read = here.read(N, z, r, q, S, sums),
             state = here.accumulate(S, sums, g, k, c, v);
  const auto back = here.apply_transposed(v, A, N), rank_one = here.outer(A, r, c), gathered = here.gather(sums, g, k, c);
  const auto row_dots = here.dots(N, N);
  const double all_dots = here.inner(N, N);
  const auto stepped =
      here.step(N.part(1, s.Dv), z.part(1, 1), w, q.part(1, s.Dk), S, sums, g, w, k.part(1, s.Dk), v.part(1, s.Dv));
  const auto own = here.diagonal(N.part(1, s.Dv), z.part(1, 1), w, q.part(1, s.Dk), k.part(1, s.Dk), v.part(1, s.Dv));

  for (int n = 0; n < 60; ++n) {
    const verbs<Kernel, Real> there{{from.below(17), from.below(4)}};
    const index_t m = 1 + from.below(s.m), columns = 1 + from.below(s.n), Dv = 1 + from.below(s.Dv), Dk = 1 + from.below(s.Dk);
    INFO("offset " << there.where.offset << ", apart " << there.where.apart << ", " << words({m, columns, Dk, Dv}));
    CHECK(same_bits(there.score(q.part(m, s.Dk), kt.part(s.Dk, columns)), scores.part(m, columns)));
    CHECK(same_bits(there.apply(N.part(m, Dv), A.part(m, s.n), v.part(s.n, Dv)), products.part(m, Dv)));
    CHECK(same_bits(there.divide(N.part(1, Dv), w, g), quotients.part(1, Dv)));

    const auto d = there.weigh(A.part(m, s.n), M.part(m, s.n), z.part(1, m));
    CHECK((same_bits(d.first, dense.first.part(m, s.n)) && same_bits(d.second, dense.second.part(1, m))));
    const auto o = there.weigh(A.part(m, s.n), r.part(1, m), c, z.part(1, m));
    CHECK((same_bits(o.first, ranked.first.part(m, s.n)) && same_bits(o.second, ranked.second.part(1, m))));

    const auto rd = there.read(N.part(m, Dv), z.part(1, m), r.part(1, m), q.part(m, s.Dk), S.part(s.Dk, Dv), sums);
    CHECK((same_bits(rd.first, states_read.first.part(m, Dv)) && same_bits(rd.second, states_read.second.part(1, m))));
    const auto ac = there.accumulate(S.part(Dk, Dv), sums.part(1, Dk), g, k.part(s.n, Dk), c, v.part(s.n, Dv));
    CHECK((same_bits(ac.first, state.first.part(Dk, Dv)) && same_bits(ac.second, state.second.part(1, Dk))));

    CHECK(same_bits(there.apply_transposed(v.part(columns, Dv), A.part(s.m, columns), N.part(s.m, Dv)), back.part(columns, Dv)));
    CHECK(same_bits(there.outer(A.part(m, columns), r.part(1, m), c.part(1, columns)), rank_one.part(m, columns)));
    CHECK(same_bits(there.gather(sums.part(1, Dk), g, k.part(s.n, Dk), c), gathered.part(1, Dk)));
    const auto dots = there.dots(N.part(m, s.Dv), N.part(m, s.Dv));
    CHECK(std::equal(dots.begin(), dots.end(), row_dots.begin()));
    CHECK(there.inner(N, N) == all_dots);

    const auto st =
        there.step(N.part(1, Dv), z.part(1, 1), w, q.part(1, s.Dk), S.part(s.Dk, Dv), sums, g, w, k.part(1, s.Dk), v.part(1, Dv));
    CHECK((same_bits(st.n, stepped.n.part(1, Dv)) && same_bits(st.z, stepped.z) && same_bits(st.S, stepped.S.part(s.Dk, Dv)) &&
           same_bits(st.s, stepped.s)));
    const auto di = there.diagonal(N.part(1, Dv), z.part(1, 1), w, q.part(1, s.Dk), k.part(1, s.Dk), v.part(1, Dv));
    CHECK((same_bits(di.first, own.first.part(1, Dv)) && same_bits(di.second, own.second)));
  }
}

TEST_CASE("round_up") {
  CHECK(bila::kernel::round_up(0, 4) == 0);
  CHECK(bila::kernel::round_up(1, 4) == 4);
  CHECK(bila::kernel::round_up(4, 4) == 4);
  CHECK(bila::kernel::round_up(5, 4) == 8);
  CHECK(bila::kernel::round_up(5, 1) == 5);
}
