"""Every key of every config changes something: the metrics written, or the files left."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from omegaconf import OmegaConf

from envs.synthesis.templates import OWN as OWN_TEMPLATES
from tests.composing import SMALL, built, composed, leaves
from tests.small_digits import CACHE as DIGITS_CACHE
from tests.small_language_models import write_model, write_questions
from tests.test_configs import NEEDED, OPTIONS
from tests.test_seh import random_arrays, write

BASE = (*SMALL, "logger.metrics.every=1", "divergence=alpha", "divergence.alpha=0.5")
REPLAY = ("sampler=replay", "sampler/buffer=reward", "trainer.lr=0.1")
MIXED = ("sampler=replay", "sampler/buffer=mixed")
REFRESHED = ("sampler=refreshed", "sampler.every=1", "sampler.source.batch_size=8", "trainer.lr=0.1")
SEARCHED = (*REFRESHED, "sampler/source=asynchronous")
SEARCH = ("sampler=local_search", "sampler.batch_size=8")
STALE = ("sampler=stale", "sampler.batch_size=8", "trainer.lr=0.1")
OTHERS = "[{_target_:gfn.samplers.OnPolicy,seed:3},{_target_:gfn.samplers.OnPolicy,seed:4}]"
LEARNED = ("partition=learned", "divergence=reverse_kl")
EXPLORING = ("exploration=epsilon", "exploration.epsilon=0.5")  # ratios to the behaviour policy other than 1
BITS = ("env=bits_prepend_append", "env.bits=8", "env.modes=2")
CONDITIONS = ("env=conditional", "sampler.group_size=4", "env.env.side=4")
PREFERENCES = ("env=preferences", "sampler.group_size=4")
ENVS = "[{_target_:envs.hypergrid.Hypergrid,side:4},{_target_:envs.hypergrid.Hypergrid,side:4}]"
FEW = ("evaluator.n_samples=16", "env.size=60", "env.max_reactions=2")
SYNTHESIS = ("env=synthesis", "policy=synthesis", "backward=exact_edges", *FEW)
LEARNED_EDGES = (*SYNTHESIS, "backward=learned_edges", "backward.edges=exact")
PRICED = (*SYNTHESIS, "env.size=null", "env.blocks=${oc.env:FGFN_TEST_BLOCKS}")
ROUTES = (*PRICED, "backward=cheapest_routes")
PROXY = (*SYNTHESIS, "env/reward=seh", "env.reward.sha256=null", "env.reward.weights=${oc.env:FGFN_TEST_WEIGHTS}")
OWN = (*SYNTHESIS, "env/reward=molecules", "++env.reward.score.reward.function=tests.toy.carbons")
PICKY = (*OWN[:-1], "++env.reward.score.reward.function=tests.toy.picky", "env.reward.score.on_failure=1.0")
TWO_PROPERTIES = ",".join(f"{{_target_:envs.synthesis.rewards.Property,name:{name}}}" for name in ("qed", "weight"))
TOKENS = ("env=tokens_toy", "env.max_tokens=3")
CACHE = "policy.cache=${oc.env:FGFN_TEST_CACHE}"
COMPLETIONS = ("sampler.sampler.sampler.group_size=4", "trainer.steps=3", "trainer.lr=0.1")
EXPRESSIONS = (
    "env=tokens",
    "policy=expressions",
    "policy.pretraining_steps=2",
    CACHE,
    *COMPLETIONS,
    "evaluator.n_samples=32",
)
PROBLEMS = (
    "env=problems", "policy=language_model", "policy.lora_rank=2", *COMPLETIONS,
    "evaluator.n_samples=8", "evaluator.conditions=2",
    "env.model=${oc.env:FGFN_TEST_MODEL}", "env.verifier=tests.small_language_models.vowels", "env.stops=[a,e]",
)  # fmt: skip
QUESTIONS = "env.source.path=${oc.env:FGFN_TEST_QUESTIONS}"
OTHER_QUESTIONS = "${oc.env:FGFN_TEST_OTHER_QUESTIONS}"
JSONL = (*PROBLEMS, "env/source=jsonl", QUESTIONS, "env.source.prompt=question")
GYM = (*PROBLEMS, "env/source=gym", 'env.template="{prompt}"')
NUCLEUS = (*EXPRESSIONS, "exploration=nucleus", "exploration.force=true", "exploration.top_p=0.5")
# Piperazine amides can be made in one step or by way of the protected amine, and one block has a stereo centre.
BLOCKS = """smiles,id,price
C1CNCCN1,a,3
CC(C)(C)OC(=O)N1CCNCC1,b,9
O=C(O)c1ccccc1,c,1
C[C@H](N)C(=O)O,d,2
"""
DIFFUSION = ("env=diffusion", "policy=diffusion", "env.steps=3", "backward=noising", "trainer.lr=0.1", *FEW[:1])
DIGITS = ("env=digits", "policy=images", "backward=noising_images", DIGITS_CACHE, "env.steps=3", *FEW[:1])
DENOISING = (*DIGITS, "objective=denoising", "sampler=data", "++sampler.data=envs.diffusion.digits.real_images")
BRIDGE = (*DIFFUSION[:3], "backward=bridge", *DIFFUSION[4:])
DENSITY = (*DIFFUSION, "env/target=user", "++env.target.function=tests.toy.bowl", "++env.target.dim=3")
# key: (overrides that bring it in, another value)
CHANGES: dict[str, tuple[tuple[str, ...], str]] = {
    "seed": ((), "1"),
    "env.side": ((), "5"),
    "env.ndim": ((), "3"),
    "env.reward.r0": ((), "0.2"),
    "env.reward.r1": ((), "0.9"),
    "env.reward.r2": (("env.side=8",), "5.0"),
    "policy.width": ((), "9"),
    "policy.depth": ((), "1"),
    "backward.tied": (("backward=learned",), "false"),
    "divergence.alpha": ((), "2.0"),
    "divergence.k": (("divergence=huber",), "0.1"),
    "divergence.weight": (("divergence=jensen_shannon",), "0.9"),
    "divergence.threshold": (("divergence=clipped",), "0.01"),
    "divergence.beta": (("divergence=tempered",), "0.9"),
    "divergence.f": (("divergence=from_generator", "++divergence.f=tests.toy.generator"), "tests.toy.other_generator"),
    "divergence.function": (("divergence=from_loss", "++divergence.function=tests.toy.loss"), "tests.toy.quadratic"),
    "divergence.divergence.alpha": (("divergence=clipped",), "0.0"),
    "divergence.alpha.start": (("divergence=alpha_annealed",), "-1.0"),
    "divergence.alpha.end": (("divergence=alpha_annealed",), "2.0"),
    "divergence.alpha.steps": (("divergence=alpha_annealed",), "50"),
    "partition.leave_one_out": ((), "true"),
    "partition.init": (LEARNED, "3.0"),
    "partition.lr": (LEARNED, "0.5"),
    "partition.network.tied": (("partition=conditional",), "true"),
    "balance.weighting": (("balance=sub_trajectory", "flow=mlp"), "equal"),
    "balance.decay": (("balance=sub_trajectory", "flow=mlp"), "0.1"),
    "flow.tied": (("balance=detailed", "flow=mlp"), "true"),
    "flow.correction.tied": (("balance=detailed", "flow=forward_looking"), "true"),
    "divergence.min_ess": ((), "0.999"),
    "divergence.divergence.min_ess": (("divergence=clipped", "divergence.divergence.alpha=0.0"), "0.999"),
    "objective.backward_loss": (("backward=learned",), "likelihood"),
    "objective.reward_exponent": ((), "0.5"),
    "objective.backward_entropy": (("backward=learned", "objective.backward_loss=reinforce"), "1.0"),
    "objective.importance": (("exploration=epsilon",), "1.0"),
    "objective.importance_limit": (("exploration=epsilon", "objective.importance=1.0"), "1.001"),
    "objective.backward_lr": (("backward=learned", "backward.tied=false"), "0.5"),
    "objective.flow_lr": (("balance=detailed", "flow=mlp"), "0.5"),
    "objective.reward": (("objective=reinforce",), "value"),
    "objective.baseline": (("objective=reinforce",), "none"),
    "objective.scale": (("objective=reinforce",), "std"),
    "objective.surrogate": (("objective=grpo", *EXPLORING), "score"),
    "objective.average": (("objective=grpo",), "steps"),
    "objective.clip_low": (("objective=grpo", *EXPLORING), "0.01"),
    "objective.clip_high": (("objective=grpo", *EXPLORING), "0.01"),
    "objective.kl_coefficient": (("objective=rloo",), "0.5"),
    "objective.kl_penalty": (("objective=grpo",), "0.1"),
    "objective.entropy_coefficient": (("objective=rloo",), "0.1"),
    "objective.value.tied": (("objective=ppo",), "true"),
    "objective.value_coefficient": (("objective=ppo",), "2.0"),
    "objective.value_lr": (("objective=ppo",), "0.1"),
    "objective.gae_lambda": (("objective=ppo",), "0.5"),
    "exploration.epsilon": (("exploration=epsilon",), "0.9"),
    "exploration.temperature": (("exploration=tempered",), "9.0"),
    "sampler.batch_size": ((), "12"),
    "sampler.group_size": ((), "4"),
    "sampler.seed": ((), "5"),
    "sampler.averaging": (("trainer.lr=0.1",), "0.9"),
    "sampler.ratio": (REPLAY, "3"),
    "sampler.reexpand": (REPLAY, "true"),
    "sampler.sampler.group_size": (STALE, "4"),
    "sampler.sampler.averaging": (REPLAY, "0.9"),
    "sampler.sampler.seed": (STALE, "5"),
    "sampler.buffer.capacity": (REPLAY, "20"),
    "sampler.buffer.unique": (REPLAY, "terminal"),
    "sampler.buffer.evict": ((*REPLAY, "sampler.buffer.capacity=20"), "lowest"),
    "sampler.buffer.seed": (REPLAY, "5"),
    "sampler.buffer.priority.inverse_temperature": ((*REPLAY, "env.reward.r0=0.2"), "9.0"),
    "sampler.buffer.priority.k": (("sampler=replay", "sampler/buffer=rank"), "1e-6"),
    "sampler.buffer.priority.half_life": (("sampler=replay", "sampler/buffer=recent"), "0.01"),
    "sampler.buffer.priority.weight": (MIXED, "1.0"),
    "sampler.buffer.priority.first.half_life": (MIXED, "0.01"),
    "sampler.buffer.priority.second.inverse_temperature": ((*MIXED, "env.reward.r0=0.2"), "9.0"),
    "sampler.buffer.per_condition": (REPLAY, "4"),
    "sampler.buffer.max_reuse": (REPLAY, "1"),
    "sampler.buffer.max_age": (REPLAY, "0"),
    "sampler.buffer.replacement": (REPLAY, "false"),
    "sampler.newest": (REFRESHED, "1.0"),
    "sampler.source.batch_size": (REFRESHED, "12"),
    "sampler.source.group_size": (REFRESHED, "4"),
    "sampler.source.averaging": (REFRESHED, "0.9"),
    "sampler.source.seed": (REFRESHED, "5"),
    "sampler.source.max_staleness": (SEARCHED, "2"),
    "sampler.data": (("sampler=data", "++sampler.data=tests.toy.diagonal"), "gfn.samplers.every_terminal"),
    "sampler.inverse_temperature": (("sampler=target",), "0.0"),
    "sampler.rounds": (SEARCH, "1"),
    "sampler.fraction": (SEARCH, "1.0"),
    "sampler.steps": (SEARCH, "1"),
    "sampler.vary": (SEARCH, "false"),
    "sampler.accept": (SEARCH, "metropolis"),
    "sampler.ratios": (("sampler=mixture",), "[1,1]"),
    "sampler.samplers": (("sampler=mixture",), OTHERS),
    "sampler.lag": (STALE, "1"),
    "sampler.every": (("sampler=synchronised", "trainer.lr=0.1"), "1"),
    "sampler.lease_size": (("sampler=asynchronous", "sampler.batch_size=8", "sampler.group_size=4"), "8"),
    "sampler.max_staleness": (("sampler=asynchronous", "sampler.batch_size=8"), "1"),
    "sampler.times": (("sampler=repeated",), "1"),
    "trainer.steps": ((), "4"),
    "trainer.lr": ((), "0.1"),
    "trainer.clip_grad_norm": ((), "1e-3"),
    "trainer.optimizer._target_": ((), "torch.optim.SGD"),
    "trainer.micro_batch": ((), "3"),
    "trainer.precision": ((), "bfloat16"),
    "trainer.save_every": ((), "1"),
    "trainer.keep": (("trainer.save_every=1",), "1"),
    "evaluator.every": ((), "1"),
    "evaluator.n_samples": ((), "17"),
    "evaluator.exact": ((), "false"),
    "evaluator.seed": ((), "9"),
    "evaluator.conditions": ((*CONDITIONS, "evaluator.exact=false"), "3"),
    "evaluator.top_k": ((), "200"),
    "evaluator.test_states": (BITS, "7"),
    "evaluator.backward_samples": (BITS, "2"),
    "env.bits": (BITS, "16"),
    "env.word": (BITS, "2"),
    "env.modes": (BITS, "3"),
    "env.exponent": (BITS, "1.0"),
    "env.radius": (BITS, "0"),
    "env.seed": (BITS, "2"),
    "env.exponents": (CONDITIONS, "[0.5,1.5]"),
    "env.env.side": (CONDITIONS, "5"),
    "env.env.ndim": (CONDITIONS, "3"),
    "env.env.reward.r0": (CONDITIONS, "0.2"),
    "env.env.reward.r1": (CONDITIONS, "0.9"),
    "env.env.reward.r2": ((*CONDITIONS, "env.env.side=8"), "5.0"),
    "env.envs": (PREFERENCES, ENVS),
    "env.weights": (PREFERENCES, "[[0.2,0.8],[0.3,0.7]]"),
    "env.combine": (PREFERENCES, "sum"),
    "env.blocks": (SYNTHESIS, "synspace"),
    "env.size": (SYNTHESIS, "70"),
    "env.library_seed": (SYNTHESIS, "1"),
    "env.max_atoms": (SYNTHESIS, "10"),
    "env.stereo": (PRICED, "true"),
    "env.templates": (PRICED, "${oc.env:FGFN_TEST_TEMPLATES}"),
    "env.only": (SYNTHESIS, "[amide_coupling,reductive_amination_aldehyde]"),
    "env.chemoselective": (SYNTHESIS, "true"),
    "env.max_reactions": (SYNTHESIS, "1"),
    "env.min_reactions": (SYNTHESIS, "0"),
    "env.listed": ((*SYNTHESIS, "env.size=12", "env.max_reactions=1"), "true"),
    "env.mode_threshold": (SYNTHESIS, "0.01"),
    "env.reward.name": (SYNTHESIS, "tpsa"),
    "env.reward.rewards": ((*SYNTHESIS, "env/reward=qed_sa"), f"[{TWO_PROPERTIES}]"),
    "env.reward.exponents": ((*SYNTHESIS, "env/reward=profile"), "[1.0,2.0,1.0]"),
    "env.reward.weights": (PROXY, "${oc.env:FGFN_TEST_OTHER_WEIGHTS}"),
    "env.reward.scale": (PROXY, "4.0"),
    "env.reward.score.reward.function": (OWN, "tests.toy.nitrogens"),
    "env.reward.score.on_failure": (PICKY, "0.125"),
    "policy.network.width": (SYNTHESIS, "16"),
    "policy.network.layers": (SYNTHESIS, "1"),
    "policy.network.heads": ((*SYNTHESIS, "policy=synthesis_transformer"), "2"),
    "policy.key_width": (SYNTHESIS, "16"),
    "policy.fingerprint": (SYNTHESIS, "false"),
    "policy.subsample": (SYNTHESIS, "3"),
    "env.task.letters": (TOKENS, "3"),
    "env.max_tokens": (TOKENS, "2"),
    "env.min_tokens": (TOKENS, "1"),
    "env.temperature": (TOKENS, "0.1"),
    "env.cut_reward": (TOKENS, "-1.0"),
    "backward.reset_every": (PROBLEMS, "1"),
    "env.task.low": (EXPRESSIONS, "20"),
    "env.task.high": (EXPRESSIONS, "12"),
    "policy.temperature": (EXPRESSIONS, "0.5"),
    "policy.pretraining_steps": (EXPRESSIONS, "1"),
    "sampler.sampler.sampler.group_size": (EXPRESSIONS, "8"),
    "sampler.sampler.sampler.averaging": (PROBLEMS, "0.9"),
    "sampler.sampler.sampler.seed": (EXPRESSIONS, "5"),
    "exploration.top_p": (NUCLEUS, "1.0"),
    "exploration.top_k": (NUCLEUS, "1"),
    "env.model": (PROBLEMS, "${oc.env:FGFN_TEST_OTHER_MODEL}"),
    "env.verifier": (PROBLEMS, "tests.small_language_models.answers"),
    "env.stops": (PROBLEMS, "[b]"),
    "env.template": (PROBLEMS, "'1{prompt}'"),
    "env.chat": (PROBLEMS, "true"),
    "env.source.digits": ((*PROBLEMS, "env.source.n=3"), "2"),
    "env.source.n": (PROBLEMS, "3"),
    "env.source.seed": ((*PROBLEMS, "env.source.n=3"), "1"),
    "env.source.prompt": (JSONL, "problem"),
    "env.source.answer": ((*JSONL, "env.verifier=tests.small_language_models.answers"), "solution"),
    "env.source.path": (JSONL, OTHER_QUESTIONS),
    "env.source.limit": (JSONL, "1"),
    "env.source.name": (GYM, "simple_equations"),
    "env.source.size": (GYM, "2"),
    "policy.lora_rank": (PROBLEMS, "1"),
    "policy.lora_alpha": (PROBLEMS, "3.0"),
    "policy.lora_targets": (PROBLEMS, "[q_proj]"),
    "flow.network": ((*SYNTHESIS, "flow=synthesis", "balance=detailed"), "{_target_:envs.synthesis.encoders.GINE}"),
    "backward.edges": (SYNTHESIS, "retro"),
    "backward.weight": (ROUTES, "9.0"),
    "backward.step_cost": (ROUTES, "9.0"),
    "backward.network.width": (LEARNED_EDGES, "16"),
    "backward.network.layers": (LEARNED_EDGES, "1"),
    "env.steps": (DIFFUSION, "4"),
    "env.target.dim": ((*DIFFUSION, "env/target=funnel"), "4"),
    "env.target.n_labels": ((*DIFFUSION, "env/target=conditional"), "3"),
    "env.target.function": (DENSITY, "tests.toy.steep_bowl"),
    "env.target.log_z": (DENSITY, "0.5"),
    "env.target.reach": (DENSITY, "2.0"),
    "policy.process": (DIFFUSION, "{_target_:envs.diffusion.processes.Noising,sigma:3.0}"),
    "policy.learned_variance": (DIFFUSION, "false"),
    "policy.langevin": (DIFFUSION, "false"),
    "policy.langevin_clip": (DIFFUSION, "0.01"),
    "backward.process.sigma": (DIFFUSION, "3.0"),
    "backward.process.power": (BRIDGE, "2.0"),
    "backward.process.rest": (DIFFUSION, "0.1"),
    "env.classes": (DIGITS, "odd"),
    "policy.patch": (DENOISING, "2"),
    "policy.heads": ((*DENOISING, "trainer.lr=0.1"), "2"),
    "objective.decay": (DENOISING, "0.5"),
    "exploration.std": ((*DIFFUSION, "exploration=noise"), "2.0"),
    "logger.metrics.every": ((), "2"),
    "logger.metrics.path": ((), "${run}/other.jsonl"),
    "logger.samples.path": (("logger=default",), "${run}/other.md"),
    "logger.tensorboard.directory": (("logger=default",), "${run}/events"),
    "logger.tensorboard.every": (("logger=default",), "1"),
    "env.reward.floor": (("env/reward=sparse",), "0.5"),
    "env.reward.function": (("env/reward=user", "++env.reward.function=tests.toy.bumps"), "tests.toy.slopes"),
    "env.reward.mode_threshold": (("env/reward=user", "++env.reward.function=tests.toy.bumps"), "3.0"),
}
# Shown to matter elsewhere: run, resume, threads and device (test_cli), name (the run directory, test_cli),
# backward.run (test_configs, test_solution).
ELSEWHERE = {"name", "threads", "device", "resume", "run", "backward.run"}
# Results are the same by design: test_synthesis_determinism (workers), test_libraries (cache, strict), test_seh
# (sha256, batch, device), test_reward_pool and test_reward_cache (how a reward of one's own is computed and kept).
ELSEWHERE |= {"env.workers", "env.cache", "env.strict", "env.rejected"}
ELSEWHERE |= {f"env.reward.{name}" for name in ("sha256", "batch", "device", "path")}
ELSEWHERE |= {f"env.reward.score.{name}" for name in ("workers", "time_limit", "retries", "batch")}
ELSEWHERE |= {f"env.reward.score.reward.{name}" for name in ("takes", "batched", "version")}
# test_memory (remember), test_token_samplers (patience), test_verifiers and test_problems (how completions are verified
# and data sets read), test_exploration (force).
ELSEWHERE |= {"backward.remember", "sampler.sampler.patience", "policy.cache", "policy.model", "exploration.force"}
ELSEWHERE |= {"env.time_limit", "env.retries", "env.on_failure", "env.source.config", "env.source.split"}
ELSEWHERE |= {"env.source.gold"}
# test_asynchronous (fixed_lag, which changes nothing in one process) and test_ray.
ELSEWHERE |= {"sampler.fixed_lag", "sampler.source.fixed_lag"}
ELSEWHERE |= {f"sampler.engine.{name}" for name in ("searchers", "address", "cpus", "gpus")}
ELSEWHERE |= {f"sampler.engine.{name}" for name in ("time_limit", "timeout", "object_store_memory")}
# test_served and test_served_refused.
ELSEWHERE |= {f"sampler.engine.{name}" for name in ("url", "model", "directory", "requests")}
# The gradient is the same by design: test_chunks.
ELSEWHERE |= {"trainer.checkpoint_transitions"}
# The trajectories are the same by design: test_fused.
ELSEWHERE |= {"sampler.fused"}
# One pass over all parameters, or one for each: the same update.
ELSEWHERE |= {"trainer.optimizer.fused"}
# test_trackers.
ELSEWHERE |= {f"logger.wandb.{name}" for name in ("project", "name", "mode", "every", "directory")}
ELSEWHERE |= {f"logger.mlflow.{name}" for name in ("uri", "experiment", "name", "every", "directory")}
# test_digits (data and root) and test_tuned (run, guidance).
ELSEWHERE |= {"env.data", "env.root", "policy.run", "policy.guidance"}


@cache
def fingerprint(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """What a run leaves: the lines of its metrics, and the names of its files with their sizes."""
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        built(directory, *overrides).trainer.run()
        files = sorted(p for p in directory.rglob("*") if p.is_file())
        names = [f"{p.relative_to(directory).parent}/{p.name.split('.')[0]} {_size(p)}" for p in files]
        return (*names, *(p.read_text() for p in files if p.suffix == ".jsonl"))


def _size(path: Path) -> int:
    return path.stat().st_size if "tfevents" in path.name else 0


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files that configs of users point to: weights of the proxy, and templates of their own."""
    folder = tmp_path_factory.mktemp("files")
    names = {"FGFN_TEST_WEIGHTS": write(folder / "one.pkl.gz", random_arrays())}
    names["FGFN_TEST_OTHER_WEIGHTS"] = write(folder / "other.pkl.gz", random_arrays(1))
    names["FGFN_TEST_BLOCKS"] = folder / "blocks.csv"
    names["FGFN_TEST_BLOCKS"].write_text(BLOCKS, encoding="utf-8")
    names["FGFN_TEST_TEMPLATES"] = OWN_TEMPLATES / "acylations.yaml"
    for name, seed in (("MODEL", 0), ("OTHER_MODEL", 1)):
        names[f"FGFN_TEST_{name}"] = write_model(folder / name, seed)
    for name, first in (("QUESTIONS", 0), ("OTHER_QUESTIONS", 5)):
        names[f"FGFN_TEST_{name}"] = write_questions(folder / f"{name}.jsonl", first)
    with pytest.MonkeyPatch.context() as patch:
        for name, path in names.items():
            patch.setenv(name, str(path))
        patch.setenv("FGFN_TEST_CACHE", str(folder / "cache"))
        patch.setattr("envs.diffusion.classifier.UPDATES", 20)
        yield


def _marked(key: str) -> Any:
    """The key; runs of molecules, some seconds each, are slow tests."""
    return pytest.param(key, marks=pytest.mark.slow) if CHANGES[key][0][:1] == SYNTHESIS[:1] else key


@pytest.mark.parametrize("key", map(_marked, CHANGES))
def test_key_changes_something(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    needed, value = CHANGES[key]
    assert key.partition(".")[0] not in {"logger"} or needed or "metrics" in key
    base = tuple(o for o in (*BASE, *needed) if not _overruled(o, needed))
    assert fingerprint(base) == fingerprint(base), "the run itself is not reproducible"
    assert fingerprint((*base, f"++{key}={value}")) != fingerprint(base)


def _overruled(override: str, needed: tuple[str, ...]) -> bool:
    """Whether a basic override gives way to a choice that the key needs."""
    if override in needed:
        return False
    group = override.partition("=")[0].partition(".")[0]
    return any(choice.startswith(f"{group}=") for choice in needed)


def test_no_key_is_forgotten() -> None:
    found: set[str] = set()
    for option in (None, *OPTIONS):
        group, _, name = (option or "").rpartition("/")
        chosen = [f"{group}={name}", *NEEDED.get(option or "", [])] if option else []
        found |= leaves(OmegaConf.to_container(composed(*chosen), resolve=False)).keys()
    constants = {k for k in found if k.endswith(("_target_", "_partial_"))} - {"trainer.optimizer._target_"}
    assert found - constants - ELSEWHERE - CHANGES.keys() == set()
