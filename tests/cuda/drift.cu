// SPDX-License-Identifier: Apache-2.0
// A sum does not drift, however long it is: row sums, y, passed states and gradients of equal tokens, whose exact values are
// geometric sums, to a million tokens. Equal terms round the same way each time, so errors add up where they can.
// `--table` prints the worst relative error of every case. Exits with 0 if all is right, 77 without a device.
#include <bila/cuda.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using bila::index_t;

struct tiles : bila::cuda::tuned {
  static constexpr int narrowest = 64, widest = 64;
};

constexpr index_t D = 4;

void must(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", doing, cudaGetErrorString(status));
  std::exit(1);
}

/// Device memory, all bits one beforehand: NaN, so what is not written shows.
template <class T>
class array {
 public:
  explicit array(index_t n) : size_(static_cast<std::size_t>(n)) {
    must(cudaMalloc(&data_, size_ * sizeof(T)), "cudaMalloc");
    must(cudaMemset(data_, 0xff, size_ * sizeof(T)), "cudaMemset");
  }
  explicit array(T x) : array(index_t{1}) { must(cudaMemcpy(data_, &x, sizeof x, cudaMemcpyHostToDevice), "cudaMemcpy"); }
  ~array() { cudaFree(data_); }
  array(const array&) = delete;
  array& operator=(const array&) = delete;

  T* data() const { return data_; }
  std::vector<float> fetch() const {
    std::vector<T> there(size_);
    must(cudaMemcpy(there.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return {there.begin(), there.end()};
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// Equal tokens: one number, read again and again.
template <class T>
bila::tensor_view<const T> equal(const array<T>& x, index_t L, index_t width) {
  return {x.data(), {1, 1, L, width}, {0, 0, 0, 0}};
}

/// sum of d^n over n < count, with d = e^log.
long double geometric(long double log, index_t count) {
  const auto n = static_cast<long double>(count);
  return log == 0 ? n : std::expm1(n * log) / std::expm1(log);
}

/// For every token: the sum of all weights that it gives, and of those of a state at it; for the gap before it, of all that cross
/// it.
struct expectation {
  std::vector<double> row, crossing;
  double state;

  expectation(double log, index_t L) : row(static_cast<std::size_t>(L)), crossing(row), state() {
    const long double d = std::exp(static_cast<long double>(log));
    std::vector<long double> sums(static_cast<std::size_t>(L) + 1);
    for (index_t n = 0; n <= L; ++n) sums[static_cast<std::size_t>(n)] = geometric(log, n);
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<double>(1 + d * (sums[i] + sums[row.size() - 1 - i]));
      crossing[i] = static_cast<double>(d * sums[i] * sums[row.size() - i]);
    }
    state = static_cast<double>(sums.back());
  }
};

/// The worst error, relative to the number or, if that is larger, to `size`; a NaN stays. `repeat`: how many numbers a token has.
double worst(const std::vector<float>& found, const std::vector<double>& exact, double factor, std::size_t repeat,
             double size = 0) {
  double result = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double right = factor * exact[i / repeat], scale = std::max(right, size);
    const double error = std::fabs(static_cast<double>(found[i]) - right) / (scale == 0 ? 1 : scale);
    if (!(error <= result)) result = error;
  }
  return result;
}

bool table = false;
int failures = 0;

void report(const char* type, const std::string& form, double log, index_t L, const char* what, double error, double limit) {
  const bool wrong = limit > 0 && !(error <= limit);
  failures += wrong;
  if (table || wrong)
    std::printf("%-6s %-22s log %-10.3g L %-8lld %-12s %.2e%s\n", type, form.c_str(), log, static_cast<long long>(L), what, error,
                wrong ? "  WRONG" : "");
}

/// q and k, v and the gradient by y: where T has 16 bits, such that all scores are exact in it.
template <class T>
struct numbers {
  const char* name;
  float x, v, dy;
  double of_T;  // the error that a number stored as T may have
};

constexpr double of_float = 1e-5;

template <class T, class Form, class Mask>
void check(const numbers<T>& n, const std::string& name, const Form& form, const Mask& mask, double log, index_t L,
           const expectation& exact, bool states) {
  const array<T> x(T(n.x)), v(T(n.v)), dy(T(n.dy));
  const bila::inputs<T> in{equal(x, L, D), equal(x, L, D), equal(v, L, D)};
  const array<T> y(L * D), dq(L * D), dk(L * D), dv(L * D);
  const array<float> row_sum(L), gaps(L), S(D * D), z(D), S_back(D * D), z_back(D);
  bila::outputs<T> out{bila::bhld(y.data(), 1, 1, L, D), bila::bhl(row_sum.data(), 1, 1, L)};
  if (states) {
    out.final_forward = {bila::bhld(S.data(), 1, 1, D, D), bila::bhld(z.data(), 1, 1, D, 1)};
    out.final_backward = {bila::bhld(S_back.data(), 1, 1, D, D), bila::bhld(z_back.data(), 1, 1, D, 1)};
  }
  const auto with_room = [](std::size_t bytes, const auto& call) {
    const array<unsigned char> room(static_cast<index_t>(bytes));
    call(bila::cuda::on{nullptr, {reinterpret_cast<std::byte*>(room.data()), bytes}});
    must(cudaDeviceSynchronize(), "a call");
  };
  const bila::norm::row_sum norm{0};
  with_room(bila::workspace_bytes<tiles>(bila::cuda::on{}, form, mask, norm, in, out),
            [&](const bila::cuda::on& at) { bila::attend<tiles>(at, form, mask, norm, in, out); });
  const auto show = [&](const char* what, double error, double limit) { report(n.name, name, log, L, what, error, limit); };
  // The full form rounds each weighted score to T, and weights of nearly one to one.
  const double of_sums = std::is_same_v<Form, bila::form::full> && log != 0 ? n.of_T : of_float;
  const double qk = D * double(n.x) * n.x, each = double(n.dy) * n.v * D;
  const std::vector<double> ones(exact.row.size(), 1), state{exact.state};
  show("row_sum", worst(row_sum.fetch(), exact.row, qk, 1), of_sums);
  show("y", worst(y.fetch(), ones, n.v, D), n.of_T);
  if (states) {
    show("S forward", worst(S.fetch(), state, double(n.x) * n.v, D * D), n.of_T);
    show("S backward", worst(S_back.fetch(), state, double(n.x) * n.v, D * D), n.of_T);
    show("z forward", worst(z.fetch(), state, n.x, D), of_sums);
    show("z backward", worst(z_back.fetch(), state, n.x, D), of_sums);
    return;
  }
  if (std::is_same_v<Form, bila::form::recurrent> && Mask::gaps != bila::gap::none) return;  // its gradient is the chunkwise one
  bila::gradients<T> to;
  to.q = bila::bhld(dq.data(), 1, 1, L, D), to.k = bila::bhld(dk.data(), 1, 1, L, D), to.v = bila::bhld(dv.data(), 1, 1, L, D);
  if (Mask::gaps != bila::gap::none) to.log_forward = bila::bhl(gaps.data(), 1, 1, L);
  const bila::saved<T> kept{out.y};
  const bila::output_gradients<T> slopes{equal(dy, L, D)};
  const bila::norm::none none;
  with_room(bila::gradient_workspace_bytes<tiles>(bila::cuda::on{}, form, mask, none, in, kept, slopes, to),
            [&](const bila::cuda::on& at) { bila::gradient<tiles>(at, form, mask, none, in, kept, slopes, to); });
  show("dq", worst(dq.fetch(), exact.row, each * n.x, D), n.of_T);
  show("dk", worst(dk.fetch(), exact.row, each * n.x, D), n.of_T);
  show("dv", worst(dv.fetch(), exact.row, qk * n.dy, D), n.of_T);
  if (Mask::gaps == bila::gap::none) return;
  // In the full form a gap's gradient is the difference of sums over the whole sequence.
  const double largest = each * qk * *std::max_element(exact.crossing.begin(), exact.crossing.end());
  show("gates", worst(gaps.fetch(), exact.crossing, each * qk, 1, std::is_same_v<Form, bila::form::full> ? largest : 0), n.of_T);
}

template <class T>
void check_all(const numbers<T>& n) {
  using namespace bila::form;
  for (const index_t L : {65536, 1000000}) {
    for (const double log : {-0x1p-28, -0x1p-24, -1.3e-5}) {
      const expectation exact(log, L);
      const array<double> gate(log);
      const bila::mask::selective_decay<double> mask{{gate.data(), {1, 1, L, 1}, {0, 0, 0, 0}}, bila::gate::later};
      if (L <= 65536) check(n, "full", full{}, mask, log, L, exact, false);
      for (const bool states : {false, true}) {
        check(n, "recurrent", recurrent{}, mask, log, L, exact, states);
        check(n, "chunkwise{128}", chunkwise{.size = 128}, mask, log, L, exact, states);
        check(n, "chunkwise{2^30}", chunkwise{.size = 1 << 30}, mask, log, L, exact, states);
      }
    }
    const expectation exact(0, L);
    const bila::mask::all_ones mask;
    if (L <= 65536) check(n, "full, ones", full{}, mask, 0, L, exact, false);
    check(n, "one state", recurrent{}, mask, 0, L, exact, false);
    check(n, "recurrent, ones", recurrent{}, mask, 0, L, exact, true);
    check(n, "chunkwise{}, ones", chunkwise{}, mask, 0, L, exact, true);
  }
}

}  // namespace

int main(int count, char** words) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  table = count > 1 && std::strcmp(words[1], "--table") == 0;
  check_all<float>({"float", 1.1f, 1.3f, 0.7f, of_float});
  check_all<bila::bf16>({"bf16", 1.125f, 1.25f, 0.75f, 0x1p-6});
  if (failures > 0) std::printf("%d sums drift\n", failures);
  return failures == 0 ? 0 : 1;
}
