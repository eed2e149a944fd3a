// One step of a rollout on an environment whose states are listed: network, draw, transition, in one call.
//
// Operators on small tensors cost their dispatch, a few microseconds each, and a step has about fifty of them.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using at::Tensor;

// Number the distinct states in the order in which they come; place[i] is the number of live[i].
Tensor distinct(const Tensor& live, int64_t states, int64_t* place) {
  thread_local std::vector<int32_t> number;  // of each state, -1 for those not met: the same between two calls
  if (static_cast<int64_t>(number.size()) < states) number.assign(states, -1);
  const int64_t* state = live.const_data_ptr<int64_t>();
  std::vector<int64_t> met;
  for (int64_t i = 0; i < live.numel(); ++i) {
    if (number[state[i]] < 0) {
      number[state[i]] = static_cast<int32_t>(met.size());
      met.push_back(state[i]);
    }
    place[i] = number[state[i]];
  }
  for (int64_t s : met) number[s] = -1;
  Tensor found = at::empty({static_cast<int64_t>(met.size())}, live.options());
  std::copy(met.begin(), met.end(), found.data_ptr<int64_t>());
  return found;
}

// The logits of a perceptron; what comes before them, each hidden layer, is left in the list.
Tensor network(
    const Tensor& rows, const Tensor& features, int64_t actions, at::TensorList layers, std::vector<Tensor>& hidden) {
  if (layers.empty()) return at::zeros({rows.numel(), actions}, features.options());
  Tensor x = features.index_select(0, rows);
  for (size_t i = 0; i < layers.size(); i += 2) {
    x = at::linear(x, layers[i], layers[i + 1]);
    if (i + 2 < layers.size()) hidden.push_back(x.relu_());
  }
  return x;
}

// Action, its log-probability, the state it leads to; and of those that go on the state and the trajectory. Nothing if
// some state allows no action, or a logit is not a number. Draws what MaskedCategorical draws from the same generator.
// Last come what the network looked at: each distinct state, which of them each live one is, and its hidden layers.
std::vector<Tensor> step(
    const Tensor& live, const Tensor& alive, const Tensor& moves, const Tensor& last, const Tensor& features, at::TensorList layers,
    std::optional<at::Generator> generator) {
  const int64_t n = live.numel(), actions = moves.size(1);
  const Tensor which = at::empty({n}, live.options());
  int64_t* place = which.data_ptr<int64_t>();
  const Tensor rows = distinct(live, moves.size(0), place);
  std::vector<Tensor> hidden;
  const Tensor logits = network(rows, features, actions, layers, hidden).contiguous();
  const Tensor noise = at::empty({n, actions}, logits.options()).exponential_(1.0, generator);
  Tensor action = at::empty({n}, live.options()), target = at::empty({n}, live.options());
  Tensor log_prob = at::empty({n}, logits.options());
  Tensor on = at::empty({n}, live.options()), still = at::empty({n}, live.options());
  const int64_t *to = moves.const_data_ptr<int64_t>(), *row = rows.const_data_ptr<int64_t>();
  const bool* ends = last.const_data_ptr<bool>();
  int64_t *drawn = action.data_ptr<int64_t>(), *next = target.data_ptr<int64_t>();
  int64_t *going_on = on.data_ptr<int64_t>(), *going_trajectory = still.data_ptr<int64_t>();
  const int64_t* trajectory = alive.const_data_ptr<int64_t>();
  int64_t going = 0;
  bool stuck = false;
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "step", [&] {
    constexpr scalar_t nothing = -std::numeric_limits<scalar_t>::infinity();
    scalar_t* logit = logits.data_ptr<scalar_t>();
    for (int64_t u = 0; u < rows.numel(); ++u) {  // log-probabilities in the place of logits
      const int64_t* moving = to + row[u] * actions;
      scalar_t* value = logit + u * actions;
      scalar_t largest = nothing, total = 0;
      for (int64_t a = 0; a < actions; ++a)
        if (moving[a] >= 0) largest = std::max(largest, value[a]);
      for (int64_t a = 0; a < actions; ++a)
        if (moving[a] >= 0) total += std::exp(value[a] - largest);
      if (total == 0) stuck = true;
      const scalar_t shift = largest + std::log(total);
      for (int64_t a = 0; a < actions; ++a) value[a] = moving[a] >= 0 ? value[a] - shift : nothing;
    }
    const scalar_t* race = noise.const_data_ptr<scalar_t>();
    scalar_t* drawn_log_prob = log_prob.data_ptr<scalar_t>();
    for (int64_t i = 0; i < n && !stuck; ++i) {
      const scalar_t* value = logit + place[i] * actions;
      int64_t best = 0;
      scalar_t lead = nothing;
      for (int64_t a = 0; a < actions; ++a) {
        const scalar_t time = value[a] - std::log(std::max(race[i * actions + a], static_cast<scalar_t>(1e-37)));
        if (time > lead) lead = time, best = a;
      }
      if (lead == nothing) {
        stuck = true;
        break;
      }
      drawn[i] = best;
      drawn_log_prob[i] = value[best];
      next[i] = to[row[place[i]] * actions + best];
      if (!ends[next[i]]) {
        going_on[going] = next[i];
        going_trajectory[going++] = trajectory[i];
      }
    }
  });
  if (stuck) return {};
  std::vector<Tensor> found{action, log_prob, target, on.narrow(0, 0, going), still.narrow(0, 0, going), rows, which};
  found.insert(found.end(), hidden.begin(), hidden.end());
  return found;
}

}  // namespace

TORCH_LIBRARY(fgfn, library) {
  library.def(
      "step(Tensor live, Tensor alive, Tensor moves, Tensor last, Tensor features, Tensor[] layers, "
      "Generator? generator) -> Tensor[]",
      &step);
}
