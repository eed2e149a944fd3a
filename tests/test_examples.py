"""Examples of what a policy samples: which are shown, as what text, and where they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from envs.hypergrid import Hypergrid
from gfn.callbacks import SampleTable, TensorBoard
from gfn.evaluation import Evaluator
from gfn.examples import Example, examples, table
from gfn.objectives import Alpha, LearnedLogZ, Objective
from gfn.policies import Uniform, UniformBackward
from gfn.sampling import rollout
from gfn.training import Report
from tests.toy_environments import Palindromes
from tests.trainers import Recorder, parts_of, small_trainer

SHOWN = (Example("(3, 3)", 0.5, True), Example("(0, 1)", -float("inf"), False))
ROWS = "| chosen | log reward | state |\n|---|---|---|\n| best | 0.5 | `(3, 3)` |\n| random | -inf | `(0, 1)` |\n"


def sampled(n: int, groups: int, env: Any = None) -> Any:
    env = Hypergrid(4, 2) if env is None else env
    group = torch.arange(n) * groups // n
    return rollout(
        env, Uniform(env.forward_mask), env.reset(n), group=group, generator=torch.Generator().manual_seed(0)
    )


def cell(text: str) -> str:
    return table([Example(text, 0.0, True)]).splitlines()[2].removeprefix("| best | 0 | ").removesuffix(" |")


def test_half_are_the_best_that_differ_and_half_the_first() -> None:
    env, t = Hypergrid(4, 2), sampled(60, 1)
    shown = examples(env, t)
    assert [e.best for e in shown] == [True] * len(shown[:-8]) + [False] * 8
    order = sorted(range(60), key=lambda i: -float(t.log_reward[i]))[:32]  # stable: ties are in order
    texts, values = env.describe(t.final), t.log_reward.tolist()
    best = list(dict.fromkeys(texts[i] for i in order))[:8]
    assert 4 < len(best) < 9
    assert [e.state for e in shown] == best + texts[:8]
    assert [e.log_reward for e in shown] == [values[texts.index(text)] for text in best] + values[:8]
    assert len({e.log_reward for e in shown}) > 1


def test_every_group_has_its_share() -> None:
    env, t = Hypergrid(4, 2), sampled(80, 4)
    shown = examples(env, t)
    for g in range(4):
        own = t[t.group == g]
        texts, values = env.describe(own.final), own.log_reward.tolist()
        tried = sorted(range(20), key=lambda i: -values[i])[:8]
        best = list(dict.fromkeys(texts[i] for i in tried))[:2]
        part, shown = shown[: len(best) + 2], shown[len(best) + 2 :]
        assert [e.state for e in part] == best + texts[:2]
        assert [e.best for e in part] == [True] * len(best) + [False] * 2
        assert part[0].log_reward == max(values)
    assert shown == []


@pytest.mark.parametrize(("n", "groups", "share"), [(80, 20, 1), (3, 1, 8), (12, 1, 8), (4, 2, 4)])
def test_there_are_no_more_than_were_sampled(n: int, groups: int, share: int) -> None:
    env, t = Hypergrid(4, 2), sampled(n, groups)
    shown, size, few = examples(env, t), n // groups, min(groups, 8)
    distinct = [len(set(env.describe(t[t.group == g].final))) for g in range(few)]
    assert sum(e.best for e in shown) == sum(min(count, share) for count in distinct)
    assert sum(not e.best for e in shown) == few * min(size, share)


def test_states_of_any_kind_are_shown() -> None:
    """Three letters read alike from both ends are worth one: of the 32 best, the four that there are."""
    env = Palindromes()
    shown = examples(env, sampled(90, 1, env))
    assert sorted(e.state for e in shown if e.best) == ["aaa", "aba", "bab", "bbb"]
    assert sum(not e.best for e in shown) == 8


def test_looking_at_examples_changes_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Hypergrid(4, 2)
    objective = Objective(Uniform(env.forward_mask), UniformBackward(env), Alpha(1.0), LearnedLogZ(0.0))
    evaluator = Evaluator(env, objective)
    assert evaluator.examples == ()
    with_them = evaluator(3)
    assert sum(not e.best for e in evaluator.examples) == 8
    monkeypatch.setattr("gfn.evaluation.examples", lambda *_: [])
    assert evaluator(3) == with_them


def test_cells_show_any_text_as_it_is() -> None:
    assert table(SHOWN) == ROWS
    assert cell("a|b") == "`a\\|b`"
    assert cell("C[C@H](N)C(=O)O *x* <b>") == "`C[C@H](N)C(=O)O *x* <b>`"
    assert cell("one\ntwo\r\nthree\u2028") == "`one⏎two⏎⏎three⏎`"
    assert cell("a\tb\x00\ud800\x1b[0m") == "`a b��\ufffd[0m`"
    assert cell("a`b") == "`` a`b ``"
    assert cell("``a") == "``` ``a ```"
    assert cell("") == ""
    assert cell("x" * 1000) == f"`{'x' * 1000}`"
    assert cell("x" * 1001) == f"`{'x' * 999}…`"


def test_a_run_leaves_the_table_of_its_last_evaluation(tmp_path: Path) -> None:
    path, recorder = tmp_path / "run" / "samples.md", Recorder()
    trainer = small_trainer(steps=5, evaluate_every=2, callbacks=[SampleTable(path), recorder])
    trainer.run()
    assert [sum(not e.best for e in r.examples) for r in recorder.reports] == [0, 8, 0, 8, 8]
    assert recorder.reports[1].examples != recorder.reports[3].examples
    assert trainer.evaluator is not None
    last = recorder.reports[-1].examples
    assert last == trainer.evaluator.examples
    assert path.read_text(encoding="utf-8") == f"# Samples after update 5\n\n{table(last)}"
    assert parts_of(path.parent) == ["samples.md"]


def test_a_crash_while_writing_leaves_the_table_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "samples.md"
    samples = SampleTable(path)
    samples.start(0)
    samples(Report(1, 9, 8, {}, {"tv": 0.5}, SHOWN))
    before = path.read_text(encoding="utf-8")

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    for where in ("os.replace", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(where, crash)
            with pytest.raises(KeyboardInterrupt):
                samples(Report(2, 9, 16, {}, {"tv": 0.5}, SHOWN[:1]))
        assert path.read_text(encoding="utf-8") == before == f"# Samples after update 1\n\n{ROWS}"


def test_tensorboard_shows_the_table_as_text(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, every=5)
    board.start(0)
    board(Report(1, 9, 8, {"loss": 1.0}, {"tv": 0.5}, SHOWN))
    board(Report(5, 9, 40, {"loss": 1.0}, None))
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Tensors("samples/text_summary")
    assert (event.step, event.tensor_proto.string_val[0].decode()) == (1, ROWS)
