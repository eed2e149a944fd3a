"""Rollouts with one compiled call a step, for environments whose states can be listed."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable
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
from gfn.states import States
from gfn.storage import cache_directory

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

    def advance(self, policy: Policy[S], backward: bool, generator: torch.Generator | None) -> Advance | None:
        """A step of a rollout over rows of the table; None if the policy is no plain network, or nothing compiles it.

        It draws what ``policy.distribution(…).sample(generator)`` would.
        """
        layers = policy.layers(self.env)
        if layers is None or torch.is_autocast_enabled("cpu") or not compiled():
            return None
        features = self.features.to(layers[0].dtype) if layers else self.features
        moves, last = (self.backward, self.initial) if backward else (self.forward, self.terminal)

        def step(live: Tensor, alive: Tensor) -> Any:
            found = torch.ops.fgfn.step(live, alive, moves, last, features, layers, generator)
            if not found:
                policy.distribution(self.states[live]).sample(generator)  # which tells where no action is allowed
                raise FloatingPointError(
                    f"{type(policy).__name__}: logits are not finite, so that nothing can be drawn"
                )
            return found

        return step


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
