"""Language models from settings: what fits is built, what does not is told in one sentence before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from envs.tokens.build import language_model, problems
from envs.tokens.exploration import Nucleus
from envs.tokens.language_model import LanguageModel
from envs.tokens.next_token import NextToken
from envs.tokens.sources import additions
from envs.tokens.verifiers import exact_answer
from experiments.schema import ConfigError
from gfn.distributions import MaskedCategorical
from gfn.environment import RewardError
from gfn.policies import MLPPolicy
from tests.composing import built
from tests.small_language_models import CHARACTERS, write_model

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.05, 0.1, 0.8]], dtype=torch.float64).log()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_parts_fit_one_another(model: str) -> None:
    env = problems(model, additions(n=3), exact_answer, stops=["a", "\n"], max_tokens=4, template="q{prompt}")
    assert env.n_actions == len(CHARACTERS)
    assert env.task.stop_ids == (CHARACTERS.index("a"), CHARACTERS.index("\n"))
    assert all(env.task.text(prompt).startswith("q") for prompt in env.task.prompts)
    adapted, whole = (language_model(env, model, lora_rank=rank) for rank in (2, 0))
    trained = [sum(p.numel() for p in policy.parameters() if p.requires_grad) for policy in (adapted, whole)]
    assert 0 < trained[0] < trained[1] == sum(p.numel() for p in whole.parameters())
    states = env.reset(5, torch.Generator().manual_seed(0))
    assert torch.equal(adapted.distribution(states).logits, whole.distribution(states).logits)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.model=/no/such/folder"], r"/no/such/folder: expected a folder, and there is none; check env\.model"),
        (["env.stops=[ab]"], r"stops: 'ab' is 2 tokens, and only token ids can stop a completion"),
        (["env.stops=[1000]"], r"stops: 1000 is outside the vocabulary of \d+ tokens"),
        (["env.max_tokens=250"], r"over the limit of 6; .*context"),
        (["env.template=none"], r"template has no \{prompt\}"),
        (["sampler.sampler.sampler.group_size=1"], r"needs at least 2 trajectories in each, got 1"),
        (["exploration=nucleus"], r"insist with exploration\.force=true"),
        (["policy=expressions"], r"policy=expressions is the language model of the task Expressions"),
        (["policy.lora_targets=[lm_head]"], r"lm_head is an embedding or the output head"),
        (["env/source=jsonl", "env.source.path=/no/file.jsonl"], r"/no/file\.jsonl: there is no such file"),
        (["env.verifier=tests.nothing.at_all"], r"env\.verifier"),
    ],
)
def test_what_does_not_fit_is_told(overrides: list[str], message: str, model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, "env=problems", f"env.model={model}", "logger=quiet", *overrides)


def test_networks_on_features_are_refused_for_large_vocabularies(model: str) -> None:
    env = problems(model, additions(n=3), exact_answer, stops=["\n"], max_tokens=60)
    env.n_features = 60 * 49_153
    with pytest.raises(ValueError, match=r"2949180 features of Tokens .*objective\.value=null"):
        MLPPolicy(env)


def test_malformed_lines_are_told_by_their_numbers(model: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "1", "answer": "1"}\n{"prompt": "2"}\nnonsense\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        built(tmp_path, "env=problems", f"env.model={model}", "env/source=jsonl", f"env.source.path={path}")
    text = str(caught.value)
    assert "line 2" in text
    assert "line 3" in text


def test_a_model_of_another_vocabulary_is_refused(model: str, tmp_path: Path) -> None:
    env: Any = problems(model, additions(n=3), exact_answer, stops=["\n"])
    env.n_actions += 1
    with pytest.raises(ValueError, match=rf"the model predicts {len(CHARACTERS)} tokens and the task has"):
        LanguageModel(env, language_model(problems(model, additions(n=3), exact_answer), model).model)


def test_training_that_cuts_everything_stops_with_advice(model: str, tmp_path: Path) -> None:
    run = built(
        tmp_path, "env=problems", f"env.model={model}", "logger=quiet", "env.max_tokens=2", "env.min_tokens=1",
        "env.stops=['</s>']", "sampler.sampler.patience=1", "sampler.sampler.sampler.group_size=4",
        "sampler.batch_size=4", "evaluator.every=100",
    )  # fmt: skip
    with pytest.raises(RewardError, match=r"all sequences of 1 batches in a row.*max_tokens"):
        run.trainer.run()


def test_nucleus_keeps_the_fewest_that_hold_the_share() -> None:
    for top_p, top_k, kept in ((0.5, None, [1, 1]), (0.51, None, [2, 1]), (0.79, None, [2, 1]), (1.0, 3, [3, 3])):
        nucleus = Nucleus(top_p, top_k, force=True)(NextToken(LOGITS), 0)
        assert isinstance(nucleus, NextToken)
        assert (nucleus.logits > -torch.inf).sum(1).tolist() == kept
        best = LOGITS.argmax(1)
        assert torch.equal(nucleus.logits.argmax(1), best)
        share = nucleus.logits.exp().sum(1)
        assert torch.allclose(nucleus.log_prob(best).exp(), LOGITS.exp().amax(1) / share)


def test_nucleus_refuses() -> None:
    with pytest.raises(ValueError, match=r"without full support.*exploration\.force=true"):
        Nucleus(0.9)
    with pytest.raises(ValueError, match=r"got top_p=0\.0"):
        Nucleus(0.0, force=True)
    with pytest.raises(TypeError, match="needs the next tokens of a language model, got MaskedCategorical"):
        Nucleus(force=True)(MaskedCategorical(LOGITS, -torch.inf < LOGITS), 0)
