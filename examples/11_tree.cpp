// SPDX-License-Identifier: Apache-2.0
// Speculative decoding: a tree of drafted tokens is read in one call. A node sees its ancestors, which is a mask of pairs, and
// through them the committed context, which is one state. Checked against a state per node.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::Index;
constexpr Index context = 400, nodes = 48, Dk = 16, Dv = 8;

/// The product of the decays on the way from j down to i if j is i or an ancestor of i, else zero.
struct tree {
  std::vector<Index> parent;  // (nodes) an earlier node, or -1 for the context
  const Eigen::VectorXd& log_decay;

  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const {
    double log = 0;
    for (; i > j; i = parent[static_cast<std::size_t>(i)]) log += log_decay[i];
    return i == j ? std::exp(log) : 0;
  }
};

}  // namespace

int main() {
  std::srand(1);
  const matrix k0 = matrix::Random(context, Dk), v0 = matrix::Random(context, Dv);  // the committed tokens
  const matrix q = matrix::Random(nodes, Dk), k = matrix::Random(nodes, Dk), v = matrix::Random(nodes, Dv);
  const Eigen::VectorXd a0 = -0.1 * Eigen::VectorXd::Random(context).cwiseAbs(),
                        a = -0.5 * Eigen::VectorXd::Random(nodes).cwiseAbs();
  tree draft{{}, a};
  for (Index i = 0; i < nodes; ++i) draft.parent.push_back(i < 2 ? -1 : std::max<Index>(i - 1 - std::rand() % 6, -1));

  // The context's state: a call without y. A server keeps it from one step to the next.
  matrix S0(Dk, Dv);
  bila::inputs<double> committed{{}, bila::matrix(k0), bila::matrix(v0)};
  committed.direction = bila::direction::forward;
  bila::outputs<double> state;
  state.final_forward.S = bila::matrix(S0);
  bila::attend(bila::form::chunkwise{}, bila::mask::selective_decay{bila::matrix(a0), bila::gate::target}, bila::norm::none{},
               committed, state);

  // The draft: all nodes at once, and what each reads of the context.
  matrix y(nodes, Dv);
  bila::inputs<double> drafted{bila::matrix(q), bila::matrix(k), bila::matrix(v)};
  drafted.direction = bila::direction::forward;  // an ancestor comes before, so half of the pairs need not be asked for
  bila::attend(bila::form::full{}, draft, bila::norm::none{}, drafted, bila::matrix(y));
  Eigen::VectorXd root(nodes);  // the decay from the context to a node
  for (Index i = 0; i < nodes; ++i) {
    const Index parent = draft.parent[static_cast<std::size_t>(i)];
    root[i] = std::exp(a[i]) * (parent < 0 ? 1 : root[parent]);
  }
  y += root.asDiagonal() * (q * S0);

  matrix S = matrix::Zero(Dk, Dv);
  for (Index t = 0; t < context; ++t) S = std::exp(a0[t]) * S + k0.row(t).transpose() * v0.row(t);
  std::vector<matrix> states;
  double error = 0;
  for (Index i = 0; i < nodes; ++i) {
    const Index parent = draft.parent[static_cast<std::size_t>(i)];
    states.push_back(std::exp(a[i]) * (parent < 0 ? S : states[static_cast<std::size_t>(parent)]) +
                     k.row(i).transpose() * v.row(i));
    error = std::fmax(error, (q.row(i) * states.back() - y.row(i)).cwiseAbs().maxCoeff());
  }
  std::printf("a tree of %d nodes after %d tokens: largest error %.1e, with one state in place of %d\n", static_cast<int>(nodes),
              static_cast<int>(context), error, static_cast<int>(nodes));
  return error < 1e-12 ? 0 : 1;
}
