// SPDX-License-Identifier: Apache-2.0
// bila_bench_cuda: how near the memory's limit the CUDA backend runs. One line per case, mask and form, in times of the floor: the
// bytes that any implementation must move over the copy bandwidth of the same run. Each is held against the definition before it is
// timed; a wrong one is not timed, and the exit status is 1.
#include "../result_file.hpp"
#include "definition.hpp"
#include "timing.hpp"

#include <bila/cuda.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#ifndef BILA_BENCH_FLAGS
#define BILA_BENCH_FLAGS "unknown"
#endif

namespace {

using bench::device_array, bench::head, bench::row;
using bila::index_t, bila::bf16;
using bila::form::automatic, bila::form::chunkwise, bila::form::full, bila::form::recurrent;

constexpr index_t D = 64;
constexpr double eps = 1e-6;

/// The tiles of the library, for the one head size there is here.
struct tiles : bila::cuda::tuned {
  static constexpr int narrowest = D, widest = D;
};

// Forward differs from the definition by its own rounding to bf16 (1.7e-3) and a little more; the gradient subtracts what nearly
// cancels.
constexpr double forward_tolerance = 6e-3, gradient_tolerance = 2.5e-2, gate_tolerance = 5e-2;

/// A batch as models have it, and the times of the floor that are wanted of a mask with decay, forward and with the gradient.
struct shape {
  const char* name;
  index_t B, H, L;
  double goal, goal_both;

  index_t tokens() const { return B * H * L; }
  double floor_bytes() const { return 4.0 * static_cast<double>(tokens() * D) * sizeof(bf16); }  // q, k, v in; y out
  double floor_bytes_both() const {
    return 11.0 * static_cast<double>(tokens() * D) * sizeof(bf16);
  }  // and q, k, v, dy; dq, dk, dv
};

constexpr shape shapes[] = {
    {"ViT-S 224", 256, 6, 197, 4, 8}, {"BERT-L 512", 32, 16, 512, 4, 8}, {"2k", 16, 16, 2048, 4, 8},
    {"8k", 4, 16, 8192, 4.5, 8},      {"32k", 1, 16, 32768, 4.5, 8},     {"131k", 1, 16, 131072, 4.5, 8},
};
constexpr double all_ones_goal = 2;

struct options {
  std::string out, only_case, only_mask, only_form, commit;
  int repetitions = 21;
  bool quick = false, blhd = false, without_gates = false;
};

/// Operations of the matrix products of one head, a multiply-add being two: those the form cannot do without.
struct operations {
  double forward, both;
};

operations full_flop(double L) { return {4 * L * L * D, 14 * L * L * D}; }

/// Panels of 64 tokens in full, two states carried on by them and two read.
operations chunk_flop(index_t L) {
  const double squares = static_cast<double>(L) * 64, states = static_cast<double>(L) * D * D;
  return {4 * squares * D + 8 * states, 14 * squares * D + 28 * states};
}

template <class Form, class Mask>
operations flop_of(const Form&, const Mask&, index_t L) {
  const double states = static_cast<double>(L) * D * D;
  if constexpr (std::is_same_v<Form, full>)
    return full_flop(static_cast<double>(L));
  else if constexpr (Mask::gaps == bila::gap::none)
    return {4 * states, 14 * states};  // one state, written and read once
  else if constexpr (std::is_same_v<Form, recurrent>)
    return {10 * states, 35 * states};
  else if constexpr (std::is_same_v<Form, chunkwise>)
    return chunk_flop(L);
  else {
    const operations dense = full_flop(static_cast<double>(L)), linear = chunk_flop(L);
    return dense.forward < linear.forward ? dense : linear;  // not necessarily what automatic took
  }
}

/// All tensors of one call.
struct tensors {
  device_array<bf16> q, k, v, y, dy, dq, dk, dv;
  device_array<float> row_sum, gates, d_gates, head_gates, d_head_gates;

  tensors(const shape& s, std::uint64_t seed) {
    const auto count = static_cast<std::size_t>(s.tokens()), heads = static_cast<std::size_t>(s.H);
    for (auto* x : {&q, &k, &v, &y, &dy, &dq, &dk, &dv}) *x = device_array<bf16>(count * D);
    for (auto* x : {&row_sum, &gates, &d_gates}) *x = device_array<float>(count);
    for (auto* x : {&head_gates, &d_head_gates}) *x = device_array<float>(heads);
    for (auto* x : {&q, &k}) fill(*x, ++seed, 0, 1);  // as feature maps give them: positive
    for (auto* x : {&v, &dy}) fill(*x, ++seed, -1, 1);
    bench::fill_gates<<<1024, 256>>>(gates.data(), count, heads, static_cast<std::size_t>(s.L), ++seed);
    bench::must(cudaGetLastError(), "fill_gates");
    std::vector<float> rates(heads);
    for (std::size_t h = 0; h < heads; ++h) rates[h] = -bench::decay_rate(h);
    bench::must(cudaMemcpy(head_gates.data(), rates.data(), heads * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    bench::must(cudaDeviceSynchronize(), "filling the tensors");
  }

  static void fill(const device_array<bf16>& x, std::uint64_t seed, float low, float high) {
    bench::fill_numbers<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(x.data()), x.size(), seed, low, high);
    bench::must(cudaGetLastError(), "fill_numbers");
  }

  void poison_outputs() const {
    for (const auto* x : {&y, &dq, &dk, &dv}) x->poison();
    for (const auto* x : {&row_sum, &d_gates, &d_head_gates}) x->poison();
  }
};

/// Views of one call's tensors, whichever way they lie in memory.
class call {
 public:
  call(const shape& s, const tensors& t, bool blhd) : s_(s), t_(t), blhd_(blhd) {}

  bila::tensor_view<bf16> view(const device_array<bf16>& x) const {
    return blhd_ ? bila::blhd(x.data(), s_.B, s_.L, s_.H, D) : bila::bhld(x.data(), s_.B, s_.H, s_.L, D);
  }
  bila::tensor_view<float> per_token(const device_array<float>& x) const { return bila::bhl(x.data(), s_.B, s_.H, s_.L); }
  bila::tensor_view<float> per_head(const device_array<float>& x) const { return bila::vec(x.data(), s_.H); }

  bila::inputs<bf16> inputs() const { return {view(t_.q), view(t_.k), view(t_.v)}; }
  bila::outputs<bf16> y_alone() const { return {view(t_.y)}; }
  bila::outputs<bf16> y_and_row_sum() const { return {view(t_.y), per_token(t_.row_sum)}; }
  bila::saved<bf16> saved() const { return {view(t_.y), per_token(t_.row_sum)}; }
  bila::output_gradients<bf16> dy() const { return {view(t_.dy)}; }
  bila::gradients<bf16> gradients(bila::tensor_view<float> log_decay) const {
    bila::gradients<bf16> to;
    to.q = view(t_.dq);
    to.k = view(t_.dk);
    to.v = view(t_.dv);
    to.log_decay = log_decay;
    return to;
  }
  const tensors& memory() const { return t_; }

  /// Head h of batch row b of a tensor of `width` numbers per token, on the host.
  template <class T>
  std::vector<float> read(const device_array<T>& x, index_t width, index_t b, index_t h) const {
    std::vector<T> raw(static_cast<std::size_t>(s_.L * width));
    const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(T);
    if (blhd_ && width == D)
      bench::must(cudaMemcpy2D(raw.data(), bytes, x.data() + (b * s_.L * s_.H + h) * width, bytes * static_cast<std::size_t>(s_.H),
                               bytes, static_cast<std::size_t>(s_.L), cudaMemcpyDeviceToHost),
                  "cudaMemcpy2D");
    else
      bench::must(cudaMemcpy(raw.data(), x.data() + (b * s_.H + h) * s_.L * width, raw.size() * sizeof(T), cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
    return {raw.begin(), raw.end()};
  }

 private:
  const shape& s_;
  const tensors& t_;
  bool blhd_;
};

// What is measured of each mask: the mask on a call's tensors, where its gradient goes, and the decay of gap t for the definition.

struct all_ones {
  static constexpr const char* name = "all_ones";
  static bila::mask::all_ones mask(const call&) { return {}; }
  static bila::tensor_view<float> gradient(const call&) { return {}; }
  static void decays(const call&, head& x, index_t, index_t) { x.forward.assign(static_cast<std::size_t>(x.L), 1); }
};

struct fixed_decay {
  static constexpr const char* name = "fixed_decay";
  static bila::mask::fixed_decay<float> mask(const call& c) { return {c.per_head(c.memory().head_gates)}; }
  static bila::tensor_view<float> gradient(const call& c) { return c.per_head(c.memory().d_head_gates); }
  static void decays(const call&, head& x, index_t, index_t h) {
    x.forward.assign(static_cast<std::size_t>(x.L), std::exp(-static_cast<double>(bench::decay_rate(static_cast<std::size_t>(h)))));
  }
};

struct selective_decay {
  static constexpr const char* name = "selective_decay";
  static bila::mask::selective_decay<float> mask(const call& c) { return {c.per_token(c.memory().gates), bila::gate::later}; }
  static bila::tensor_view<float> gradient(const call& c) { return c.per_token(c.memory().d_gates); }
  static void decays(const call& c, head& x, index_t b, index_t h) {
    for (const float a : c.read(c.memory().gates, 1, b, h)) x.forward.push_back(std::exp(static_cast<double>(a)));
  }
};

/// The number of entries of x that are NaN or infinite: an entry that was never written still holds the poison.
template <class T>
unsigned long long not_finite(const device_array<T>& x) {
  const device_array<unsigned long long> found(1);
  bench::must(cudaMemset(found.data(), 0, sizeof(unsigned long long)), "cudaMemset");
  if constexpr (sizeof(T) == 2)
    bench::count_not_finite<std::uint16_t>
        <<<1024, 256>>>(reinterpret_cast<const std::uint16_t*>(x.data()), x.size(), 0x7f80, found.data());
  else
    bench::count_not_finite<std::uint32_t>
        <<<1024, 256>>>(reinterpret_cast<const std::uint32_t*>(x.data()), x.size(), 0x7f800000, found.data());
  bench::must(cudaGetLastError(), "count_not_finite");
  unsigned long long count = 0;
  bench::must(cudaMemcpy(&count, found.data(), sizeof count, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return count;
}

/// The definition's answers for two heads of one case and mask, worked out once and compared with what every form wrote.
class expectation {
 public:
  struct errors {
    double y = 0, gradient = 0, gates = 0;
  };

  /// The call has been made by a form, which gives y and the row sum that the gradient starts from.
  template <class Kind>
  expectation(const shape& s, const call& c, const Kind&, bool with_gates) {
    const tensors& t = c.memory();
    for (const auto& [b, h] : {std::pair{index_t{0}, index_t{1}}, {s.B - 1, s.H / 2}}) {
      one_head x;
      x.b = b;
      x.h = h;
      x.data.L = s.L;
      x.data.D = D;
      x.data.eps = eps;
      for (const auto& [to, from] :
           {std::pair{&x.data.q, &t.q}, {&x.data.k, &t.k}, {&x.data.v, &t.v}, {&x.data.dy, &t.dy}, {&x.data.y, &t.y}})
        *to = c.read(*from, D, b, h);
      x.data.row_sum = c.read(t.row_sum, 1, b, h);
      Kind::decays(c, x.data, b, h);
      x.data.backward = x.data.forward;
      for (const index_t l : {index_t{0}, (s.L / 3 + 7 * h) % s.L, s.L - 1}) {
        x.tokens.push_back(l);
        const head::answer a = x.data.attend(l);
        x.y.push_back(a.y);
        x.Z.push_back(a.Z);
        x.dq.push_back(x.data.dq(l));
        x.dk.push_back(x.data.dk(l));
        x.dv.push_back(x.data.dv(l));
      }
      if constexpr (std::is_same_v<Kind, selective_decay>)
        if (s.L <= 512 && with_gates) x.gates = x.data.later_gates();
      heads_.push_back(std::move(x));
    }
  }

  errors compare(const call& c) const {
    const tensors& t = c.memory();
    errors worst;
    for (const one_head& x : heads_) {
      const std::vector<float> row_sum = c.read(t.row_sum, 1, x.b, x.h);
      bench::distance Z;
      for (std::size_t n = 0; n < x.tokens.size(); ++n)
        Z.add(static_cast<double>(row_sum[static_cast<std::size_t>(x.tokens[n])]), x.Z[n]);
      keep(worst.y, Z.value());
      keep(worst.y, rows_apart(c.read(t.y, D, x.b, x.h), x.tokens, x.y));
      keep(worst.gradient, rows_apart(c.read(t.dq, D, x.b, x.h), x.tokens, x.dq));
      keep(worst.gradient, rows_apart(c.read(t.dk, D, x.b, x.h), x.tokens, x.dk));
      keep(worst.gradient, rows_apart(c.read(t.dv, D, x.b, x.h), x.tokens, x.dv));
      if (!x.gates.empty()) {
        const std::vector<float> got = c.read(t.d_gates, 1, x.b, x.h);
        bench::distance apart;
        for (std::size_t l = 0; l < got.size(); ++l) apart.add(static_cast<double>(got[l]), x.gates[l]);
        keep(worst.gates, apart.value());
      }
    }
    return worst;
  }

 private:
  struct one_head {
    index_t b = 0, h = 0;
    head data;
    std::vector<index_t> tokens;
    std::vector<row> y, dq, dk, dv;
    std::vector<double> Z;
    row gates;
  };

  static void keep(double& worst, double error) {
    if (!(error <= worst)) worst = error;  // NaN stays
  }

  static double rows_apart(const std::vector<float>& got, const std::vector<index_t>& tokens, const std::vector<row>& wanted) {
    bench::distance apart;
    for (std::size_t n = 0; n < tokens.size(); ++n)
      for (std::size_t d = 0; d < D; ++d)
        apart.add(static_cast<double>(got[static_cast<std::size_t>(tokens[n]) * D + d]), wanted[n][d]);
    return apart.value();
  }

  std::vector<one_head> heads_;
};

struct result {
  const shape* s = nullptr;
  std::string mask, form, note;  // note: why there are no times
  bool wrong = false;
  double goal = 0, goal_both = 0;    // 0: none
  double floor = 0, floor_both = 0;  // ms
  bench::timing forward, both;
  operations flop{};  // of the whole call
  std::size_t workspace = 0, workspace_gradient = 0;
  expectation::errors error;

  bool timed() const { return both.ms > 0; }
  double times_floor() const { return forward.ms / floor; }
  double times_floor_both() const { return both.ms / floor_both; }
};

/// Everything about one case and mask: tensors, definition, workspace, and the call itself.
template <class Kind>
class subject {
 public:
  subject(const shape& s, const std::vector<tensors>& sets, const options& o, double bandwidth, cudaStream_t stream)
      : s_(s), options_(o), bandwidth_(bandwidth), stream_(stream) {
    for (const tensors& t : sets) calls_.emplace_back(s, t, o.blhd);
  }

  template <class Form>
  result measure(const std::string& name, const Form& form) {
    result r;
    r.s = &s_;
    r.mask = Kind::name;
    r.form = name;
    if (name == "automatic") {
      constexpr bool ones = std::is_same_v<Kind, all_ones>;
      r.goal = ones ? all_ones_goal : s_.goal;
      r.goal_both = ones ? 0 : s_.goal_both;
    }
    r.floor = 1e3 * s_.floor_bytes() / bandwidth_;
    r.floor_both = 1e3 * s_.floor_bytes_both() / bandwidth_;
    try {
      check(form, r);
      if (!r.wrong) time(form, r);
    } catch (const std::invalid_argument& refusal) {
      r.note = refusal.what();
      r.wrong = true;
    }
    return r;
  }

 private:
  bila::cuda::on backend() const { return {stream_, {workspace_.data(), workspace_.size()}}; }

  template <class Form>
  void forward(const Form& form, const call& c, bool keep_row_sum) const {
    bila::attend<tiles>(backend(), form, Kind::mask(c), norm, c.inputs(), keep_row_sum ? c.y_and_row_sum() : c.y_alone());
  }

  bila::tensor_view<float> gradient_of_gates(const call& c) const {
    return options_.without_gates ? bila::tensor_view<float>{} : Kind::gradient(c);
  }

  template <class Form>
  void gradient(const Form& form, const call& c) const {
    bila::gradient<tiles>(backend(), form, Kind::mask(c), norm, c.inputs(), c.saved(), c.dy(), c.gradients(gradient_of_gates(c)));
  }

  template <class Form>
  void check(const Form& form, result& r) {
    const call& c = calls_.front();
    const auto mask = Kind::mask(c);
    r.workspace = bila::workspace_bytes<tiles>(bila::cuda::on{}, form, mask, norm, c.inputs(), c.y_and_row_sum());
    r.workspace_gradient = bila::gradient_workspace_bytes<tiles>(bila::cuda::on{}, form, mask, norm, c.inputs(), c.saved(), c.dy(),
                                                                 c.gradients(gradient_of_gates(c)));
    const std::size_t bytes = std::max(r.workspace, r.workspace_gradient);
    if (workspace_.size() < bytes) {
      workspace_ = {};
      workspace_ = device_array<std::byte>(bytes);
    }
    c.memory().poison_outputs();
    workspace_.poison();
    forward(form, c, true);
    gradient(form, c);
    bench::must(cudaStreamSynchronize(stream_), "forward and gradient");

    if (!expected_) expected_.emplace(s_, c, Kind{}, !options_.without_gates);
    r.error = expected_->compare(c);
    const tensors& t = c.memory();
    unsigned long long holes = not_finite(t.y) + not_finite(t.dq) + not_finite(t.dk) + not_finite(t.dv) + not_finite(t.row_sum);
    if (std::is_same_v<Kind, fixed_decay> && !options_.without_gates) holes += not_finite(t.d_head_gates);
    if (std::is_same_v<Kind, selective_decay> && !options_.without_gates) holes += not_finite(t.d_gates);
    const auto exceeds = [](double error, double tolerance) { return !(error <= tolerance); };
    r.wrong = holes > 0 || exceeds(r.error.y, forward_tolerance) || exceeds(r.error.gradient, gradient_tolerance) ||
              exceeds(r.error.gates, gate_tolerance);
    if (!r.wrong) return;
    char words[160];
    std::snprintf(words, sizeof words,
                  "WRONG: y %.1e, dq dk dv %.1e, gates %.1e from the definition; %llu not written or not finite", r.error.y,
                  r.error.gradient, r.error.gates, holes);
    r.note = words;
  }

  template <class Form>
  void time(const Form& form, result& r) const {
    const auto at = [this](int n) -> const call& { return calls_[static_cast<std::size_t>(n) % calls_.size()]; };
    r.forward = bench::time_of(stream_, options_.repetitions, [&](int n) { forward(form, at(n), false); });
    r.both = bench::time_of(stream_, options_.repetitions, [&](int n) {
      forward(form, at(n), true);
      gradient(form, at(n));
    });
    r.flop = flop_of(form, Kind::mask(calls_.front()), s_.L);
    r.flop.forward *= static_cast<double>(s_.B * s_.H);
    r.flop.both *= static_cast<double>(s_.B * s_.H);
  }

  static constexpr bila::norm::row_sum norm{eps};
  const shape& s_;
  const options& options_;
  double bandwidth_;
  cudaStream_t stream_;
  std::vector<call> calls_;
  device_array<std::byte> workspace_;
  std::optional<expectation> expected_;
};

void print_header() {
  const auto pass = [](const char* name) { std::printf("%9s %6s %8s %7s %5s  ", name, "x", "ms back", "TFLOP", "GB"); };
  const auto units = [] { std::printf("%9s %6s %8s %7s %5s  ", "ms", "floor", "to back", "/s", "/s"); };
  std::printf("\n%-40s ", "");
  pass("forward");
  pass("+gradient");
  std::printf("%s\n%-10s %-15s %-13s ", "error of y,", "case", "mask", "form");
  units();
  units();
  std::printf("%s\n", "dq dk dv");
}

void print(const result& r) {
  std::printf("%-10s %-15s %-13s ", r.s->name, r.mask.c_str(), r.form.c_str());
  const auto pass = [](const bench::timing& t, double times, double flop, double bytes) {
    std::printf("%9.4f %6.2f %8.4f %7.1f %5.0f  ", t.ms, times, t.back_to_back, flop / t.ms / 1e9, bytes / t.ms / 1e6);
  };
  if (r.timed()) {
    pass(r.forward, r.times_floor(), r.flop.forward, r.s->floor_bytes());
    pass(r.both, r.times_floor_both(), r.flop.both, r.s->floor_bytes_both());
    std::printf("%.0e %.0e\n", r.error.y, r.error.gradient);
  } else {
    std::printf("%s\n", r.note.c_str());
  }
  std::fflush(stdout);
}

/// Per case and mask: automatic against its goal and against the fastest form.
void print_summary(const std::vector<result>& results) {
  std::printf("\n%-10s %-15s %9s %6s %6s %-14s   %9s %6s %6s %s\n", "automatic", "", "forward", "x", "goal", "fastest form",
              "+gradient", "x", "goal", "fastest form");
  for (const result& a : results) {
    if (a.form != "automatic" || !a.timed()) continue;
    const result *best = &a, *best_both = &a;
    for (const result& r : results)
      if (r.s == a.s && r.mask == a.mask && r.timed()) {
        if (r.forward.ms < best->forward.ms) best = &r;
        if (r.both.ms < best_both->both.ms) best_both = &r;
      }
    const auto pass = [](double ms, double times, double goal, const result& fastest, double least) {
      std::printf("%9.4f %6.2f ", ms, times);
      if (goal > 0)
        std::printf("%5.3g%c ", goal, times <= goal ? ' ' : '!');
      else
        std::printf("%6s ", "-");
      char words[48];
      std::snprintf(words, sizeof words, "%s %.2f", fastest.form.c_str(), ms / least);
      std::printf("%-19s", words);
    };
    std::printf("%-10s %-15s ", a.s->name, a.mask.c_str());
    pass(a.forward.ms, a.times_floor(), a.goal, *best, best->forward.ms);
    pass(a.both.ms, a.times_floor_both(), a.goal_both, *best_both, best_both->both.ms);
    std::printf("\n");
  }
  std::printf("!: above the goal. After the fastest form: automatic's time over it.\n");
}

std::string release(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

/// "NVRM version: ... 580.95.05 ..." where the kernel module shows it.
std::string driver_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  const auto digit = line.find_first_of("0123456789");
  for (auto start = digit; start != line.npos;) {
    const auto end = line.find(' ', start);
    const std::string word = line.substr(start, end == line.npos ? end : end - start);
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) return word;
    start = end == line.npos ? end : end + 1;
  }
  return "unknown";
}

struct machine {
  std::string device, driver, runtime, driver_cuda, capability;
  int processors = 0;
  double bandwidth = 0, bandwidth_after = 0;  // bytes per second

  machine() {
    cudaDeviceProp properties{};
    bench::must(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    int runtime_version = 0, driver_version = 0;
    bench::must(cudaRuntimeGetVersion(&runtime_version), "cudaRuntimeGetVersion");
    bench::must(cudaDriverGetVersion(&driver_version), "cudaDriverGetVersion");
    device = properties.name;
    processors = properties.multiProcessorCount;
    capability = std::to_string(properties.major) + "." + std::to_string(properties.minor);
    driver = driver_module();
    runtime = release(runtime_version);
    driver_cuda = release(driver_version);
  }
};

std::string compiler() {
  std::string words = "nvcc " + std::to_string(__CUDACC_VER_MAJOR__) + "." + std::to_string(__CUDACC_VER_MINOR__) + "." +
                      std::to_string(__CUDACC_VER_BUILD__);
#if defined(__GNUC__) && !defined(__clang__)
  words += std::string(", g++ ") + __VERSION__;
#endif
  return words;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

std::string json(const options& o, const machine& m, const std::vector<result>& results) {
  std::ostringstream out;
  out << "{\n  \"context\": {\"device\": " << quoted(m.device) << ", \"multiprocessors\": " << m.processors
      << ", \"compute_capability\": " << quoted(m.capability) << ", \"driver\": " << quoted(m.driver)
      << ", \"driver_cuda\": " << quoted(m.driver_cuda) << ", \"cuda\": " << quoted(m.runtime)
      << ",\n    \"compiler\": " << quoted(compiler()) << ", \"flags\": " << quoted(BILA_BENCH_FLAGS)
      << ", \"commit\": " << quoted(o.commit) << ",\n    \"type\": \"bf16\", \"norm\": \"row_sum{1e-6}\", \"layout\": \""
      << (o.blhd ? "[B, L, H, D]" : "[B, H, L, D]") << "\", \"gate_gradients\": " << (o.without_gates ? "false" : "true")
      << ", \"repetitions\": " << o.repetitions << ",\n    \"copy_bandwidth\": " << m.bandwidth
      << ", \"copy_bandwidth_after\": " << m.bandwidth_after << "},\n  \"times\": [";
  const char* separator = "\n";
  for (const result& r : results) {
    out << separator << "    {\"case\": " << quoted(r.s->name) << ", \"B\": " << r.s->B << ", \"H\": " << r.s->H
        << ", \"L\": " << r.s->L << ", \"D\": " << D << ", \"mask\": " << quoted(r.mask) << ", \"form\": " << quoted(r.form)
        << ", \"wrong\": " << (r.wrong ? "true" : "false") << ",\n     \"note\": " << quoted(r.note)
        << ", \"workspace_bytes\": " << r.workspace << ", \"gradient_workspace_bytes\": " << r.workspace_gradient;
    const auto number = [](double x) { return std::isfinite(x) ? std::to_string(x) : std::string("null"); };
    const auto exact = [](double x) {
      char text[32];
      std::snprintf(text, sizeof text, "%.3e", x);
      return std::isfinite(x) ? std::string(text) : std::string("null");
    };
    out << ", \"error_y\": " << exact(r.error.y) << ", \"error_gradient\": " << exact(r.error.gradient)
        << ", \"error_gates\": " << exact(r.error.gates);
    const auto pass = [&](const char* name, const bench::timing& t, double floor, double flop, double bytes, double goal) {
      out << ",\n     \"" << name << "\": {\"ms\": " << number(t.ms) << ", \"back_to_back_ms\": " << number(t.back_to_back)
          << ", \"host_ms\": " << number(t.host_ms) << ", \"floor_ms\": " << number(floor)
          << ", \"times_floor\": " << number(t.ms / floor) << ", \"tflops\": " << number(flop / t.ms / 1e9)
          << ", \"gbytes_per_second\": " << number(bytes / t.ms / 1e6) << ", \"goal\": " << (goal > 0 ? number(goal) : "null")
          << "}";
    };
    if (r.timed()) {
      pass("forward", r.forward, r.floor, r.flop.forward, r.s->floor_bytes(), r.goal);
      pass("forward_and_gradient", r.both, r.floor_both, r.flop.both, r.s->floor_bytes_both(), r.goal_both);
    }
    out << "}";
    separator = ",\n";
  }
  out << "\n  ]\n}\n";
  return out.str();
}

class bench_run {
 public:
  bench_run(const options& o, machine& m) : options_(o), machine_(m) {
    bench::must(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  ~bench_run() { cudaStreamDestroy(stream_); }
  bench_run(const bench_run&) = delete;

  void measure_bandwidth(double& bandwidth) const { bandwidth = bench::copy_bandwidth(stream_); }

  void measure(const shape& s) {
    std::vector<tensors> sets;
    // What the L2 holds of one set is overwritten by the next; the longest case overwrites it by itself.
    const std::uint64_t count = s.L > 100000 ? 1 : 3;
    for (std::uint64_t n = 0; n < count; ++n) sets.emplace_back(s, 100 * (n + 1));
    measure<all_ones>(s, sets);
    measure<fixed_decay>(s, sets);
    measure<selective_decay>(s, sets);
  }

  const std::vector<result>& results() const { return results_; }

 private:
  template <class Kind>
  void measure(const shape& s, const std::vector<tensors>& sets) {
    if (!options_.only_mask.empty() && options_.only_mask != Kind::name) return;
    subject<Kind> on(s, sets, options_, machine_.bandwidth, stream_);
    const auto form = [&](const std::string& name, const auto& value) {
      if (!options_.only_form.empty() && options_.only_form != name) return;
      results_.push_back(on.measure(name, value));
      print(results_.back());
    };
    form("automatic", automatic{});
    if (options_.quick) return;
    if (s.L <= 2048) form("full", full{});
    if constexpr (std::is_same_v<Kind, all_ones>) {
      form("chunkwise", chunkwise{});  // one state: nothing depends on the chunk, and steps come to the same
    } else {
      for (const index_t C : {512, 1024, 2048})
        if (C < 3 * s.L) form("chunkwise " + std::to_string(C), chunkwise{.size = C});
      if (s.L <= 512) form("recurrent", recurrent{});
    }
  }

  const options& options_;
  machine& machine_;
  cudaStream_t stream_ = nullptr;
  std::vector<result> results_;
};

[[noreturn]] void usage(const std::string& error) {
  std::fprintf(stderr,
               "%s\nbila_bench_cuda [--out FILE] [--case NAME] [--mask NAME] [--form NAME] [--repetitions N] [--quick]\n"
               "                [--without-gates] [--layout bhld|blhd] [--commit ID]\n"
               "  cases: ViT-S 224, BERT-L 512, 2k, 8k, 32k, 131k; masks: all_ones, fixed_decay, selective_decay\n"
               "  forms: automatic, full, chunkwise (all_ones), \"chunkwise 512\" (to 2048), recurrent\n"
               "  --quick: automatic alone, 7 repetitions; --without-gates: the gradient by q, k and v alone\n",
               error.c_str());
  std::exit(2);
}

options parse(int argc, char** argv) {
  options o;
  for (int n = 1; n < argc; ++n) {
    const std::string_view argument = argv[n];
    if (argument == "--quick") {
      o.quick = true;
      o.repetitions = std::min(o.repetitions, 7);
      continue;
    }
    if (argument == "--without-gates") {
      o.without_gates = true;
      continue;
    }
    if (n + 1 == argc) usage("unknown argument, or one without its value: " + std::string(argument));
    const std::string value = argv[++n];
    if (argument == "--out")
      o.out = value;
    else if (argument == "--case")
      o.only_case = value;
    else if (argument == "--mask")
      o.only_mask = value;
    else if (argument == "--form")
      o.only_form = value;
    else if (argument == "--commit")
      o.commit = value;
    else if (argument == "--repetitions")
      o.repetitions = std::atoi(value.c_str());
    else if (argument == "--layout" && (value == "bhld" || value == "blhd"))
      o.blhd = value == "blhd";
    else
      usage("unknown argument: " + std::string(argument) + " " + value);
  }
  if (o.repetitions < 1 || o.repetitions > 200) usage("--repetitions must be 1 to 200");
  const auto known = [&](const char* name) { return o.only_case == name; };
  if (!o.only_case.empty() && std::none_of(std::begin(shapes), std::end(shapes), [&](const shape& s) { return known(s.name); }))
    usage("no such case: " + o.only_case);
  return o;
}

int run(const options& o) {
  const bench::result_file file(o.out);
  machine m;
  bench_run all(o, m);
  all.measure_bandwidth(m.bandwidth);
  std::printf("%s, %d multiprocessors, CUDA %s, driver %s | %s | copy %.2f TB/s\n", m.device.c_str(), m.processors,
              m.runtime.c_str(), m.driver.c_str(), compiler().c_str(), m.bandwidth / 1e12);
  std::printf(
      "bf16, D = %d, row sums, %s; ms: median of %d calls, tensors in rotation; floor: q, k, v, y (and q, k, v, dy, dq, dk, dv)\n"
      "over the copy; the gradient is %s. Operations of the matrix products: full 4 L D per token (14 with the\n"
      "gradient), chunkwise 256 D + 8 D D (896, 28), recurrent 10 D D (35), all ones 4 D D (14); automatic the least of full and "
      "chunkwise.\n",
      static_cast<int>(D), o.blhd ? "[B, L, H, D]" : "[B, H, L, D]", o.repetitions,
      o.without_gates ? "by q, k and v" : "by q, k, v and the gates");
  print_header();
  std::string broken;
  try {
    for (const shape& s : shapes)
      if (o.only_case.empty() || o.only_case == s.name) all.measure(s);
    all.measure_bandwidth(m.bandwidth_after);
    if (std::abs(m.bandwidth_after / m.bandwidth - 1) > 0.03)
      std::printf("\nThe copy now runs at %.2f TB/s: the device was busy with something else, measure again.\n",
                  m.bandwidth_after / 1e12);
  } catch (const std::runtime_error& failure) {
    broken = failure.what();  // of CUDA: nothing after it can be trusted, what was measured before it can
  }
  print_summary(all.results());
  file.write(json(o, m, all.results()));
  const auto wrong = std::count_if(all.results().begin(), all.results().end(), [](const result& r) { return r.wrong; });
  if (wrong > 0)
    std::printf("%d of %d are wrong or refused, see above.\n", static_cast<int>(wrong), static_cast<int>(all.results().size()));
  if (!broken.empty()) std::printf("Stopped: %s\n", broken.c_str());
  return wrong == 0 && broken.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const options o = parse(argc, argv);
  try {
    return run(o);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "bila_bench_cuda: %s\n", failure.what());
    return 2;
  }
}
