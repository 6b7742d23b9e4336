// SPDX-License-Identifier: Apache-2.0
// Masks of your own, drawn: any type that gives weights of pairs, or decays of the gaps between tokens. Nothing to inherit or
// register.
#include <bila/bila.hpp>

#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

constexpr std::string_view text = "One two three. Four five, six seven! Eight nine ten.";

// A window: each letter sees those at most four away. Weights of pairs can be anything, so only the full form takes them.
struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i - j <= 4 && j - i <= 4; }
  bila::index_t reach(bila::index_t, bila::index_t) const { return 4; }  // not needed, but makes the time linear in the length
};

// Stepping over a space costs a little, leaving a sentence a lot. A product over gaps, so every form takes it, in linear time.
struct punctuation {
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(bila::index_t, bila::index_t, bila::index_t t) const {  // of the gap between letters t-1 and t
    const char left = text[static_cast<std::size_t>(t - 1)];
    return left == '.' || left == '!' ? -3.0 : left == ' ' || left == ',' ? -0.4 : 0.0;
  }
  double log_backward(bila::index_t b, bila::index_t h, bila::index_t t) const { return log_forward(b, h, t); }
};

// With q = k = 1 and the identity as v, the output is the mask itself.
template <class Form, class Mask>
std::vector<double> mask_matrix(const Form& form, const Mask& mask) {
  constexpr bila::index_t L = text.size();
  std::vector<double> ones(L, 1.0), identity(L * L), M(L * L);
  for (std::size_t i = 0; i < L; ++i) identity[i * L + i] = 1;
  bila::attend(form, mask, bila::norm::none{},
               bila::inputs<double>{bila::bhld(ones.data(), 1, 1, L, 1), bila::bhld(ones.data(), 1, 1, L, 1),
                                    bila::bhld(identity.data(), 1, 1, L, L)},
               bila::bhld(M.data(), 1, 1, L, L));
  return M;
}

int main() {
  const auto near = mask_matrix(bila::form::full{}, window{});
  const auto sentences = mask_matrix(bila::form::full{}, punctuation{}),
             streamed = mask_matrix(bila::form::recurrent{}, punctuation{});

  const auto shade = [](double weight) { return " .:-=+*#%@"[std::lround(9 * weight)]; };
  for (std::size_t i = 0; i < text.size(); i += 2) {
    std::printf("%c ", text[i]);
    for (std::size_t j = 0; j < text.size(); ++j) std::putchar(shade(near[i * text.size() + j]));
    std::printf(" | ");
    for (std::size_t j = 0; j < text.size(); ++j) std::putchar(shade(sentences[i * text.size() + j]));
    std::putchar('\n');
  }
  const double of_neighbours = near[10 * text.size() + 14], of_strangers = near[10 * text.size() + 15];
  bool good = of_neighbours == 1 && of_strangers == 0;
  for (std::size_t n = 0; n < sentences.size(); ++n) good = good && std::fabs(sentences[n] - streamed[n]) < 1e-14;
  return good ? 0 : 1;
}
