"""Every file in configs/ composes, fits the code and trains; every experiment trains and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from experiments import runs
from experiments.build import checked
from experiments.check import required
from experiments.schema import ConfigError
from tests.composing import CONFIGS, SMALL, built, composed
from tests.small_digits import CACHE as DIGITS_CACHE
from tests.small_digits import write_prior
from tests.small_language_models import write_model, write_questions
from tests.test_seh import random_arrays, write

MOLECULES = ["env=synthesis", "env.size=60", "env.max_reactions=2", "evaluator.n_samples=16"]
CACHE = "policy.cache=${oc.env:FGFN_TEST_CACHE}"
EXPRESSIONS = ["env=tokens", "policy.pretraining_steps=2", CACHE, "sampler.sampler.sampler.group_size=4"]
MODEL = "env.model=${oc.env:FGFN_TEST_MODEL}"
PROBLEMS = [
    "env=problems",
    MODEL,
    "policy.lora_rank=2",
    "evaluator.n_samples=8",
    "evaluator.conditions=2",
    "sampler.sampler.sampler.group_size=4",
]
QUESTIONS = "env.source.path=${oc.env:FGFN_TEST_QUESTIONS}"
TARGETS = ("gaussians25", "gaussians40", "funnel", "many_well", "conditional")
DIGITS = ["env=digits", DIGITS_CACHE, "env.steps=3", "policy.width=8", "evaluator.n_samples=16"]
DIFFUSION = ["env=diffusion", "env.steps=3", "policy.width=8", "evaluator.n_samples=16"]
NEEDED = {  # options that leave a value to the user, or go with others
    "balance/detailed": ["flow=mlp"],
    "balance/sub_trajectory": ["flow=mlp"],
    "balance/flow_matching": ["flow=edges"],
    "partition/flow": ["flow=mlp"],
    "env/custom": ["++env._target_=tests.toy.Subsets"],
    "env/reward/user": ["++env.reward.function=tests.toy.bumps"],
    "divergence/from_generator": ["++divergence.f=tests.toy.generator"],
    "divergence/from_loss": ["++divergence.function=tests.toy.loss"],
    "env/bits": ["env.bits=8"],
    "env/bits_prepend_append": ["env.bits=8"],
    "env/bits_insert": ["env.bits=8"],
    "env/conditional": ["env.env.side=4"],
    "sampler/data": ["++sampler.data=tests.toy.diagonal"],
    "env/synthesis": MOLECULES,
    "env/reward/qed": MOLECULES,
    "env/reward/qed_sa": MOLECULES,
    "env/reward/profile": MOLECULES,
    "env/reward/seh": [*MOLECULES, "env.reward.sha256=null"],
    "env/reward/molecules": [*MOLECULES, "++env.reward.score.reward.function=tests.toy.carbons"],
    "flow/synthesis": [*MOLECULES, "balance=detailed"],
    "policy/synthesis": MOLECULES,
    "policy/synthesis_transformer": MOLECULES,
    "backward/known_edges": MOLECULES,
    "backward/exact_edges": MOLECULES,
    "backward/learned_edges": MOLECULES,
    "backward/cheapest_routes": MOLECULES,
    "env/tokens": EXPRESSIONS,
    "policy/expressions": EXPRESSIONS,
    "backward/reference": EXPRESSIONS,
    "sampler/completions": EXPRESSIONS,
    "exploration/nucleus": [*EXPRESSIONS, "exploration.force=true"],
    "env/problems": PROBLEMS,
    "policy/language_model": PROBLEMS,
    "env/source/additions": PROBLEMS,
    "env/source/jsonl": [*PROBLEMS, QUESTIONS, "env.source.prompt=question"],
    "env/source/gsm8k": [*PROBLEMS, QUESTIONS],
    "env/source/math": [*PROBLEMS, QUESTIONS],
    "env/source/gym": [
        *PROBLEMS,
        "env.verifier={_target_:envs.tokens.verifiers.GymScore}",
        "env.chat=true",
    ],
    "env/source/parquet": [*PROBLEMS, QUESTIONS],
    "env/source/hub": PROBLEMS,
    "sampler/source/on_policy": ["sampler=refreshed"],
    "sampler/source/asynchronous": ["sampler=refreshed"],
    "env/diffusion": DIFFUSION,
    **{f"env/target/{name}": DIFFUSION for name in TARGETS},
    "env/target/user": [*DIFFUSION, "++env.target.function=tests.toy.bowl", "++env.target.dim=3"],
    "policy/diffusion": DIFFUSION,
    "backward/bridge": DIFFUSION,
    "backward/noising": DIFFUSION,
    "exploration/noise": DIFFUSION,
    "backward/noising_images": DIGITS,
    "env/digits": DIGITS,
    "policy/images": DIGITS,
    "policy/tuned": [*DIGITS[:3], "evaluator.n_samples=16"],
    "objective/denoising": [*DIGITS, "sampler=data", "++sampler.data=envs.diffusion.digits.real_images"],
    "logger/wandb": ["logger.wandb.mode=disabled"],
    "logger/mlflow": ["logger.mlflow.uri=${oc.env:FGFN_TEST_CACHE}/mlruns"],
    "sampler/engine/in_process": ["sampler=asynchronous"],
    "sampler/engine/ray": ["sampler=asynchronous"],
    "sampler/engine/vllm": ["env=problems", MODEL, "sampler=asynchronous"],
    **{f"sampler/buffer/{name}": ["sampler=replay"] for name in ("uniform", "reward", "rank", "recent", "mixed")},
}
TREE_ONLY = {"backward/certain"}  # needs a tree
# These need more packages, a network, processes of Ray, or a server: test_problems, test_ray, test_served.
ELSEWHERE_READ = {"env/source/parquet", "env/source/hub", "sampler/engine/ray", "sampler/engine/vllm"}
FILES = sorted(p.relative_to(CONFIGS).with_suffix("").as_posix() for p in CONFIGS.rglob("*.yaml"))
OPTIONS = [f for f in FILES if "/" in f and not f.startswith("experiment/")]
EXPERIMENTS = [f.removeprefix("experiment/") for f in FILES if f.startswith("experiment/")]


OTHERS = ("env=synthesis", "env=tokens", "env=problems", "env=diffusion", "env=digits")


def overrides_for(option: str) -> list[str]:
    group, _, name = option.rpartition("/")
    needed = NEEDED.get(option, [])
    another = bool(needed) and needed[0] in OTHERS  # whose policies are others
    dropped = ("env.", "policy.") if another else ("env.",) if group == "env" and name != "hypergrid" else ()
    small = [o for o in SMALL if not o.startswith((*dropped, f"{group}="))]
    return [*(needed[:1] if another else []), f"{group}={name}", *needed[another:], *small]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights for the proxy, as users bring one."""
    return write(tmp_path_factory.mktemp("weights") / "proxy.pkl.gz", random_arrays())


@pytest.fixture(scope="module", autouse=True)
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder with a language model, questions for it, and a cache to keep another in."""
    folder = tmp_path_factory.mktemp("language")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FGFN_TEST_MODEL", str(write_model(folder / "model")))
        patch.setenv("FGFN_TEST_QUESTIONS", str(write_questions(folder / "questions.jsonl")))
        patch.setenv("FGFN_TEST_CACHE", str(folder / "cache"))
        patch.setattr("envs.diffusion.classifier.UPDATES", 20)
        yield


@pytest.fixture(scope="module")
def digits_prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that experiments on digits begin with."""
    return write_prior(tmp_path_factory.mktemp("digits") / "prior")


def test_no_config_is_forgotten() -> None:
    assert len(OPTIONS) + len(EXPERIMENTS) + sum("/" not in f for f in FILES) == len(FILES)
    assert {f for f in FILES if "/" not in f} == {"train", "evaluate", "sample", "check", "export"}


@pytest.mark.parametrize("option", OPTIONS)
def test_option_fits_the_code_and_trains(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    if option in TREE_ONLY | ELSEWHERE_READ:
        checked(composed(*overrides_for(option)))
        return
    given = [f"env.reward.weights={weights}"] if option == "env/reward/seh" else []
    if option == "policy/tuned":
        given = [f"policy.run={request.getfixturevalue('digits_prior')}"]
    if option == "backward/prior":
        built(tmp_path / "before", *SMALL, "trainer.save_every=1").trainer.run()
        config = OmegaConf.to_yaml(composed(*SMALL, run=str(tmp_path / "before")), resolve=True)
        (tmp_path / "before" / "config.yaml").write_text(config, encoding="utf-8")
        given = [f"backward.run={tmp_path / 'before'}"]
    report = built(tmp_path, *overrides_for(option), *given).trainer.run()
    assert report is not None
    assert report.step == 3


@pytest.mark.parametrize("config", ["train", "check"])
def test_main_config_fits_the_code(config: str) -> None:
    if config == "train":
        checked(composed())
    else:
        assert required(composed(config="check")).keys() == {"env", "n", "seed", "threads"}
        bringing = composed("env=tokens", config="check")  # it sets a sampler, too
        assert required(bringing).keys() == {"env", "policy", "backward", "n", "seed", "threads"}


QUICK = (
    "grid/tb_8x2", "grid/subtb_12", "grid/ftb_annealed", "grid/ppo_8x2", "bits/append_120", "synthesis/tiny",
    "tokens/expressions", "diffusion/gaussians25", "digits/prior",
)  # fmt: skip


def _marked(experiment: str) -> Any:
    """The experiment; slow tests but for one of each kind, the smallest."""
    return experiment if experiment in QUICK else pytest.param(experiment, marks=pytest.mark.slow)


@pytest.mark.parametrize("experiment", map(_marked, EXPERIMENTS))
def test_experiment_trains_two_steps_and_resumes(
    experiment: str, tmp_path: Path, weights: Path, request: pytest.FixtureRequest
) -> None:
    common = [f"experiment={experiment}", "logger=quiet", "logger.metrics.every=1", "evaluator.n_samples=16"]
    small = {
        "tokens/expressions": ["policy.pretraining_steps=2", CACHE, "evaluator.n_samples=32"],
        "tokens/additions": [MODEL, "evaluator.conditions=8"],
    }
    common += small.get(experiment, [])
    if experiment.startswith("digits/"):
        common += [DIGITS_CACHE, "env.steps=3"]
        given = "" if experiment == "digits/prior" else request.getfixturevalue("digits_prior")
        common += [f"policy.run={given}"] if given else ["policy.width=8"]
    if experiment.startswith("bits/"):
        common += ["evaluator.test_states=4", "evaluator.backward_samples=1"]
    if "seh" in composed(*common).env.get("reward", {}).get("_target_", "").lower():
        common += [f"env.reward.weights={weights}", "env.reward.sha256=null"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for directory, steps in ((whole, (2,)), (halves, (1, 2))):
        for last in steps:
            run = built(directory, *common, f"trainer.steps={last}", "evaluator.every=2")
            directory.mkdir(exist_ok=True)
            runs.prepare(run, directory, [])
            run.trainer.run()
    # The first half evaluates at its own end, which a longer run does not; training lines are the same.
    lines = [list((d / "metrics.jsonl").read_text().splitlines()) for d in (whole, halves)]
    assert lines[0][-1] == lines[1][-1]
    config = yaml.safe_load((whole / "config.yaml").read_text())
    assert config["name"] in experiment.replace("/", "_")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective=ppo", "sampler=target"], "use sampler=on_policy or sampler=repeated, or objective=ftb"),
        (["objective=rloo", "sampler=local_search"], "walks backward"),
        (["objective=reinforce", "sampler=replay", "sampler.reexpand=true"], "walks backward"),
        (["objective.importance=0.5", "sampler=target"], "use importance=0"),
        (["objective=grpo", "sampler.group_size=1"], "needs at least 2 in each, got 1"),
        (["balance=detailed"], "use flow=mlp, or balance=trajectory"),
        (["balance=flow_matching", "flow=mlp"], "use flow=edges"),
        (["partition=flow"], "use flow=mlp, or partition=learned"),
    ],
)
def test_combinations_without_sense_name_the_nearest_choice(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, *SMALL, *overrides)


def test_group_without_target_and_unknown_keys_are_all_told() -> None:
    bad = composed(
        "++env.sidee=3",
        "++trainer.steps=abc",
        "++stepz=1",
        "++divergence.alpha=nonsense",
        "++partition._target_=gfn.Nope",
        "++seed=1.5",
        "++resume=maybe",
        "++threads=0",
    )
    with pytest.raises(ConfigError) as caught:
        checked(bad)
    text = str(caught.value)
    for place in (
        "env.sidee",
        "trainer.steps",
        "stepz",
        "divergence.alpha",
        "partition._target_",
        "seed",
        "resume",
        "threads",
    ):
        assert f"  {place}: " in text, place
    assert "did you mean side?" in text
    assert "auto or never" in text
