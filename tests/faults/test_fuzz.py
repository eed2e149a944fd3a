"""Promise 14: whatever is written into a config or a constructor, there is a clear refusal or something that works."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from envs.bits import Append, Insert, PrependAppend
from envs.diffusion.environment import Diffusion
from envs.diffusion.processes import Bridge, Noising
from envs.diffusion.targets import ConditionalGaussian, Funnel, ManyWell
from envs.hypergrid import Classic, Cosine, Deceptive, Hypergrid, Sparse
from envs.tokens.environment import Tokens
from envs.tokens.tasks import Expressions, Sums
from experiments.build import checked
from experiments.schema import ConfigError
from gfn.distributions import MaskedCategorical, NoActionError
from gfn.environment import DiscreteEnvironment, Environment, checked_log_reward
from tests.composing import SMALL, composed, leaves

# Examples in the short form, 500 in all, and in the long one, 11 000.
SHORT, LONG = (100, 250, 150), (2500, 5500, 3000)


def forms(test: int) -> Any:
    return pytest.mark.parametrize("examples", [SHORT[test], pytest.param(LONG[test], marks=pytest.mark.slow)])


def fuzz(examples: int, strategy: st.SearchStrategy[Any], require: Callable[[Any], None]) -> None:
    """Try examples, always the same ones; a failure is shrunk to its simplest form."""
    options = settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    tried = 0

    def once(example: Any) -> None:
        nonlocal tried
        tried += 1
        require(example)

    options(given(strategy)(once))()
    print(f"{tried} examples")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just("???"),
    st.sampled_from(["", "linear:0:1", "linear", "cosine:::", "piecewise:1", "${seed}", "${nothing}", "nan", "gfn.Nope",
                     "envs.hypergrid.Hypergrid", "os.system", "1e999", "[]", "~", "\x00", "a.b", "..", "é"]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.fixed_dictionaries({"_target_": st.sampled_from(["gfn.schedules.Linear", "os.abort", "", "gfn", "x.y", 3])}),
)  # fmt: skip
TREE: dict[str, Any] = OmegaConf.to_container(composed(*SMALL), resolve=True)  # type: ignore[assignment]
KEYS = sorted(leaves(TREE)) + [key for key, value in TREE.items() if isinstance(value, dict)]


def altered(changes: list[tuple[str, str, Any]]) -> dict[str, Any]:
    """The config with values changed, left out or added."""
    tree = copy.deepcopy(TREE)
    for key, how, value in changes:
        *path, last = key.split(".")
        node: Any = tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            continue
        if how == "drop":
            node.pop(last, None)
        else:
            node[last if how == "change" else f"{last}x"] = value
    return tree


@forms(0)
def test_a_config_is_refused_with_every_problem_or_fits(examples: int) -> None:
    told: list[int] = []

    def require(changes: list[tuple[str, str, Any]]) -> None:
        problems: tuple[str, ...] = ()
        try:
            assert isinstance(checked(OmegaConf.create(altered(changes))), dict)
        except ConfigError as error:
            problems = error.problems
            told.append(len(problems))
        assert all(isinstance(line, str) and line for line in problems)

    change = st.tuples(st.sampled_from(KEYS), st.sampled_from(["change", "drop", "add"]), JUNK)
    fuzz(examples, st.lists(change, min_size=1, max_size=4), require)
    assert len(told) > examples // 2
    print(f"{len(told)} configs were refused, with up to {max(told)} problems at once")


NUMBER = st.one_of(st.floats(), st.sampled_from([0.0, 0.1, 1.0, -1.0, 2.0, 1e-30, 1e30, float("nan"), float("inf")]))
FEW = st.integers(-2, 6)


def calls(make: Callable[..., Any], **arguments: Any) -> st.SearchStrategy[tuple[Any, dict[str, Any]]]:
    return st.tuples(st.just(make), st.fixed_dictionaries({}, optional=arguments))


REWARDS = st.one_of(
    calls(Classic, r0=NUMBER, r1=NUMBER, r2=NUMBER), calls(Cosine, r0=NUMBER, r1=NUMBER), calls(Sparse, floor=NUMBER),
    calls(Deceptive, r0=NUMBER, r1=NUMBER, r2=NUMBER),
)  # fmt: skip
TARGETS = st.one_of(calls(Funnel, dim=FEW), calls(ManyWell, dim=FEW), calls(ConditionalGaussian, n_labels=FEW))
TASKS = st.one_of(calls(Sums, letters=FEW), calls(Expressions, low=st.integers(-5, 120), high=st.integers(-5, 120)))
BITS = {"bits": st.integers(-4, 16), "word": FEW, "modes": FEW, "exponent": NUMBER, "radius": FEW, "seed": FEW}
CONSTRUCTORS = st.one_of(
    calls(Hypergrid, side=FEW, ndim=st.integers(-1, 3), reward=REWARDS),
    *(calls(kind, **BITS) for kind in (Append, PrependAppend, Insert)),
    calls(Diffusion, target=TARGETS, steps=FEW),
    calls(Tokens, task=TASKS, max_tokens=FEW, min_tokens=FEW, temperature=NUMBER, cut_reward=NUMBER),
    calls(Bridge, sigma=NUMBER, power=NUMBER), calls(Noising, sigma=NUMBER, power=NUMBER, rest=NUMBER),
)  # fmt: skip


def constructed(call: tuple[Any, dict[str, Any]]) -> Any:
    """What a constructor makes of its arguments, some of which are to be constructed first."""
    make, arguments = call
    return make(**{k: constructed(v) if isinstance(v, tuple) else v for k, v in arguments.items()})


@forms(1)
def test_a_constructor_refuses_or_makes_what_works(examples: int) -> None:
    made = 0

    def require(call: tuple[Any, dict[str, Any]]) -> None:
        nonlocal made
        if call[0] in (Diffusion, Tokens) and not {"target", "task"} & call[1].keys():
            return  # Python itself says that it is missing
        refusal = None
        try:
            env = constructed(call)
        except ValueError as error:
            refusal = str(error)
        if refusal is not None:
            assert refusal, "it says why"
            return
        made += 1
        if isinstance(env, Environment):
            generator = torch.Generator().manual_seed(0)
            states = env.reset(3, generator)
            assert env.is_initial(states).all()
            if isinstance(env, DiscreteEnvironment):
                walk(env, states, generator)

    fuzz(examples, CONSTRUCTORS, require)
    assert made > examples // 10
    print(f"{made} of them were made, and walked through")


def walk(env: Any, states: Any, generator: torch.Generator) -> None:
    """Follow random actions to the end: masks, steps and undoing agree, and what is forbidden is refused."""
    for step in range(env.max_steps + 1):
        states = states[~env.is_terminal(states)]
        if len(states) == 0:
            return
        assert step < env.max_steps, "a trajectory ends after max_steps"
        mask = env.forward_mask(states)
        assert mask.dtype == torch.bool
        assert mask.shape == (len(states), env.n_actions)
        assert mask.any(1).all(), "a state that is not terminal allows an action"
        actions = torch.multinomial(mask.double(), 1, generator=generator).squeeze(1)
        following = env.step(states, actions)
        assert env.backward_mask(following).gather(1, actions.unsqueeze(1)).all(), "what was done can be undone"
        back = env.undo(following, actions)
        assert torch.equal(env.forward_mask(back), mask)
        assert not env.is_initial(following).any()
        forbidden = (~mask).nonzero()
        if len(forbidden) > 0:
            row, action = forbidden[0]
            with pytest.raises(ValueError):  # noqa: PT011 (each environment has words of its own)
                env.step(states[row.unsqueeze(0)], action.unsqueeze(0))
        states = following
        ended = states[env.is_terminal(states)]
        if len(ended) > 0:
            assert not checked_log_reward(env, ended).isnan().any()


@forms(2)
def test_a_masked_distribution_never_draws_what_is_forbidden(examples: int) -> None:
    def require(example: tuple[int, int, int, float, bool]) -> None:
        n, actions, seed, scale, empty = example
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(n, actions, generator=generator) * scale
        mask = torch.rand(n, actions, generator=generator) < 0.5
        mask[torch.arange(n), torch.randint(actions, (n,), generator=generator)] = not empty
        if not mask.any(1).all():
            with pytest.raises(NoActionError, match="allow no action"):
                MaskedCategorical(logits, mask)
            return
        distribution = MaskedCategorical(logits, mask)
        drawn = distribution.sample(generator)
        assert mask.gather(1, drawn.unsqueeze(1)).all()
        assert distribution.log_prob(drawn).isfinite().all()
        assert torch.equal(distribution.log_probs == -torch.inf, ~mask)
        torch.testing.assert_close(distribution.log_probs.double().exp().sum(1), torch.ones(n).double())

    shapes = st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**31)
    fuzz(examples, st.tuples(*shapes, st.sampled_from([0.0, 1.0, 50.0, 1e4]), st.booleans()), require)
