// SPDX-License-Identifier: Apache-2.0
// Every kernel once, on small shapes, for compute-sanitizer: `compute-sanitizer --tool memcheck|racecheck|initcheck|synccheck`.
// Each tensor is an allocation of its own, so that memcheck sees who leaves it. Exits with 0 if y is right, 77 without a device.
#include <bila/cuda.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

/// One head size per type, so that nvcc compiles each kernel once; float's is one whose states come in pieces.
template <class T>
struct tiles : bila::cuda::tuned {
  static constexpr int narrowest = std::is_same_v<T, float> ? 128 : 32, widest = narrowest;
};

namespace {

using bila::index_t;

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", doing, cudaGetErrorString(status));
  std::exit(1);
}

/// Device memory of its own, and the same numbers on the host. Outputs are not written beforehand, so initcheck sees who reads
/// them.
template <class T>
class array {
 public:
  explicit array(index_t n) : host_(static_cast<std::size_t>(n)) {
    if (n > 0) check(cudaMalloc(&device_, host_.size() * sizeof(T)), "cudaMalloc");
  }
  array(index_t n, double low, double high) : array(n) {
    for (T& x : host_) x = T(static_cast<float>(low + (high - low) * next()));
    check(cudaMemcpy(device_, host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~array() { cudaFree(device_); }
  array(const array&) = delete;
  array& operator=(const array&) = delete;

  T* device() { return device_; }
  T& operator[](index_t n) { return host_[static_cast<std::size_t>(n)]; }
  void fetch() { check(cudaMemcpy(host_.data(), device_, host_.size() * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy"); }
  bool finite() {
    fetch();
    return std::all_of(host_.begin(), host_.end(), [](T x) { return std::isfinite(static_cast<double>(x)); });
  }

 private:
  static double next() {
    static std::uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state >> 40) * 0x1p-24;
  }
  std::vector<T> host_;
  T* device_ = nullptr;
};

int failures = 0;

void expect(bool good, const char* what, const std::string& where) {
  if (good) return;
  ++failures;
  std::printf("wrong: %s, %s\n", what, where.c_str());
}

struct shape {
  index_t B, H, shared, L, Dk, Dv;  // shared: heads of k
  index_t fill = 0;                 // numbers between rows of q, k, v
};

/// y of one row of one head, by the definition: two_sided gaps, both directions, diagonal 1, row_sum{0}.
template <class T>
double expected(array<T>& q, array<T>& k, array<T>& v, array<float>& f, array<float>& g, const shape& s, index_t b, index_t h,
                index_t i, index_t d, index_t first, index_t last) {
  const index_t wide_k = s.Dk + s.fill, wide_v = s.Dv + s.fill, hk = h / (s.H / s.shared);
  const auto row = [&](index_t heads, index_t head, index_t l) { return (b * heads + head) * s.L + l; };
  double N = 0, Z = 0;
  for (index_t j = first; j < last; ++j) {
    double log = 0, score = 0;
    for (index_t t = std::min(i, j) + 1; t <= std::max(i, j); ++t) log += static_cast<double>((j < i ? f : g)[row(s.H, h, t)]);
    for (index_t c = 0; c < s.Dk; ++c)
      score += static_cast<double>(q[row(s.H, h, i) * wide_k + c]) * static_cast<double>(k[row(s.shared, hk, j) * wide_k + c]);
    score *= std::exp(log);
    N += score * static_cast<double>(v[row(s.H, h, j) * wide_v + d]);
    Z += score;
  }
  return N / Z;
}

/// Forward and backward with everything that a call can take.
template <class T, class Form>
void step(const char* name, const Form& form, const shape& s, const std::vector<index_t>& offsets,
          const std::vector<index_t>& lengths) {
  constexpr bool carries = !std::is_same_v<Form, bila::form::full>;
  const bila::norm::row_sum norm;
  const auto [B, H, shared, L, Dk, Dv, fill] = s;
  const index_t wide_k = Dk + fill, wide_v = Dv + fill, n = offsets.empty() ? B : static_cast<index_t>(offsets.size()) - 1;
  array<T> q(B * H * L * wide_k, 0.2, 1), k(B * shared * L * wide_k, 0.2, 1), v(B * H * L * wide_v, -1, 1),
      dy(B * H * L * Dv, -1, 1);
  array<T> y(B * H * L * Dv), dq(B * H * L * Dk), dk(B * shared * L * Dk), dv(B * H * L * Dv);
  array<float> f(B * H * L, -1, 0), g(B * H * L, -1, 0), row_sum(B * H * L), df(B * H * L), dg(B * H * L);
  array<double> scale(1), diagonal(1);
  const auto rows = [&](array<T>& x, index_t heads, index_t D, index_t wide) {
    return bila::tensor_view<T>{x.device(), {B, heads, L, D}, {heads * L * wide, L * wide, wide, 1}};
  };
  const bila::mask::two_sided<float> mask{bila::bhl<const float>(f.device(), B, H, L), bila::bhl<const float>(g.device(), B, H, L)};
  bila::inputs<T> in{rows(q, H, Dk, wide_k), rows(k, shared, Dk, wide_k), rows(v, H, Dv, wide_v)};
  in.offsets = offsets, in.lengths = lengths;
  const bila::outputs<T> out{rows(y, H, Dv, Dv), bila::bhl(row_sum.device(), B, H, L)};
  const bila::saved<T> kept{out.y, out.row_sum};
  const bila::output_gradients<T> given{rows(dy, H, Dv, Dv)};
  const bila::gradients<T> to{rows(dq, H, Dk, Dk),
                              rows(dk, shared, Dk, Dk),
                              rows(dv, H, Dv, Dv),
                              {},
                              bila::bhl(df.device(), B, H, L),
                              bila::bhl(dg.device(), B, H, L),
                              scale.device(),
                              diagonal.device()};

  const std::string where = std::string(name) + ", L = " + std::to_string(L) + ", Dk = " + std::to_string(Dk) + ", " +
                            std::to_string(sizeof(T)) + " bytes";
  const auto workspace = [](std::size_t bytes) { return array<std::byte>(static_cast<index_t>(bytes)); };
  {
    const std::size_t bytes = bila::workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, norm, in, out);
    array<std::byte> room = workspace(bytes);
    bila::attend<tiles<T>>(bila::cuda::on{nullptr, {room.device(), bytes}}, form, mask, norm, in, out);
    check(cudaDeviceSynchronize(), "attend");
  }
  {
    const std::size_t bytes = bila::gradient_workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, norm, in, kept, given, to);
    array<std::byte> room = workspace(bytes);
    bila::gradient<tiles<T>>(bila::cuda::on{nullptr, {room.device(), bytes}}, form, mask, norm, in, kept, given, to);
    check(cudaDeviceSynchronize(), "gradient");
  }

  y.fetch();
  double worst = 0;
  for (index_t b = 0; b < B; ++b)
    for (index_t h = 0; h < H; ++h)
      for (index_t i = 0; i < L; i += 1 + L / 7) {
        index_t first = 0, last = lengths.empty() ? L : lengths[static_cast<std::size_t>(b)];
        for (std::size_t m = 1; m < offsets.size(); ++m)
          if (offsets[m - 1] <= i && i < offsets[m]) first = offsets[m - 1], last = offsets[m];
        const index_t d = i % Dv;
        const double found = static_cast<double>(y[((b * H + h) * L + i) * Dv + d]);
        const double wanted = i < last ? expected(q, k, v, f, g, s, b, h, i, d, first, last) : 0;
        worst = std::isnan(found) ? INFINITY : std::fmax(worst, std::fabs(found - wanted));
      }
  expect(worst <= (sizeof(T) == 4 ? 1e-5 : 0.04), "y", where);
  for (array<T>* const x : {&dq, &dk, &dv}) expect(x->finite(), "a gradient", where);
  for (array<float>* const x : {&df, &dg}) expect(x->finite(), "a gap's gradient", where);
  expect(scale.finite() && diagonal.finite(), "a number's gradient", where);

  if constexpr (carries) {
    array<float> S(2 * n * H * Dk * Dv, -1, 1), z(2 * n * H * Dk, 0.2, 1), log(2 * n * H, -1, 0), dS(2 * n * H * Dk * Dv, -1, 1),
        dz(2 * n * H * Dk, -1, 1), end_S(2 * n * H * Dk * Dv), end_z(2 * n * H * Dk), to_S(2 * n * H * Dk * Dv),
        to_z(2 * n * H * Dk), to_log(2 * n * H);
    const auto state = [&](array<float>& of_S, array<float>& of_z, array<float>* of_log, index_t way) {
      return bila::state<float>{
          bila::bhld(of_S.device() + way * n * H * Dk * Dv, n, H, Dk, Dv),
          bila::bhld(of_z.device() + way * n * H * Dk, n, H, Dk, 1),
          of_log == nullptr ? bila::tensor_view<float>{} : bila::bhld(of_log->device() + way * n * H, n, H, 1, 1)};
    };
    auto with = in;
    with.initial_forward = state(S, z, &log, 0), with.initial_backward = state(S, z, &log, 1);
    auto ends = out;
    ends.final_forward = state(end_S, end_z, nullptr, 0), ends.final_backward = state(end_S, end_z, nullptr, 1);
    auto loss = given;
    loss.final_forward = state(dS, dz, nullptr, 0), loss.final_backward = state(dS, dz, nullptr, 1);
    auto all = to;
    all.initial_forward = state(to_S, to_z, &to_log, 0), all.initial_backward = state(to_S, to_z, &to_log, 1);
    {
      const std::size_t bytes = bila::workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, norm, with, ends);
      array<std::byte> room = workspace(bytes);
      bila::attend<tiles<T>>(bila::cuda::on{nullptr, {room.device(), bytes}}, form, mask, norm, with, ends);
      check(cudaDeviceSynchronize(), "attend with states");
    }
    {
      const std::size_t bytes = bila::gradient_workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, norm, with, kept, loss, all);
      array<std::byte> room = workspace(bytes);
      bila::gradient<tiles<T>>(bila::cuda::on{nullptr, {room.device(), bytes}}, form, mask, norm, with, kept, loss, all);
      check(cudaDeviceSynchronize(), "gradient with states");
    }
    for (array<float>* const x : {&end_S, &end_z, &to_S, &to_z, &to_log}) expect(x->finite(), "a state", where);
  }
}

/// The one global state, and a mask with a number per head.
template <class T>
void other_masks() {
  const index_t B = 2, H = 2, L = 140, D = 16;
  array<T> q(B * H * L * D, 0.2, 1), k(B * H * L * D, 0.2, 1), v(B * H * L * D, -1, 1), y(B * H * L * D), dq(B * H * L * D);
  array<float> gate(H, -1, 0), dgate(H), row_sum(B * H * L);
  const auto view = [&](array<T>& x) { return bila::bhld(x.device(), B, H, L, D); };
  const bila::inputs<T> in{view(q), view(k), view(v)};
  const bila::outputs<T> out{view(y), bila::bhl(row_sum.device(), B, H, L)};
  const bila::saved<T> kept{out.y, out.row_sum};
  const bila::norm::row_sum norm;
  const auto run = [&](const auto& mask, bila::gradients<T> to, const char* name) {
    const bila::form::chunkwise form;
    const std::size_t bytes =
        std::max(bila::workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, norm, in, out),
                 bila::gradient_workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, norm, in, kept, {view(v)}, to));
    array<std::byte> room(static_cast<index_t>(bytes));
    const bila::cuda::on here{nullptr, {room.device(), bytes}};
    bila::attend<tiles<T>>(here, form, mask, norm, in, out);
    bila::gradient<tiles<T>>(here, form, mask, norm, in, kept, bila::output_gradients<T>{view(v)}, to);
    check(cudaDeviceSynchronize(), name);
    expect(y.finite() && dq.finite(), "an output or a gradient", name);
  };
  bila::gradients<T> to;
  to.q = view(dq);
  run(bila::mask::all_ones{}, to, "all_ones");
  to.log_decay = bila::vec(dgate.device(), H);
  run(bila::mask::fixed_decay<float>{bila::vec<const float>(gate.device(), H)}, to, "fixed_decay");
  expect(dgate.finite(), "a head's gate", "fixed_decay");
}

/// y += result is the result, rounded, added and rounded; padding stays as it is.
template <class T>
void adds() {
  const index_t B = 2, H = 2, L = 300, D = 16;
  const std::vector<index_t> lengths{L, 70};
  array<T> q(B * H * L * D, 0.2, 1), k(B * H * L * D, 0.2, 1), v(B * H * L * D, -1, 1), y(B * H * L * D), sum(B * H * L * D, -1, 1);
  array<float> gate(H, -1, 0);
  const auto view = [&](array<T>& x) { return bila::blhd(x.device(), B, L, H, D); };
  bila::inputs<T> in{view(q), view(k), view(v)};
  in.lengths = lengths;
  const bila::mask::fixed_decay<float> mask{bila::vec<const float>(gate.device(), H)};
  sum.fetch();
  const auto before = [&] {
    std::vector<double> x;
    for (index_t n = 0; n < B * H * L * D; ++n) x.push_back(static_cast<double>(sum[n]));
    return x;
  }();
  const auto run = [&](const auto& form, bool add) {
    bila::outputs<T> out{view(add ? sum : y)};
    out.add = add;
    const std::size_t bytes = bila::workspace_bytes<tiles<T>>(bila::cuda::on{}, form, mask, bila::norm::none{}, in, out);
    array<std::byte> room(static_cast<index_t>(bytes));
    bila::attend<tiles<T>>(bila::cuda::on{nullptr, {room.device(), bytes}}, form, mask, bila::norm::none{}, in, out);
    check(cudaDeviceSynchronize(), "outputs.add");
  };
  const bila::form::chunkwise form{.size = 128};
  run(form, false);
  run(form, true);
  y.fetch();
  sum.fetch();
  bool right = true;
  for (index_t n = 0; n < B * H * L * D; ++n) {
    const bool padding = n / (H * D) % L >= lengths[static_cast<std::size_t>(n / (H * L * D))];
    const float x = static_cast<float>(before[static_cast<std::size_t>(n)]) + static_cast<float>(y[n]);
    const T wanted = padding ? T(static_cast<float>(before[static_cast<std::size_t>(n)])) : T(x);
    right = right && static_cast<double>(sum[n]) == static_cast<double>(wanted);
  }
  expect(right, "y", "outputs.add");
}

template <class T>
void all_forms(const shape& s, const std::vector<index_t>& offsets, const std::vector<index_t>& lengths) {
  step<T>("full", bila::form::full{}, s, offsets, lengths);
  step<T>("recurrent", bila::form::recurrent{}, s, offsets, lengths);
  step<T>("chunkwise", bila::form::chunkwise{.size = 128}, s, offsets, lengths);
}

}  // namespace

int main() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    std::printf("skipped: no CUDA device: %s\n", status == cudaSuccess ? "none was found" : cudaGetErrorString(status));
    return 77;
  }
  all_forms<bila::bf16>({1, 2, 1, 150, 24, 32}, {}, {});
  all_forms<bila::bf16>({1, 2, 2, 150, 17, 5, 3}, {0, 1, 1, 130, 150}, {});
  all_forms<float>({2, 2, 1, 133, 24, 32}, {}, {133, 0});
  all_forms<float>({1, 1, 1, 20, 5, 7, 3}, {0, 3, 20}, {});
  other_masks<bila::f16>();
  adds<float>();
  adds<bila::bf16>();
  if (failures == 0) std::puts("all right");
  return failures == 0 ? 0 : 1;
}
