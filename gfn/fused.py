"""Rollouts with one compiled call a step, for environments whose states can be listed."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import cpp_extension

from gfn.environment import Environment, as_discrete
from gfn.exact import StateGraph, state_graph
from gfn.policies import Policy
from gfn.recall import Recall, remember
from gfn.states import States
from gfn.storage import cache_directory
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
# From live states and their trajectories: actions, their log-probabilities and the next states; and of those that go on
# states and trajectories.
Advance = Callable[[Any, Tensor], tuple[Tensor, Tensor, Any, Any, Tensor]]

LARGEST = 2**28  # numbers in a table
PATIENCE = 600.0  # seconds that a compiler may take
logger = logging.getLogger(__name__)


class Table(Generic[S]):
    """Every state of an environment with its features and moves, as a rollout reads them.

    Raises:
        ValueError: unless the environment has dense masks, can list its states, lives on the CPU, and fits.
    """

    def __init__(self, env: Environment[S]):
        discrete = as_discrete(env)
        if discrete is None or env.device.type != "cpu":
            raise ValueError(
                f"fused rollouts need an environment with dense masks on the CPU, got {type(env).__name__} on "
                f"{env.device}: use sampler.fused=false"
            )
        graph: StateGraph[S] = state_graph(env)
        size = graph.n * (2 * discrete.n_actions + discrete.n_features)
        if size > LARGEST:
            raise ValueError(
                f"fused rollouts would need a table of {size} numbers for the {graph.n} states of "
                f"{type(env).__name__}, more than {LARGEST}: use sampler.fused=false"
            )
        self.env, self.states = discrete, graph.states
        self.features = discrete.encode(graph.states)
        self.forward = self._moves(graph.source, graph.action, graph.target)
        self.backward = self._moves(graph.target, graph.action, graph.source)
        self.terminal, self.initial = discrete.is_terminal(graph.states), discrete.is_initial(graph.states)

    def _moves(self, source: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Where each action leads from each state, −1 where it is not allowed, long ``[n, A]``."""
        moves = torch.full((len(self.states), self.env.n_actions), -1)
        moves[source, action] = target
        return moves

    def index(self, states: S) -> Tensor:
        """Rows of the table, long ``[N]``."""
        listed: Any = self.env
        return listed.index(states)

    def steps(self, policy: Policy[S], backward: bool, generator: torch.Generator | None) -> Steps[S] | None:
        """For a rollout over rows of the table; None if the policy is no plain network, or nothing compiles them."""
        layers = policy.perceptron(self.env)
        if layers is None or torch.is_autocast_enabled("cpu") or not compiled():
            return None
        return Steps(self, policy, layers, backward, generator)


class Steps(Generic[S]):
    """Steps of one rollout; they draw what ``policy.distribution(…).sample(generator)`` would."""

    def __init__(
        self,
        table: Table[S],
        policy: Policy[S],
        layers: Sequence[Tensor],
        backward: bool,
        generator: torch.Generator | None,
    ):
        self.table, self.policy, self.generator = table, policy, generator
        self.layers, self.values = layers, [layer.detach().clone() for layer in layers[:-2]]
        self.features = table.features.to(layers[0].dtype) if layers else table.features
        moves, last = (table.backward, table.initial) if backward else (table.forward, table.terminal)
        self.moves, self.last = moves, last
        self.looked_at: list[Sequence[Tensor]] = []

    def __call__(self, live: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        found = torch.ops.fgfn.step(live, alive, self.moves, self.last, self.features, self.layers, self.generator)
        if not found:
            self.policy.distribution(self.table.states[live]).sample(self.generator)  # tells where there is no action
            raise FloatingPointError(
                f"{type(self.policy).__name__}: logits are not finite, so that nothing can be drawn"
            )
        action, log_prob, target, on, still, *looked_at = found
        self.looked_at.append(looked_at)
        return action, log_prob, target, on, still

    def remember(self, t: Trajectories[S], by_trajectory: Tensor) -> None:
        """Keep what the network computed for the gradient of these trajectories, which have come of these steps."""
        if not self.layers:
            return
        rows, which, *hidden = zip(*self.looked_at, strict=True)
        before = torch.tensor([0, *map(len, rows[:-1])]).cumsum(0)
        place = torch.cat([step + start for step, start in zip(which, before, strict=True)])[by_trajectory]
        row = torch.cat(rows)
        inputs, states = self.features[row], self.table.states[row]
        layers = [torch.cat(layer) for layer in hidden]
        remember(self.policy, t, lambda of: Recall(states, place, inputs, layers, self.layers[:-2], self.values, of))


@cache
def compiled() -> bool:
    """Whether the compiled step is there; it is built by $CXX, or c++, the first time. What keeps it is told once."""
    try:
        torch.ops.load_library(_library())
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or error
        logger.warning(
            "fused rollouts are not: %s; steps go one operator at a time", " ".join(str(said).split())[-500:]
        )
        return False
    return True


def _library() -> Path:
    """Built here and not by torch's loader, which waits for ever for a lock that a killed build has left."""
    source = Path(__file__).with_suffix(".cpp")
    key = blake2b(source.read_bytes() + torch.__version__.encode(), digest_size=8).hexdigest()
    path = cache_directory() / f"fused_{key}.so"
    if not path.exists():
        logger.warning("compiling %s for fused rollouts, once: some twenty seconds", source)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
        include = [f"-I{folder}" for folder in cpp_extension.include_paths()]
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-fPIC", "-shared", abi, *include, str(source)]
        command += ["-o", str(part), *libraries, "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
        os.replace(part, path)
    return path
