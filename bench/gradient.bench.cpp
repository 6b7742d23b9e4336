// SPDX-License-Identifier: Apache-2.0
// What the gradient costs beside the forward pass, form by form, and in memory: what is kept between the two, and scratch.
#include "cases.hpp"

#include <string>

namespace {

using bench::index_t;

struct lesson {
  std::shared_ptr<bench::setting<float>> on;
  bench::aligned_vector<float> row_sum, dy, dq, dk, dv, d_log_decay;

  explicit lesson(index_t L, index_t D)
      : on(std::make_shared<bench::setting<float>>(4, L, D)),
        row_sum(static_cast<std::size_t>(4 * L)),
        dy(on->p.v.values),
        dq(dy.size()),
        dk(dy.size()),
        dv(dy.size()),
        d_log_decay(row_sum.size()) {}
};

enum class pass { forward, gradient, both };

template <class Form>
void add(const std::shared_ptr<lesson>& with, pass which, const std::string& name, const Form& form) {
  const index_t L = with->on->p.length(), D = with->on->p.v.extents[3], H = with->on->p.heads();
  const char* const passes[] = {"forward", "gradient", "both"};
  const std::string title = std::string(passes[static_cast<int>(which)]) + "/" + name +
                            "/selective_decay/float/L:" + std::to_string(L) + "/D:" + std::to_string(D);
  benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
    const auto tensor = [&](bench::aligned_vector<float>& x) { return bila::bhld(x.data(), 1, H, L, D); };
    const auto gates = [&](bench::aligned_vector<float>& x) { return bila::bhl(x.data(), 1, H, L); };
    const bila::inputs<float> in{with->on->p.q.prefix(L), with->on->p.k.prefix(L), with->on->p.v.prefix(L)};
    const bila::outputs<float> out{tensor(with->on->y), gates(with->row_sum)};
    const auto mask = with->on->selective_decay().second;
    bila::gradients<float> to;
    to.q = tensor(with->dq);
    to.k = tensor(with->dk);
    to.v = tensor(with->dv);
    to.log_decay = gates(with->d_log_decay);
    bila::attend(form, mask, bila::norm::row_sum{}, in, out);
    for (auto _ : state) {
      if (which != pass::gradient) bila::attend(form, mask, bila::norm::row_sum{}, in, out);
      if (which != pass::forward)
        bila::gradient(form, mask, bila::norm::row_sum{}, in, {out.y, out.row_sum}, {tensor(with->dy)}, to);
    }
    state.counters["tokens/s"] = {static_cast<double>(L), benchmark::Counter::kIsIterationInvariantRate};
    state.counters["kept_bytes"] = static_cast<double>(H * L * (D + 1)) * sizeof(float);  // y and the row sum
    state.counters["scratch_bytes"] = static_cast<double>(
        which == pass::forward ? bila::workspace_bytes(bila::cpu{}, form, mask, bila::norm::row_sum{}, in, out)
                               : bila::gradient_workspace_bytes(bila::cpu{}, form, in, bila::tensor_view<const float>(out.y)));
  })->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  for (const index_t L : {197, 1024, 4096}) {
    const auto with = std::make_shared<lesson>(L, 64);
    for (const pass which : {pass::forward, pass::gradient, pass::both}) {
      if (L <= 1024) add(with, which, "full", bila::form::full{});
      add(with, which, "recurrent", bila::form::recurrent{});
      add(with, which, "chunkwise", bila::form::chunkwise{});
      add(with, which, "chunkwise_recompute", bila::form::chunkwise{.recompute = true});
      add(with, which, "automatic", bila::form::automatic{});
    }
  }
  return bench::run_benchmarks(argc, argv);
}
