// SPDX-License-Identifier: Apache-2.0
// Every verb of every kernel layer against its equation in long double, over odd shapes, with poison wherever it must not look;
// and the promise that the bits of an element depend on nothing but the numbers that enter it.
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

#include <bila/kernel/contract.hpp>
#include <bila/kernel/packets.hpp>
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
  plain part(index_t m, index_t n) const { return part(0, 0, m, n); }

  /// m rows and n columns from (row, column) on.
  plain part(index_t row, index_t column, index_t m, index_t n) const {
    plain result(m, n);
    for (index_t i = 0; i < m; ++i)
      for (index_t j = 0; j < n; ++j) result(i, j) = (*this)(row + i, column + j);
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
  return a.rows == b.rows && a.columns == b.columns &&
         (a.x.empty() || std::memcmp(a.x.data(), b.x.data(), a.x.size() * sizeof(Real)) == 0);
}

/// Where a tile lies: elements past an aligned address, and packets (elements, if its rows are whole packets) between its rows.
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
    stride_ = width_ + where.apart * (width_ == columns_ ? 1 : lanes);
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

  /// The poison around the tile is still there.
  bool within() {
    std::vector<bool> own(memory_.size());
    for (index_t i = 0; i < rows_; ++i)
      for (index_t j = 0; j < width_; ++j) own[static_cast<std::size_t>(first_ + i * stride_ + j)] = true;
    for (std::size_t n = 0; n < memory_.size(); ++n)
      if (!own[n] && !std::isnan(memory_[n])) return false;
    return true;
  }

  /// And so are the zeros of the padding.
  bool clean() {
    for (index_t i = 0; i < rows_; ++i)
      for (index_t j = columns_; j < width_; ++j)
        if (!(at(i, j) == 0)) return false;
    return within();
  }

  /// What a verb only reads.
  bool kept(const plain<Real>& from) { return clean() && same_bits(content(), from); }

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
  using matrix = plain<Real>;
  using doubles = room<Kernel, double>;
  using row_of_doubles = plain<double>;

  place where{};

  space tile_of(const matrix& x) const { return space(x, space::kind::padded, where); }
  space elements_of(const matrix& x) const { return space(x, space::kind::by_element, where); }
  doubles doubles_of(const row_of_doubles& x) const { return doubles(x, doubles::kind::by_element, where); }

  /// A tile or a vector that may be absent.
  class perhaps {
   public:
    perhaps(const verbs& run, const matrix* x, bool padded = true) : from_(x), there_(x != nullptr) {
      if (there_) memory_.push_back(padded ? run.tile_of(*x) : run.elements_of(*x));
    }

    tile<const Real> get() { return there_ ? tile<const Real>(memory_[0].get()) : tile<const Real>{}; }
    Real* numbers() { return there_ ? memory_[0].numbers() : nullptr; }
    bool kept() { return !there_ || memory_[0].kept(*from_); }
    bool clean() { return !there_ || memory_[0].clean(); }
    matrix content() { return there_ ? memory_[0].content() : matrix(0, 0); }

   private:
    const matrix* from_;
    bool there_;
    std::vector<space> memory_;
  };

  /// Weights (keys, queries) of rank one; those of the keys are read one by one.
  struct factors {
    matrix keys, queries;
  };

  struct scores {
    matrix A, z;
  };

  scores score(const matrix& k, const matrix& qt, const matrix& M, const matrix* z) const {
    space weights = tile_of(M);
    const auto result = score_with(k, qt, tile<const Real>(weights.get()), z);
    CHECK(weights.kept(M));
    return result;
  }

  scores score(const matrix& k, const matrix& qt, const factors& M, const matrix* z) const {
    space keys = elements_of(M.keys), queries = tile_of(M.queries);
    const auto result = score_with(k, qt, bila::kernel::rank_one<Real>{keys.numbers(), queries.numbers()}, z);
    CHECK((keys.kept(M.keys) && queries.kept(M.queries)));
    return result;
  }

  matrix apply(const matrix& before, const matrix& A, const matrix& v) const {
    space N = tile_of(before), left = tile_of(A), right = tile_of(v);
    Kernel::apply(N.get(), left.get(), right.get());
    CHECK((N.clean() && left.kept(A) && right.kept(v)));
    return N.content();
  }

  /// What `read` may be asked to add and to multiply with.
  struct besides {
    const matrix *out = nullptr, *A = nullptr, *v = nullptr, *left = nullptr;
  };

  matrix read(const matrix& r, const matrix& q, const matrix& S, const besides& x, bool onto_left = false) const {
    space N = tile_of(onto_left ? *x.left : matrix(q.rows, S.columns)), weight = tile_of(r), queries = tile_of(q),
          from = tile_of(S);
    perhaps out(*this, x.out), A(*this, x.A), v(*this, x.v), left(*this, onto_left ? nullptr : x.left);
    if (!onto_left) N.forget();
    Kernel::read(N.get(), {.q = queries.get(),
                           .S = from.get(),
                           .weights = weight.numbers(),
                           .A = A.get(),
                           .v = v.get(),
                           .partial = onto_left ? tile<const Real>(N.get()) : left.get(),
                           .row_scales = out.numbers()});
    CHECK((N.clean() && weight.kept(r) && queries.kept(q) && from.kept(S)));
    CHECK((out.kept() && A.kept() && v.kept() && left.kept()));
    return N.content();
  }

  matrix project(const matrix& z, const matrix& r, const matrix& q, const matrix& s) const {
    space sum = tile_of(z), weight = tile_of(r), queries = tile_of(q), sums = tile_of(s);
    Kernel::project(sum.numbers(), weight.numbers(), queries.get(), sums.numbers());
    CHECK((sum.clean() && weight.kept(r) && queries.kept(q) && sums.kept(s)));
    return sum.content();
  }

  matrix project_transposed(const matrix& z, const matrix& r, const matrix& qt, const matrix& s) const {
    space sum = tile_of(z), weight = tile_of(r), queries = tile_of(qt), sums = elements_of(s);
    Kernel::project_transposed(sum.numbers(), weight.numbers(), queries.get(), sums.numbers());
    CHECK((sum.clean() && weight.kept(r) && queries.kept(qt) && sums.kept(s)));
    return sum.content();
  }

  struct state {
    matrix S, s, E, e;
  };

  /// `h`, with e, is null when row sums are not wanted, `w` for weights of one, `E` when what rounding takes is lost.
  state accumulate(Real g, const matrix& H, const matrix* h, const matrix& k, const matrix* w, const matrix& v,
                   bool in_place = false, const matrix* E = nullptr, const matrix* e = nullptr,
                   const matrix* g_of_rows = nullptr) const {
    space S = tile_of(H), before = tile_of(H), keys = tile_of(k), values = tile_of(v), x = tile_of(k);
    perhaps s(*this, h), row_before(*this, h), weight(*this, w, false), rest(*this, E), decays(*this, g_of_rows);
    const matrix nothing(1, k.columns);
    perhaps row_rest(*this, h == nullptr ? nullptr : e == nullptr ? &nothing : e);
    if (!in_place) {
      S.forget();
      if (h != nullptr) s = forgotten(*h);
    }
    x.forget();
    const tile<Real> kept = E == nullptr ? tile<Real>{} : tile<Real>{rest.numbers(), H.rows, H.columns, rest.get().stride};
    const bila::kernel::state<Real> to{S.get(), s.numbers()};
    Kernel::accumulate(
        to, {.from = {in_place ? S.get() : before.get(), in_place ? s.numbers() : row_before.numbers()},
             .decay = g_of_rows == nullptr ? bila::kernel::row_decays<Real>(g) : bila::kernel::row_decays<Real>(decays.numbers()),
             .k = keys.get(),
             .v = values.get(),
             .weights = weight.numbers(),
             .weighted = w == nullptr ? tile<Real>{} : x.get(),
             .rest = {kept, row_rest.numbers()}});
    CHECK((S.clean() && s.clean() && rest.clean() && row_rest.clean() && x.within()));
    CHECK((before.kept(H) && row_before.kept() && keys.kept(k) && weight.kept() && values.kept(v) && decays.kept()));
    return {S.content(), s.content(), rest.content(), row_rest.content()};
  }

  struct after_step {
    matrix n, z, S, s;
  };

  /// Rows of N, q, k and v in their order, or with negative strides from the last to the first.
  after_step steps(const matrix& N, const matrix& z, const matrix& r, const matrix& q, const matrix& S, const matrix& s,
                   const matrix& g, const matrix& w, const matrix& k, const matrix& v, bool sums = true,
                   bool backwards = false) const {
    space row = tile_of(N), sum = elements_of(z), read = tile_of(r), left = tile_of(q), now = tile_of(S), total = tile_of(s),
          settle = tile_of(g), write = tile_of(w), key = tile_of(k), value = tile_of(v), x = tile_of(matrix(k.rows, k.columns));
    const auto order = [&](space& of) {
      const tile<Real> t = of.get();
      return backwards ? tile<Real>{t.row(t.rows - 1), t.rows, t.columns, -t.stride} : t;
    };
    const bila::kernel::state<Real> to{now.get(), sums ? total.numbers() : nullptr};
    Kernel::steps(order(row), sums ? sum.numbers() : nullptr, to,
                  {.q = order(left),
                   .k = order(key),
                   .v = order(value),
                   .read = read.numbers(),
                   .write = write.numbers(),
                   .decay = settle.numbers(),
                   .weighted = x.get()});
    CHECK((row.clean() && sum.clean() && read.kept(r) && left.kept(q) && now.clean() && total.clean() && settle.kept(g) &&
           write.kept(w) && key.kept(k) && value.kept(v) && x.within()));
    return {row.content(), sum.content(), now.content(), total.content()};
  }

  after_step step(const matrix& n, const matrix& z, Real r, const matrix& q, const matrix& S, const matrix& s, Real g, Real w,
                  const matrix& k, const matrix& v, bool sums = true) const {
    const auto number = [](Real x) {
      matrix one(1, 1);
      one(0, 0) = x;
      return one;
    };
    return steps(n, z, number(r), q, S, s, number(g), number(w), k, v, sums);
  }

  std::pair<matrix, matrix> diagonal(const matrix& N, const matrix& z, Real w, const matrix& q, const matrix& k, const matrix& v,
                                     bool sums = true) const {
    space row = tile_of(N), sum = elements_of(z), left = tile_of(q), key = tile_of(k), value = tile_of(v);
    Kernel::diagonal(row.get(), sums ? sum.numbers() : nullptr, w, left.get(), key.get(), value.get());
    CHECK((row.clean() && sum.clean() && left.kept(q) && key.kept(k) && value.kept(v)));
    return {row.content(), sum.content()};
  }

  matrix scale(const matrix& before, const matrix& out) const {
    space N = tile_of(before), factor = tile_of(out), Y = tile_of(before);
    Y.forget();
    Kernel::scale(Y.get(), factor.numbers(), N.get());
    CHECK((Y.clean() && N.kept(before) && factor.kept(out)));
    Kernel::scale(N.get(), factor.numbers(), N.get());
    CHECK((N.clean() && same_bits(N.content(), Y.content())));
    return N.content();
  }

  matrix divide(const matrix& n, Real factor, Real divisor) const {
    space row = tile_of(n);
    Kernel::divide(row.numbers(), n.columns, factor, divisor);
    CHECK(row.clean());
    return row.content();
  }

  matrix transpose(const matrix& k) const {
    space kt = tile_of(matrix(k.columns, k.rows)), from = tile_of(k);
    kt.forget();
    Kernel::transpose(kt.get(), from.get());
    CHECK((kt.clean() && from.kept(k)));
    return kt.content();
  }

  row_of_doubles exponentials(const row_of_doubles& logs) const {
    doubles x = doubles_of(logs);
    Kernel::exponentials(x.numbers(), logs.columns);
    CHECK(x.clean());
    return x.content();
  }

  /// Of the decays of gaps 0..n; null: a side without decays.
  matrix scan_square(index_t n, const row_of_doubles* up, const row_of_doubles* down) const {
    space M = tile_of(matrix(n, n));
    M.forget();
    std::vector<doubles> decays;
    for (const row_of_doubles* const gaps : {up, down})
      decays.push_back(doubles_of(gaps == nullptr ? row_of_doubles(1, 0) : *gaps));
    Kernel::scan_square(M.get(), up == nullptr ? nullptr : static_cast<const double*>(decays[0].numbers()),
                        down == nullptr ? nullptr : static_cast<const double*>(decays[1].numbers()));
    CHECK(M.clean());
    CHECK(((up == nullptr || decays[0].kept(*up)) && (down == nullptr || decays[1].kept(*down))));
    return M.content();
  }

  struct gradients {
    matrix G, E, A;
  };

  gradients score_gradient(const matrix& A, const matrix& v, const matrix& dyt, const matrix& a, const matrix& b,
                           const matrix& M) const {
    space weights = tile_of(M);
    const auto result = gradient_with(A, v, dyt, a, b, tile<const Real>(weights.get()));
    CHECK(weights.kept(M));
    return result;
  }

  gradients score_gradient(const matrix& A, const matrix& v, const matrix& dyt, const matrix& a, const matrix& b,
                           const factors& M) const {
    space keys = elements_of(M.keys), queries = tile_of(M.queries);
    const auto result = gradient_with(A, v, dyt, a, b, bila::kernel::rank_one<Real>{keys.numbers(), queries.numbers()});
    CHECK((keys.kept(M.keys) && queries.kept(M.queries)));
    return result;
  }

  matrix multiply(const matrix& before, const matrix& A, const matrix& q) const {
    space N = tile_of(before), left = tile_of(A), right = tile_of(q);
    Kernel::multiply(N.get(), left.get(), right.get());
    CHECK((N.clean() && left.kept(A) && right.kept(q)));
    return N.content();
  }

  matrix add(const matrix& before, const matrix& x) const {
    space N = tile_of(before), more = tile_of(x);
    Kernel::add(N.get(), more.get());
    CHECK((N.clean() && more.kept(x)));
    return N.content();
  }

  matrix gather(Real g, const matrix& h, const matrix& k, const matrix* w, bool in_place = false,
                const matrix* g_of_rows = nullptr) const {
    space s = tile_of(h), before = tile_of(h), from = tile_of(k), rest = tile_of(matrix(1, k.columns));
    perhaps weight(*this, w, false), decays(*this, g_of_rows);
    if (!in_place) s.forget();
    const bila::kernel::row_decays<Real> decay =
        g_of_rows == nullptr ? bila::kernel::row_decays<Real>(g) : bila::kernel::row_decays<Real>(decays.numbers());
    Kernel::gather(s.numbers(), rest.numbers(), decay, in_place ? s.numbers() : before.numbers(), from.get(), weight.numbers());
    CHECK((s.clean() && rest.clean() && before.kept(h) && from.kept(k) && weight.kept()));
    return s.content();
  }

  row_of_doubles dots(const matrix& a, const matrix& b) const {
    space left = tile_of(a), right = tile_of(b);
    doubles z = doubles_of(row_of_doubles(1, a.rows));
    z.forget();
    Kernel::template dots<Real>(z.numbers(), left.get(), right.get());
    CHECK((z.within() && left.kept(a) && right.kept(b)));
    return z.content();
  }

  double inner(const matrix& a, const matrix& b) const {
    space left = tile_of(a), right = tile_of(b);
    const double result = Kernel::template inner<Real>(left.get(), right.get());
    CHECK((left.kept(a) && right.kept(b)));
    return result;
  }

  struct totals {
    row_of_doubles queries, keys;
    double all;
  };

  totals sums(const row_of_doubles& queries, const row_of_doubles& keys, const matrix& E) const {
    space from = tile_of(E);
    doubles by_query = doubles_of(queries), by_key = doubles_of(keys);
    const double all = Kernel::sums(by_query.numbers(), by_key.numbers(), from.get());
    CHECK((by_query.clean() && by_key.clean() && from.kept(E)));
    return {by_query.content(), by_key.content(), all};
  }

  /// A side that is not wanted is null.
  std::pair<row_of_doubles, row_of_doubles> crossings(const row_of_doubles* f, const row_of_doubles* b, const matrix& E) const {
    space from = tile_of(E), x = tile_of(matrix(1, E.rows));
    x.forget();
    const row_of_doubles none(1, 0);
    doubles forward = doubles_of(f == nullptr ? none : *f), backward = doubles_of(b == nullptr ? none : *b);
    Kernel::crossings(f == nullptr ? nullptr : forward.numbers(), b == nullptr ? nullptr : backward.numbers(), from.get(),
                      x.numbers());
    CHECK((forward.within() && backward.within() && from.kept(E) && x.within()));
    return {forward.content(), backward.content()};
  }

 private:
  perhaps forgotten(const matrix& like) const {
    perhaps result(*this, &like);
    std::fill_n(result.numbers(), bila::kernel::round_up(like.columns, Kernel::template lanes<Real>),
                std::numeric_limits<Real>::quiet_NaN());
    return result;
  }

  template <class Weights>
  scores score_with(const matrix& k, const matrix& qt, const Weights& M, const matrix* z) const {
    space A = tile_of(matrix(k.rows, qt.columns)), keys = tile_of(k), queries = tile_of(qt);
    perhaps sum(*this, z);
    A.forget();
    Kernel::score(A.get(), keys.get(), queries.get(), M, sum.numbers());
    CHECK((A.clean() && sum.clean() && keys.kept(k) && queries.kept(qt)));
    return {A.content(), sum.content()};
  }

  template <class Weights>
  gradients gradient_with(const matrix& before, const matrix& v, const matrix& dyt, const matrix& a, const matrix& b,
                          const Weights& M) const {
    space A = tile_of(before), G = tile_of(before), E = tile_of(before), values = tile_of(v), dy = tile_of(dyt),
          factor = tile_of(a), shift = tile_of(b);
    G.forget();
    E.forget();
    Kernel::score_gradient(A.get(), {G.get(), E.get()}, values.get(), dy.get(), {factor.numbers(), shift.numbers()}, M);
    CHECK((G.clean() && E.clean() && A.clean() && values.kept(v) && dy.kept(dyt) && factor.kept(a) && shift.kept(b)));
    return {G.content(), E.content(), A.content()};
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
  for (const index_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
    result.push_back({n, 5, 3, 2});
    result.push_back({3, n, 5, 2});
    result.push_back({3, 2, n, 5});
    result.push_back({5, 2, 3, n});
  }
  for (int i = 0; i < 40; ++i) result.push_back({1 + from.below(70), 1 + from.below(70), 1 + from.below(70), 1 + from.below(70)});
  return result;
}

std::string words(const shape& s) {
  return "m=" + std::to_string(s.m) + " n=" + std::to_string(s.n) + " Dk=" + std::to_string(s.Dk) + " Dv=" + std::to_string(s.Dv);
}

template <class Real>
plain<Real> transposed(const plain<Real>& x) {
  plain<Real> result(x.columns, x.rows);
  for (index_t i = 0; i < x.rows; ++i)
    for (index_t j = 0; j < x.columns; ++j) result(j, i) = x(i, j);
  return result;
}

/// The decays of gaps 0..n, with or without exact zeros.
plain<double> decays(test::random_source& from, index_t n, bool with_zeros) {
  plain<double> result(1, n + 1);
  for (double& x : result.x) x = with_zeros && from.below(4) == 0 ? 0 : from.uniform(0.2, 1);
  return result;
}

/// Sums in double of numbers of which some may have been added up in Real.
template <class Real>
bool close_in_double(double x, const element& exact, index_t roundings) {
  const wide u = std::numeric_limits<Real>::epsilon() / 2;
  return std::fabs(wide(x) - exact.value) <= u * test::grown(static_cast<wide>(roundings)) * exact.size;
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
    const auto N = random<Real>(from, s.m, s.Dv), S = random<Real>(from, s.Dk, s.Dv), A = random<Real>(from, s.n, s.m),
               M = random<Real>(from, s.n, s.m);
    const auto z = random<Real>(from, 1, s.m), r = random<Real>(from, 1, s.m), c = random<Real>(from, 1, s.n),
               sums = random<Real>(from, 1, s.Dk), out = random<Real>(from, 1, s.m);
    const Real g = static_cast<Real>(from.uniform(0, 1)), w = static_cast<Real>(from.uniform(-2, 2));
    const auto wd = [](Real x) { return wide(x); };
    const auto plus = [&](Real x) { return element{wd(x), std::fabs(wd(x))}; };

    const auto qt = run.transpose(q);
    CHECK(same_bits(qt, transposed(q)));

    for (const bool with_sums : {true, false}) {
      const auto* const wanted = with_sums ? &z : nullptr;
      const auto row_sum = [&](const plain<Real>& scores) {
        return [&](index_t, index_t i) {
          element x = plus(z(0, i));
          for (index_t j = 0; j < s.n; ++j) x.add(wd(scores(j, i)));
          return x;
        };
      };
      const auto dense = run.score(k, qt, M, wanted);
      CHECK(close(dense.A, s.Dk + 2, [&](index_t j, index_t i) {
        element x;
        for (index_t d = 0; d < s.Dk; ++d) x.add(wd(q(i, d)) * wd(k(j, d)) * wd(M(j, i)));
        return x;
      }));
      if (with_sums) CHECK(close(dense.z, s.n + 1, row_sum(dense.A)));

      const auto ranked = run.score(k, qt, {c, r}, wanted);
      CHECK(close(ranked.A, s.Dk + 3, [&](index_t j, index_t i) {
        element x;
        for (index_t d = 0; d < s.Dk; ++d) x.add(wd(q(i, d)) * wd(k(j, d)) * wd(c(0, j)) * wd(r(0, i)));
        return x;
      }));
      if (with_sums) CHECK(close(ranked.z, s.n + 1, row_sum(ranked.A)));

      for (const auto* const weights : {&c, static_cast<const plain<Real>*>(nullptr)}) {
        const auto weight = [&](index_t j) { return weights == nullptr ? wide(1) : wd(c(0, j)); };
        const auto* const before = with_sums ? &sums : nullptr;
        const auto state = run.accumulate(g, S, before, k, weights, v);
        CHECK(close(state.S, s.n + 3, [&](index_t e, index_t d) {
          element x;
          x.add(wd(g) * wd(S(e, d)));
          for (index_t j = 0; j < s.n; ++j) x.add(weight(j) * wd(k(j, e)) * wd(v(j, d)));
          return x;
        }));
        const auto gathered = [&](index_t, index_t e) {
          element x;
          x.add(wd(g) * wd(sums(0, e)));
          for (index_t j = 0; j < s.n; ++j) x.add(weight(j) * wd(k(j, e)));
          return x;
        };
        if (with_sums) CHECK(close(state.s, s.n + 3, gathered));
        const auto in_place = run.accumulate(g, S, before, k, weights, v, true);
        CHECK((same_bits(in_place.S, state.S) && same_bits(in_place.s, state.s)));

        plain<Real> each(1, s.Dk);
        for (Real& x : each.x) x = std::ldexp(Real(1), -static_cast<int>(from.below(4)));
        each(0, from.below(s.Dk)) = 0;
        const auto by_row = run.accumulate(0, S, before, k, weights, v, false, nullptr, nullptr, &each);
        const auto gathered_by_row = run.gather(0, sums, k, weights, false, &each);
        for (index_t e = 0; e < s.Dk; ++e) {  // a row of the state is what it is alone
          const auto sum = sums.part(0, e, 1, 1), key = k.part(0, e, s.n, 1);
          const auto alone = run.accumulate(each(0, e), S.part(e, 0, 1, s.Dv), with_sums ? &sum : nullptr, key, weights, v);
          CHECK(same_bits(by_row.S.part(e, 0, 1, s.Dv), alone.S));
          if (with_sums) CHECK(same_bits(by_row.s.part(0, e, 1, 1), alone.s));
          CHECK(same_bits(gathered_by_row.part(0, e, 1, 1), run.gather(each(0, e), sum, key, weights)));
        }

        // With what rounding took kept beside it, a state is as good as its new terms alone: g is then a power of two.
        const Real half = Real(0.5), tiny = std::numeric_limits<Real>::epsilon() / 8;
        plain<Real> E(s.Dk, s.Dv), e_row(1, s.Dk);
        for (index_t e = 0; e < s.Dk; ++e) {
          e_row(0, e) = tiny * sums(0, e);
          for (index_t d = 0; d < s.Dv; ++d) E(e, d) = tiny * S(e, d);
        }
        for (const bool at_once : {false, true}) {
          const auto kept = run.accumulate(half, S, before, k, weights, v, at_once, &E, &e_row);
          bool true_sums = true;
          const auto agrees = [&](wide found, wide old, wide rest, const element& more) {
            const wide u = std::numeric_limits<Real>::epsilon() / 2;
            const wide exact = wd(half) * (old + rest) + more.value;
            const wide allowed = u * (static_cast<wide>(s.n + 4) * (more.size + std::fabs(rest))) + u * u * 4 * std::fabs(exact);
            true_sums = true_sums && std::fabs(found - exact) <= allowed + std::numeric_limits<Real>::min();
          };
          for (index_t e = 0; e < s.Dk; ++e) {
            for (index_t d = 0; d < s.Dv; ++d) {
              element more;
              for (index_t j = 0; j < s.n; ++j) more.add(weight(j) * wd(k(j, e)) * wd(v(j, d)));
              agrees(wd(kept.S(e, d)) + wd(kept.E(e, d)), wd(S(e, d)), wd(E(e, d)), more);
            }
            element more;
            for (index_t j = 0; j < s.n; ++j) more.add(weight(j) * wd(k(j, e)));
            if (with_sums) agrees(wd(kept.s(0, e)) + wd(kept.e(0, e)), wd(sums(0, e)), wd(e_row(0, e)), more);
          }
          CHECK(true_sums);
        }

        if (!with_sums) continue;
        const auto alone = run.gather(g, sums, k, weights);
        CHECK(close(alone, s.n + 3, gathered));
        CHECK(same_bits(run.gather(g, sums, k, weights, true), alone));
      }

      const auto row = N.part(1, s.Dv), one_z = z.part(1, 1), query = q.part(1, s.Dk), key = k.part(1, s.Dk),
                 value = v.part(1, s.Dv);
      for (const Real decay : {g, Real(1), Real(0)}) {
        const auto after = run.step(row, one_z, r(0, 0), query, S, sums, decay, w, key, value, with_sums);
        const wide read = wd(r(0, 0)), write = wd(w);
        CHECK(close(after.n, s.Dk + 3, [&](index_t, index_t d) {
          element x = plus(row(0, d));
          for (index_t e = 0; e < s.Dk; ++e) x.add(read * wd(query(0, e)) * wd(S(e, d)));
          return x;
        }));
        CHECK(close(after.S, 4, [&](index_t e, index_t d) {
          element x;
          x.add(wd(decay) * wd(S(e, d)));
          x.add(wd(decay) * write * wd(key(0, e)) * wd(value(0, d)));
          return x;
        }));
        const auto step_z = [&](index_t, index_t) {
          element x = plus(one_z(0, 0));
          for (index_t e = 0; e < s.Dk; ++e) x.add(read * wd(query(0, e)) * wd(sums(0, e)));
          return x;
        };
        const auto step_s = [&](index_t, index_t e) {
          element x;
          x.add(wd(decay) * wd(sums(0, e)));
          x.add(wd(decay) * write * wd(key(0, e)));
          return x;
        };
        CHECK((with_sums ? close(after.z, s.Dk + 3, step_z) && close(after.s, 3, step_s)
                         : same_bits(after.z, one_z) && same_bits(after.s, sums)));
      }

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

    for (int present = 0; present < 8; ++present) {
      const bool with_out = present & 1, with_A = present & 2, with_left = present & 4;
      INFO("out " << with_out << ", A " << with_A << ", left " << with_left);
      const typename verbs<Kernel, Real>::besides others{with_out ? &out : nullptr, with_A ? &A : nullptr, with_A ? &v : nullptr,
                                                         with_left ? &N : nullptr};
      const auto rows = run.read(r, q, S, others);
      CHECK(close(rows, s.Dk + 1 + (with_A ? s.n : 0) + with_left + with_out, [&](index_t i, index_t d) {
        const wide times = with_out ? wd(out(0, i)) : wide(1);
        element x;
        for (index_t e = 0; e < s.Dk; ++e) x.add(times * wd(r(0, i)) * wd(q(i, e)) * wd(S(e, d)));
        for (index_t j = 0; with_A && j < s.n; ++j) x.add(times * wd(A(j, i)) * wd(v(j, d)));
        if (with_left) x.add(times * wd(N(i, d)));
        return x;
      }));
      if (with_left) CHECK(same_bits(run.read(r, q, S, others, true), rows));
    }

    const auto projected = [&](index_t, index_t i) {
      element x = plus(z(0, i));
      for (index_t e = 0; e < s.Dk; ++e) x.add(wd(r(0, i)) * wd(q(i, e)) * wd(sums(0, e)));
      return x;
    };
    CHECK(close(run.project(z, r, q, sums), s.Dk + 3, projected));
    CHECK(close(run.project_transposed(z, r, qt, sums), s.Dk + 3, projected));

    CHECK(close(run.apply(N, A, v), s.n + 2, [&](index_t i, index_t d) {
      element x = plus(N(i, d));
      for (index_t j = 0; j < s.n; ++j) x.add(wd(A(j, i)) * wd(v(j, d)));
      return x;
    }));
    CHECK(close(run.scale(N, out), 1, [&](index_t i, index_t d) {
      element x;
      x.add(wd(out(0, i)) * wd(N(i, d)));
      return x;
    }));
    CHECK(close(run.divide(N.part(1, s.Dv), w, g + 1), 2, [&](index_t, index_t d) {
      element x;
      x.add(wd(w) * wd(N(0, d)) / wd(g + 1));
      return x;
    }));

    const auto dy = random<Real>(from, s.m, s.Dv), a = random<Real>(from, 1, s.m), b = random<Real>(from, 1, s.m);
    const auto adjoint = [&](index_t j, index_t i, wide times) {
      element x;
      for (index_t d = 0; d < s.Dv; ++d) x.add(wd(a(0, i)) * wd(v(j, d)) * wd(dy(i, d)) * times);
      x.add(wd(b(0, i)) * times);
      return x;
    };
    const auto check_gradients = [&](const auto& found, index_t roundings, const auto& weight) {
      CHECK(close(found.G, s.Dv + roundings, [&](index_t j, index_t i) { return adjoint(j, i, weight(j, i)); }));
      CHECK(close(found.E, s.Dv + 3, [&](index_t j, index_t i) { return adjoint(j, i, wd(A(j, i))); }));
      CHECK(close(found.A, 1, [&](index_t j, index_t i) {
        element x;
        x.add(wd(a(0, i)) * wd(A(j, i)));
        return x;
      }));
    };
    check_gradients(run.score_gradient(A, v, run.transpose(dy), a, b, M), 3, [&](index_t j, index_t i) { return wd(M(j, i)); });
    check_gradients(run.score_gradient(A, v, run.transpose(dy), a, b, {c, r}), 4,
                    [&](index_t j, index_t i) { return wd(c(0, j)) * wd(r(0, i)); });

    CHECK(close(run.multiply(v, A, dy), s.m + 2, [&](index_t j, index_t d) {
      element x = plus(v(j, d));
      for (index_t i = 0; i < s.m; ++i) x.add(wd(A(j, i)) * wd(dy(i, d)));
      return x;
    }));
    CHECK(close(run.add(A, M), 1, [&](index_t j, index_t i) {
      element x = plus(A(j, i));
      x.add(wd(M(j, i)));
      return x;
    }));

    const auto rows = run.dots(N, dy);
    element all;
    for (index_t i = 0; i < s.m; ++i) {
      element row;
      for (index_t d = 0; d < s.Dv; ++d) row.add(wd(N(i, d)) * wd(dy(i, d)));
      CHECK(close_in_double<Real>(rows(0, i), row, s.Dv + 1));
      all.value += row.value;
      all.size += row.size;
    }
    CHECK(close_in_double<Real>(run.inner(N, dy), all, s.m * s.Dv + 1));

    const auto by_query = random<double>(from, 1, s.m), by_key = random<double>(from, 1, s.n);
    const auto totals = run.sums(by_query, by_key, A);
    element of_all;
    for (index_t j = 0; j < s.n; ++j)
      for (index_t i = 0; i < s.m; ++i) of_all.add(wd(A(j, i)));
    CHECK(close_in_double<Real>(totals.all, of_all, s.n + s.m));
    for (index_t i = 0; i < s.m; ++i) {
      element x{by_query(0, i), std::fabs(wide(by_query(0, i)))};
      for (index_t j = 0; j < s.n; ++j) x.add(wd(A(j, i)));
      CHECK(close_in_double<Real>(totals.queries(0, i), x, s.n + 1));
    }
    for (index_t j = 0; j < s.n; ++j) {
      element x{by_key(0, j), std::fabs(wide(by_key(0, j)))};
      for (index_t i = 0; i < s.m; ++i) x.add(wd(A(j, i)));
      CHECK(close_in_double<Real>(totals.keys(0, j), x, s.m + 1));
    }
  }
}

TEMPLATE_TEST_CASE("what crosses each gap of a square, and no element beside it", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  test::random_source from(403);
  for (index_t n = 1; n <= 70; n += n < 36 ? 1 : 7) {
    INFO("n=" << n);
    const verbs<Kernel, Real> run{{from.below(5), from.below(3)}};
    const auto E = random<Real>(from, n, n);
    auto f = random<double>(from, 1, n), b = random<double>(from, 1, n);
    f(0, 0) = b(0, 0) = std::numeric_limits<double>::quiet_NaN();  // the gap before the first token is not in the square
    // A side alone has no business with the other's pairs; a token's pair with itself crosses nothing.
    auto upper = E, lower = E, both = E;
    for (index_t j = 0; j < n; ++j)
      for (index_t i = 0; i < n; ++i) {
        const Real nan = std::numeric_limits<Real>::quiet_NaN();
        if (i <= j) upper(j, i) = nan;
        if (i >= j) lower(j, i) = nan;
        if (i == j) both(j, i) = nan;
      }
    const auto pair = run.crossings(&f, &b, both);
    const auto forward = run.crossings(&f, nullptr, upper).first, backward = run.crossings(nullptr, &b, lower).second;
    CHECK(
        (std::isnan(pair.first(0, 0)) && std::isnan(pair.second(0, 0)) && std::isnan(forward(0, 0)) && std::isnan(backward(0, 0))));
    for (index_t t = 1; t < n; ++t) {
      element by_f{f(0, t), std::fabs(wide(f(0, t)))}, by_b{b(0, t), std::fabs(wide(b(0, t)))};
      for (index_t before = 0; before < t; ++before)
        for (index_t from_t = t; from_t < n; ++from_t) {
          by_f.add(wide(E(before, from_t)));
          by_b.add(wide(E(from_t, before)));
        }
      CHECK(close_in_double<Real>(forward(0, t), by_f, n + 1));
      CHECK(close_in_double<Real>(backward(0, t), by_b, n + 1));
      CHECK((pair.first(0, t) == forward(0, t) && pair.second(0, t) == backward(0, t)));
    }
    run.crossings(nullptr, nullptr, E);
  }
}

TEMPLATE_TEST_CASE("the square of a chunk's decays", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  test::random_source from(404);
  const auto near = [](Real x, wide exact, index_t factors) {
    const wide u = std::numeric_limits<Real>::epsilon() / 2,
               steps = static_cast<wide>(factors) * (std::numeric_limits<double>::epsilon() / 2);
    if (exact == 0) return x == 0;
    return std::fabs(wide(x) - exact) <= (u + steps) * exact + std::numeric_limits<Real>::denorm_min();
  };
  for (index_t n = 1; n <= 70; n += n < 36 ? 1 : 7)
    for (const bool with_zeros : {false, true}) {
      INFO("n=" << n << (with_zeros ? ", with zeros" : ""));
      const verbs<Kernel, Real> run{{from.below(5), from.below(3)}};
      const auto up = decays(from, n, with_zeros), down = decays(from, n, with_zeros);
      for (int present = 0; present < 4; ++present) {
        const auto* const above = present & 1 ? &up : nullptr;
        const auto* const below = present & 2 ? &down : nullptr;
        const auto M = run.scan_square(n, above, below);
        bool right = true;
        for (index_t a = 0; a < n; ++a) {
          right = right && M(a, a) == 0;
          wide product = above != nullptr;
          for (index_t b = a + 1; b < n; ++b) right = right && near(M(a, b), above == nullptr ? 0 : product *= up(0, b), n);
          product = below != nullptr;
          for (index_t b = a - 1; b >= 0; --b) right = right && near(M(a, b), below == nullptr ? 0 : product *= down(0, b + 1), n);
        }
        CHECK(right);
      }
    }
}

TEMPLATE_TEST_CASE("the square of a chunk's decays does not look at the gaps before its first and after its last token", "",
                   ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  test::random_source from(407);
  for (const index_t n : {1, 2, 7, 8, 9, 16, 33}) {
    const verbs<Kernel, Real> run{{from.below(5), from.below(3)}};
    auto up = decays(from, n, false), down = decays(from, n, false);
    const auto M = run.scan_square(n, &up, &down);
    up.x.front() = up.x.back() = down.x.front() = down.x.back() = std::numeric_limits<double>::quiet_NaN();
    INFO("n=" << n);
    CHECK(same_bits(run.scan_square(n, &up, &down), M));
  }
}

TEMPLATE_TEST_CASE("exponentials of log decays: one for zero, nothing for minus infinity", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  test::random_source from(405);
  constexpr double infinity = std::numeric_limits<double>::infinity(), u = std::numeric_limits<double>::epsilon() / 2;
  for (index_t n = 0; n <= 40; ++n) {
    const verbs<Kernel, double> run{{from.below(5), 0}};
    plain<double> x(1, n);
    for (double& log : x.x) {
      constexpr double special[] = {-infinity, 0, -0.0, -1e-300, -1e-17, -708, -709, -745, -746, -1e5, -1e300};
      const auto which = from.below(24);
      log = which < 11 ? special[which] : from.uniform(which < 16 ? -708 : -3, 0);
    }
    const auto found = run.exponentials(x);
    for (index_t t = 0; t < n; ++t) {
      INFO("exp(" << x(0, t) << ") in " << t << " of " << n);
      const wide exact = std::exp(wide(x(0, t)));
      if (x(0, t) == -infinity || x(0, t) == 0)
        CHECK(found(0, t) == (x(0, t) == 0 ? 1 : 0));
      else if (x(0, t) >= -708)  // two roundings, as the oracle allows
        CHECK(std::fabs(wide(found(0, t)) - exact) <= 2 * wide(u) * exact);
      else  // below the normal numbers, or nearly
        CHECK((found(0, t) >= 0 && wide(found(0, t)) <= (1 + 2 * wide(u)) * exact + std::numeric_limits<double>::denorm_min()));
      CHECK(found(0, t) <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("an exponential has the same bits anywhere, beside any others", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  test::random_source from(406);
  plain<double> logs(1, 300);
  for (double& x : logs.x) x = from.uniform(-30, 0);
  const auto all = verbs<Kernel, double>{}.exponentials(logs);
  for (int n = 0; n < 200; ++n) {
    const index_t first = from.below(logs.columns), count = 1 + from.below(std::min<index_t>(20, logs.columns - first));
    plain<double> some(1, count), expected(1, count);
    std::copy_n(logs.x.data() + first, count, some.x.data());
    std::copy_n(all.x.data() + first, count, expected.x.data());
    INFO(count << " from " << first);
    CHECK(same_bits(verbs<Kernel, double>{{from.below(17), 0}}.exponentials(some), expected));
  }
}

TEMPLATE_TEST_CASE("tokens in one call are tokens one by one, in either order", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  using matrix = plain<Real>;
  test::random_source from(405);
  const verbs<Kernel, Real> run{};
  for (const index_t n : {1, 2, 3, 4, 7, 12})
    for (const auto& [Dk, Dv] : {std::pair<index_t, index_t>{5, 3}, {16, 64}, {9, 71}, {33, 130}})
      for (const bool backwards : {false, true}) {
        const auto q = random<Real>(from, n, Dk), k = random<Real>(from, n, Dk), v = random<Real>(from, n, Dv),
                   N = random<Real>(from, n, Dv), z = random<Real>(from, 1, n), r = random<Real>(from, 1, n),
                   w = random<Real>(from, 1, n);
        auto g = random<Real>(from, 1, n);
        for (Real& x : g.x) x = x > Real(-0.3) ? Real(1) : Real(0.4);  // most tokens settle nothing
        const auto row_of = [&](const matrix& x, index_t i) {
          matrix row(1, x.columns);
          for (index_t d = 0; d < x.columns; ++d) row(0, d) = x(backwards ? n - 1 - i : i, d);
          return row;
        };
        const auto number = [](const matrix& x, index_t i) {
          matrix one(1, 1);
          one(0, 0) = x(0, i);
          return one;
        };
        matrix S = random<Real>(from, Dk, Dv), s = random<Real>(from, 1, Dk);
        const auto together = run.steps(N, z, r, q, S, s, g, w, k, v, true, backwards);
        CHECK(same_bits(run.steps(N, z, r, q, S, s, g, w, k, v, false, backwards).S, together.S));
        for (index_t i = 0; i < n; ++i) {
          const auto one = run.steps(row_of(N, i), number(z, i), number(r, i), row_of(q, i), S, s, number(g, i), number(w, i),
                                     row_of(k, i), row_of(v, i));
          CHECK((same_bits(one.n, row_of(together.n, i)) && same_bits(one.z, number(together.z, i))));
          S = one.S, s = one.s;
        }
        CHECK((same_bits(S, together.S) && same_bits(s, together.s)));
      }
}

TEMPLATE_TEST_CASE("row sums add the keys one by one, whatever the tiles", "", (on<bila::kernel::eigen, float>),
                   (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  test::random_source from(405);
  const index_t m = 71, n = 41, Dk = 13;
  const auto k = random<Real>(from, n, Dk), qt = random<Real>(from, Dk, m), M = random<Real>(from, n, m),
             z = random<Real>(from, 1, m);
  const auto rest = [](const plain<Real>& x, index_t first) {
    plain<Real> result(x.rows - first, x.columns);
    for (index_t j = first; j < x.rows; ++j)
      for (index_t i = 0; i < x.columns; ++i) result(j - first, i) = x(j, i);
    return result;
  };
  const verbs<Kernel, Real> run{};
  const auto at_once = run.score(k, qt, M, &z);
  for (const index_t split : {1, 5, 6, 8, 17, 40}) {
    const auto first = run.score(k.part(split, Dk), qt, M.part(split, m), &z);
    const auto second = run.score(rest(k, split), qt, rest(M, split), &first.z);
    CHECK(same_bits(second.z, at_once.z));
  }
}

TEMPLATE_TEST_CASE("an element has the same bits at any address, beside any other rows and columns", "", ALL_LAYERS) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  test::random_source from(402);
  const shape s{71, 37, 21, 71};  // wider than four packets of 16 numbers
  const auto q = random<Real>(from, s.m, s.Dk), k = random<Real>(from, s.n, s.Dk), v = random<Real>(from, s.n, s.Dv);
  const auto N = random<Real>(from, s.m, s.Dv), S = random<Real>(from, s.Dk, s.Dv), A = random<Real>(from, s.n, s.m),
             M = random<Real>(from, s.n, s.m), E = random<Real>(from, s.n, s.n);
  const auto z = random<Real>(from, 1, s.m), r = random<Real>(from, 1, s.m), c = random<Real>(from, 1, s.n),
             sums = random<Real>(from, 1, s.Dk), out = random<Real>(from, 1, s.m), b = random<Real>(from, 1, s.m);
  const auto by_query = random<double>(from, 1, s.m), by_key = random<double>(from, 1, s.n), gaps = random<double>(from, 1, s.n);
  const auto up = decays(from, s.n, false), down = decays(from, s.n, false);
  const auto qt = transposed(q), dyt = transposed(N);
  const Real g = Real(0.7), w = Real(1.3);
  const verbs<Kernel, Real> here{};

  const auto dense = here.score(k, qt, M, &z), ranked = here.score(k, qt, {c, r}, &z);
  const auto products = here.apply(N, A, v), states_read = here.read(r, q, S, {&out, &A, &v, &N}),
             states_only = here.read(r, q, S, {});
  const auto projected = here.project(z, r, q, sums), projected_t = here.project_transposed(z, r, qt, sums);
  const auto state = here.accumulate(g, S, &sums, k, &c, v), of_ones = here.accumulate(g, S, &sums, k, nullptr, v);
  const auto stepped =
      here.step(N.part(1, s.Dv), z.part(1, 1), w, q.part(1, s.Dk), S, sums, g, w, k.part(1, s.Dk), v.part(1, s.Dv));
  const auto own = here.diagonal(N.part(1, s.Dv), z.part(1, 1), w, q.part(1, s.Dk), k.part(1, s.Dk), v.part(1, s.Dv));
  const auto scaled = here.scale(N, out), quotients = here.divide(N.part(1, s.Dv), w, g);
  const auto square = here.scan_square(s.n, &up, &down);
  const auto adjoint = here.score_gradient(A, v, dyt, r, b, M), adjoint_ranked = here.score_gradient(A, v, dyt, r, b, {c, r});
  const auto back = here.multiply(v, A, N), added = here.add(A, M);
  const auto gathered = here.gather(g, sums, k, &c), gathered_ones = here.gather(g, sums, k, nullptr);
  const auto row_dots = here.dots(N, N);
  const double all_dots = here.inner(N, N);
  const auto totals = here.sums(by_query, by_key, A);
  const auto crossed = here.crossings(&gaps, &gaps, E);

  for (int n = 0; n < 60; ++n) {
    const verbs<Kernel, Real> there{{from.below(17), from.below(4)}};
    const index_t m = 1 + from.below(s.m), keys = 1 + from.below(s.n), Dv = 1 + from.below(s.Dv), Dk = 1 + from.below(s.Dk);
    INFO("offset " << there.where.offset << ", apart " << there.where.apart << ", " << words({m, keys, Dk, Dv}));
    const auto z_m = z.part(1, m), r_m = r.part(1, m), out_m = out.part(1, m), b_m = b.part(1, m), s_k = sums.part(1, Dk);
    const auto A_m = A.part(s.n, m), v_d = v.part(s.n, Dv), N_md = N.part(m, Dv), q_m = q.part(m, s.Dk), S_d = S.part(s.Dk, Dv),
               k_k = k.part(s.n, Dk), qt_m = qt.part(s.Dk, m);

    // z sums over the keys, so it sees all of them.
    const auto d = there.score(k, qt_m, M.part(s.n, m), &z_m);
    CHECK((same_bits(d.A, dense.A.part(s.n, m)) && same_bits(d.z, dense.z.part(1, m))));
    CHECK(same_bits(there.score(k.part(keys, s.Dk), qt_m, M.part(keys, m), nullptr).A, dense.A.part(keys, m)));
    const auto o = there.score(k, qt_m, {c, r_m}, &z_m);
    CHECK((same_bits(o.A, ranked.A.part(s.n, m)) && same_bits(o.z, ranked.z.part(1, m))));
    CHECK(same_bits(there.score(k.part(keys, s.Dk), qt_m, {c.part(1, keys), r_m}, nullptr).A, ranked.A.part(keys, m)));

    CHECK(same_bits(there.apply(N_md, A_m, v_d), products.part(m, Dv)));
    CHECK(same_bits(there.read(r_m, q_m, S_d, {&out_m, &A_m, &v_d, &N_md}), states_read.part(m, Dv)));
    CHECK(same_bits(there.read(r_m, q_m, S_d, {&out_m, &A_m, &v_d, &N_md}, true), states_read.part(m, Dv)));
    CHECK(same_bits(there.read(r_m, q_m, S_d, {}), states_only.part(m, Dv)));
    CHECK(same_bits(there.project(z_m, r_m, q_m, sums), projected.part(1, m)));
    CHECK(same_bits(there.project_transposed(z_m, r_m, qt_m, sums), projected_t.part(1, m)));

    for (const bool in_place : {false, true}) {
      const auto ac = there.accumulate(g, S.part(Dk, Dv), &s_k, k_k, &c, v_d, in_place);
      CHECK((same_bits(ac.S, state.S.part(Dk, Dv)) && same_bits(ac.s, state.s.part(1, Dk))));
      const auto ones = there.accumulate(g, S.part(Dk, Dv), &s_k, k_k, nullptr, v_d, in_place);
      CHECK((same_bits(ones.S, of_ones.S.part(Dk, Dv)) && same_bits(ones.s, of_ones.s.part(1, Dk))));
      CHECK(same_bits(there.accumulate(g, S.part(Dk, Dv), nullptr, k_k, &c, v_d, in_place).S, state.S.part(Dk, Dv)));
      CHECK(same_bits(there.gather(g, s_k, k_k, &c, in_place), gathered.part(1, Dk)));
      CHECK(same_bits(there.gather(g, s_k, k_k, nullptr, in_place), gathered_ones.part(1, Dk)));
    }

    const auto st = there.step(N.part(1, Dv), z.part(1, 1), w, q.part(1, s.Dk), S_d, sums, g, w, k.part(1, s.Dk), v.part(1, Dv));
    CHECK((same_bits(st.n, stepped.n.part(1, Dv)) && same_bits(st.z, stepped.z) && same_bits(st.S, stepped.S.part(s.Dk, Dv)) &&
           same_bits(st.s, stepped.s)));
    const auto di = there.diagonal(N.part(1, Dv), z.part(1, 1), w, q.part(1, s.Dk), k.part(1, s.Dk), v.part(1, Dv));
    CHECK((same_bits(di.first, own.first.part(1, Dv)) && same_bits(di.second, own.second)));
    CHECK(same_bits(there.scale(N_md, out_m), scaled.part(m, Dv)));
    CHECK(same_bits(there.divide(N.part(1, Dv), w, g), quotients.part(1, Dv)));

    const auto up_n = up.part(1, keys + 1), down_n = down.part(1, keys + 1);
    CHECK(same_bits(there.scan_square(keys, &up_n, &down_n), square.part(keys, keys)));

    const auto same_gradients = [&](const auto& found, const auto& all) {
      return same_bits(found.G, all.G.part(keys, m)) && same_bits(found.E, all.E.part(keys, m)) &&
             same_bits(found.A, all.A.part(keys, m));
    };
    const auto v_n = v.part(keys, s.Dv), A_nm = A.part(keys, m), dyt_m = dyt.part(s.Dv, m);
    CHECK(same_gradients(there.score_gradient(A_nm, v_n, dyt_m, r_m, b_m, M.part(keys, m)), adjoint));
    CHECK(same_gradients(there.score_gradient(A_nm, v_n, dyt_m, r_m, b_m, {c.part(1, keys), r_m}), adjoint_ranked));
    CHECK(same_bits(there.multiply(v.part(keys, Dv), A.part(keys, s.m), N.part(s.m, Dv)), back.part(keys, Dv)));
    CHECK(same_bits(there.add(A_nm, M.part(keys, m)), added.part(keys, m)));

    CHECK(same_bits(there.dots(N.part(m, s.Dv), N.part(m, s.Dv)), row_dots.part(1, m)));
    CHECK(there.inner(N, N) == all_dots);
    CHECK(same_bits(there.sums(by_query.part(1, m), by_key, A_m).queries, totals.queries.part(1, m)));
    CHECK(same_bits(there.sums(by_query, by_key.part(1, keys), A.part(keys, s.m)).keys, totals.keys.part(1, keys)));
    CHECK(there.sums(by_query, by_key, A).all == totals.all);
    const auto cr = there.crossings(&gaps, &gaps, E);
    CHECK((same_bits(cr.first, crossed.first) && same_bits(cr.second, crossed.second)));
  }
}

TEST_CASE("round_up") {
  CHECK(bila::kernel::round_up(0, 4) == 0);
  CHECK(bila::kernel::round_up(1, 4) == 4);
  CHECK(bila::kernel::round_up(4, 4) == 4);
  CHECK(bila::kernel::round_up(5, 4) == 8);
  CHECK(bila::kernel::round_up(5, 1) == 5);
}
