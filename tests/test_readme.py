"""Every command of the README does what it says: its config fits the code, and, shrunk, it runs."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException

from experiments.build import build, checked
from experiments.check import required
from experiments.reports.arguments import composed
from gfn.training import never
from tests import composing
from tests.small_digits import CACHE as DIGITS_CACHE
from tests.small_digits import write_prior
from tests.small_language_models import write_model, write_questions
from tests.test_seh import random_arrays, write
from tests.toy import README

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CODE = re.compile(r"^```bash\n(.*?)^```|((?:^    \S.*\n)+)", re.MULTILINE | re.DOTALL)
COMMANDS = ("gfn-", "python -m", "pip ", "jupyter ", "eval ", "ruff", "pyright", "lint-imports")
# What stands for things that only a user has, and what makes a run short.
STANDING_IN = {
    "catalogue.csv": "{files}/blocks.csv",
    "rejected.csv": "{files}/rejected.csv",
    "best_params.pkl.gz": "{files}/weights.pkl.gz",
    "my_rewards.score": "tests.toy.carbons",
    "my_env.": "tests.toy.",
    "Qwen/Qwen2.5-0.5B": "{files}/model",
    "/my/model": "{files}/model",
    "train.jsonl": "{files}/questions.jsonl",
    "mine.jsonl": "{files}/mine.jsonl",
    "my_file.verify": "tests.small_language_models.vowels",
}
SHORT = ("trainer.steps=2", "evaluator.n_samples=32", "evaluator.every=1", "logger=quiet")
SHORTER: dict[str, tuple[str, ...]] = {  # by what the command has
    "experiment=grid/tb_8x4": ("evaluator.exact=false",),
    "env.ndim=4": ("evaluator.exact=false",),
    "synthesis": ("env.max_reactions=2", "evaluator.n_samples=8", "sampler.batch_size=8", "policy.network.width=16"),
    "env=synthesis env": ("env.blocks={files}/blocks.csv",),
    "synthesis/ftb": ("env.blocks={files}/blocks.csv", "env.size=null", "env.reward.sha256=null"),
    "synthesis/qed": ("env.blocks={files}/blocks.csv", "env.size=null"),
    "env=tokens": ("policy.pretraining_steps=2",),
    "tokens/expressions": ("policy.pretraining_steps=2",),
    "tokens/additions": ("env.model={files}/model", "policy.lora_rank=2", "evaluator.conditions=8"),
    "env=problems": ("evaluator.conditions=2", "evaluator.n_samples=8", "env.max_tokens=4", "env.temperature=1.0"),
    "digits/": (DIGITS_CACHE, "env.steps=3", "evaluator.n_samples=16", "sampler.batch_size=8"),
    "digits/prior": ("policy.width=8",),
    "digits/even": ("policy.run={files}/prior",),
    "logger=wandb": ("logger=wandb", "logger.wandb.mode=disabled", "~logger.tensorboard"),
}


@dataclass(frozen=True)
class Line:
    """A command: its words, without comments, and whether it is for several runs."""

    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    def overrides(self) -> list[list[str]]:
        """The overrides of each run of a ``gfn-train``, sweeps spelled out; those of Hydra itself apart."""
        given = [word for word in self.words[1:] if word != "-m" and not word.startswith("hydra")]
        if "-m" not in self.words:
            return [given]
        pairs = [word.partition("=") for word in given]
        choices = [[f"{key}={value}" for value in values.split(",")] for key, _, values in pairs]
        return [list(combination) for combination in itertools.product(*choices)]


def lines() -> Iterator[Line]:
    """Every command of the README, loops of a shell spelled out for their first value."""
    for block in CODE.finditer(README):
        for text in (block.group(1) or block.group(2)).splitlines():
            for part in text.split(" && "):
                stripped = part.strip().replace("$lr", "cosine:1e-4:2e-6")
                if stripped.startswith(COMMANDS):
                    words = shlex.split(stripped, comments=True)
                    yield Line(tuple(words))


LINES = list(dict.fromkeys(lines()))
TRAINED = [line for line in LINES if line.words[0] == "gfn-train" and not {"--help", "-sc"} & set(line.words)]
# Runs that go on are shown by test_cli, Ray's processes by test_ray.
RUN = [line for line in TRAINED if " run=" not in line.text and "engine=ray" not in line.text]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands take from their user."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "blocks.csv").write_text("smiles,id,price\nC1CNCCN1,a,3\nO=C(O)c1ccccc1,c,1\nNCc1ccccc1,d,2\nNCCN,e,1\n")
    write(folder / "weights.pkl.gz", random_arrays())
    write_model(folder / "model")
    write_questions(folder / "questions.jsonl")
    (folder / "mine.jsonl").write_text('{"prompt": "ab", "answer": "a"}\n{"prompt": "ba", "answer": "e"}\n')
    return folder


def test_commands_are_found() -> None:
    assert len(TRAINED) > 25
    assert {line.words[0] for line in LINES} >= {
        "gfn-train",
        "gfn-eval",
        "gfn-sample",
        "gfn-check",
        "gfn-export",
        "pip",
    }


@pytest.mark.parametrize("line", TRAINED, ids=lambda line: line.text)
def test_trained_configs_fit_the_code(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    own = [(name, here) for name, here in STANDING_IN.items() if "{" not in here]
    checked(composed([_replaced(word, own) for word in line.overrides()[0]]))


def _replaced(word: str, pairs: list[tuple[str, str]]) -> str:
    for name, here in pairs:
        word = word.replace(name, here)
    return word


@pytest.mark.slow
@pytest.mark.parametrize("line", RUN, ids=lambda line: line.text)
def test_trained_commands_run(
    line: Line, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    monkeypatch.setenv("XDG_CACHE_HOME", str(files / "cache"))
    monkeypatch.setenv("FGFN_TEST_CACHE", str(files / "cache"))
    monkeypatch.setattr("envs.diffusion.classifier.UPDATES", 20)
    if "digits/even" in line.text and not (files / "prior").exists():
        write_prior(files / "prior")
    given = [_replaced(word, list(STANDING_IN.items())) for word in line.overrides()[0]]
    shorter = [value for name, values in SHORTER.items() if name in line.text for value in values]
    overrides = [
        word.replace("{files}", str(files)) for word in (*given, *SHORT, *shorter) if not word.startswith("run=")
    ]
    config = composed(overrides)
    if "trainer.steps=0" in given:
        config.trainer.steps = 0
    run = build(config, tmp_path, never)
    report = run.trainer.run()
    assert (report is None) == (config.trainer.steps == 0)


def test_other_commands_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    for line in LINES:
        first, *rest = line.words
        if first == "pip":
            extras = re.findall(r"\[(\w+)\]", line.text)
            assert set(extras) <= PROJECT["optional-dependencies"].keys(), line.text
        elif first.startswith("gfn-"):
            assert first in PROJECT["scripts"], line.text
        elif first == "python":
            assert importlib.util.find_spec(rest[1]) is not None, line.text
        elif first == "jupyter":
            assert (ROOT / rest[1]).is_file(), line.text
    for extra in re.findall(r"'fgfn\[(\w+)\]'", README):
        assert extra in PROJECT["optional-dependencies"], extra
    for figure in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / figure).is_file(), figure
    for name in re.findall(r"`(notebooks/\w+\.ipynb)`", README):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize(
    "line",
    [line for line in LINES if line.words[0] in ("gfn-eval", "gfn-sample", "gfn-export", "gfn-check")],
    ids=lambda line: line.text,
)
def test_settings_of_other_commands_fit(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments import evaluate, export, sample

    monkeypatch.setenv("GFN_TRUST", "tests")
    name = {"gfn-eval": "evaluate", "gfn-sample": "sample", "gfn-export": "export", "gfn-check": "check"}[line.words[0]]
    given = [
        _replaced(word, [("my_env.MyEnv", "tests.toy.Subsets"), ("my_env.", "tests.toy."), ("…", "x")])
        for word in line.words[1:]
    ]
    config = composing.composed(*(word if word.startswith("env=") else f"++{word}" for word in given), config=name)
    if name == "check":
        assert required(config)["env"]["_target_"] == "tests.toy.Subsets"
        return
    settings = {"evaluate": evaluate.SETTINGS, "sample": sample.SETTINGS, "export": export.SETTINGS}[name]
    checked(config, (), settings)


def test_a_command_that_does_not_fit_is_noticed() -> None:
    with pytest.raises((HydraException, ValueError)):
        checked(composed(["env=hypergrid", "env.sidee=3"]))
    assert Line(("gfn-train", "-m", "a=1,2", "hydra/launcher=joblib", "b=3")).overrides() == [
        ["a=1", "b=3"],
        ["a=2", "b=3"],
    ]
