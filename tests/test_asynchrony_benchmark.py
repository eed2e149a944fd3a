"""The speed of asynchronous training: the simulation against closed forms, and the command on a small scale."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path

import pytest

from experiments.benchmarks import asynchrony, asynchrony_tables
from experiments.benchmarks.asynchrony import DEFAULTS, Store, cases, main, measure, split
from experiments.benchmarks.asynchrony_costs import Transfer
from experiments.benchmarks.asynchrony_runs import Case, Measurement, measured
from experiments.benchmarks.asynchrony_simulation import Costs, simulated
from experiments.benchmarks.asynchrony_tables import Results, draw, written
from experiments.benchmarks.asynchrony_tasks import TASKS, Slow
from experiments.build import checked
from experiments.reports.arguments import composed

SEARCH, UPDATE, GROUPS = 0.6, 1.0, 4  # seconds for a group and for an update, and groups of a batch


@pytest.mark.parametrize("searchers", [1, 2, 4])
def test_without_staleness_searching_and_training_take_turns(searchers: int) -> None:
    pace = simulated(Costs([SEARCH], UPDATE), searchers, 0, GROUPS)
    step = SEARCH * GROUPS / searchers + UPDATE
    assert pace.step == pytest.approx(step)
    assert pace.waited == pytest.approx(1 - UPDATE / step)
    assert pace.idle == pytest.approx(UPDATE / step)
    assert (pace.lag, pace.lag_max) == (0, 0)


@pytest.mark.parametrize("searchers", [1, 2, 3, 8])
def test_with_much_staleness_the_slower_side_decides(searchers: int) -> None:
    """The trainer has 1 update a second; n searchers make batches in 2.4 / n seconds."""
    pace = simulated(Costs([SEARCH], UPDATE), searchers, 30, GROUPS, steps=600)
    assert pace.step == pytest.approx(max(UPDATE, SEARCH * GROUPS / searchers), rel=1e-3)
    assert pace.waited == pytest.approx(max(0.0, 1 - UPDATE * searchers / (SEARCH * GROUPS)), abs=1e-3)
    assert pace.idle == pytest.approx(max(0.0, 1 - SEARCH * GROUPS / (UPDATE * searchers)), abs=1e-3)
    assert pace.lag_max <= 30


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_no_number_of_searchers_helps_beyond_what_may_be_made(staleness: int) -> None:
    """Groups of a batch, 3 s each, begin together; there are s + 1 batches for each time they and an update take."""
    pace = simulated(Costs([3.0], UPDATE), 1000, staleness, GROUPS, steps=600)
    assert pace.step == pytest.approx(max(UPDATE, (3.0 + UPDATE) / (staleness + 1)))
    assert pace.lag == pace.lag_max == staleness


def test_every_cost_counts_where_it_arises() -> None:
    """One searcher and no staleness: all that happens happens in turn; new weights are loaded once a batch."""
    costs = Costs([0.1, 0.3], 1.0, publish=0.05, load=0.02, handoff=0.001, receive=0.004)
    pace = simulated(costs, 1, 0, 2)
    making = 0.1 + 0.3 + 0.02 + 2 * 0.001
    assert pace.step == pytest.approx(1.0 + 0.05 + 2 * 0.004 + making)
    assert pace.waited == pytest.approx(making / pace.step)


@pytest.mark.parametrize(("searchers", "staleness"), list(product([1, 2, 3, 7], [0, 1, 3])))
def test_pace_keeps_bounds(searchers: int, staleness: int) -> None:
    """Searchers are never more than the bound ahead, and nothing is quicker than its slower side."""
    costs = Costs([0.2, 1.3, 0.4], 1.1, publish=0.1, load=0.05)
    pace = simulated(costs, searchers, staleness, 3)
    assert pace.lag <= pace.lag_max <= staleness
    assert pace.step >= max(1.2, 1.9 / searchers) - 1e-9
    assert 0 <= pace.waited < 1
    assert -1e-9 <= pace.idle < 1
    if staleness:
        assert pace.step <= simulated(costs, searchers, staleness - 1, 3).step + 1e-9


def case(name: str, searchers: int, staleness: int, seed: int = 0) -> Case:
    return Case(name, TASKS[name], searchers, staleness, 5, seed)


def run(of: Case, step: float, progress: list[tuple[int, float]]) -> Measurement:
    """Four updates after the first, each with half of its time spent waiting if there are searchers."""
    some = of.searchers > 0
    groups = 5 * of.task.groups if some else 0
    return Measurement(
        case=of, setup=9.0, steps=[step] * 4, publishes=[0.1 * step] * 4 * some, waits=[0.5 * step] * 4 * some,
        searches=[0.25 * step] * groups, lag=1.5, lag_max=3.0, idle=0.25, cpu=2.0, cpu_others=6.0, progress=progress,
        load=1.0,
    )  # fmt: skip


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is simulated."""
    monkeypatch.setattr(asynchrony_tables, "SEARCHERS", (1, 2))
    monkeypatch.setattr(asynchrony_tables, "STALENESS", (0, 4))


RESULTS = Results(
    [
        Transfer("slow", 2.0, [0.01], [0.001], [0.003], [0.002], [0.005], [0.001]),
        Transfer("20 MB", 20.0, [0.02, 0.04], [0.005], [0.01], [], [], [0.001]),
    ],
    [
        run(case("slow", 1, 0), 2.0, [(5, 200.0)]),
        run(case("slow", 0, 0), 2.0, [(3, 100.0), (4, 200.0)]),
        run(case("slow", 2, 4), 0.5, [(4, 100.0), (5, 300.0)]),
        run(case("slow", 0, 0, 1), 2.0, [(5, 100.0)]),
        run(case("slow", 2, 4, 1), 0.4, [(5, 300.0)]),
    ],
)


def cells(text: str, begin: str) -> list[str]:
    """The cells of the one row of a table that begins so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {begin} |")]
    return [part.strip() for part in line.strip("|").split("|")]


def test_costs_are_those_of_the_run_in_turns_and_of_passing_things() -> None:
    costs = RESULTS.costs("slow")
    assert costs.search == pytest.approx([0.5 - 0.001 - 0.004 * (i % 4 == 0) for i in range(16)])
    assert costs.update == pytest.approx(2.0 - 0.2 - 1.0)
    assert (costs.publish, costs.load, costs.handoff, costs.receive) == pytest.approx((0.2, 0.004, 0.001, 0.005))
    assert costs.synchronous == 2.0


@pytest.mark.usefixtures("_few")
def test_tables_have_medians_ratios_and_predictions() -> None:
    text = written(RESULTS)
    made = cells(text, "slow: good_scaffolds 200 | 2 | 4")
    assert made[3:5] == ["0.45 (0.4–0.5)", "4.5 (4–5)"]
    costs = RESULTS.costs("slow")
    assert made[5] == f"{2.0 / simulated(costs, 2, 4, 4).step:.3g}"
    assert made[6:9] == ["50 (50–50)", "25 (25–25)", "1.5 (1.5–1.5), at most 3"]
    assert made[9:11] == ["0.5 (0.5–0.5)", "1.5 (1.5–1.5)"]
    assert made[11:] == ["5 (5–5)", "1.8 (1.6–2)", "3"]
    plain = cells(text, "slow: good_scaffolds 200 | none | –")
    assert plain[3:5] == ["2 (2–2)", "1 (1–1)"]
    assert plain[11:] == ["4 (not in 1 of 2)", "6 (not in 1 of 2)", "1"]
    assert cells(text, "20 MB") == ["20 MB", "20", "30 (20–40)", "5", "10", "1", "–", "–"]
    assert "slow, simulated: staleness" in text


@pytest.mark.usefixtures("_few")
def test_the_figure_has_a_panel_for_each_task(tmp_path: Path) -> None:
    draw(RESULTS, tmp_path / "asynchrony.png")
    assert (tmp_path / "asynchrony.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_stored_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[object]()

    def instead(function: object, *given: object) -> object:
        calls.append(given)
        return RESULTS.runs[0] if function is measured else RESULTS.transfers[0]

    monkeypatch.setattr(asynchrony, "apart", instead)
    store = Store(tmp_path / "asynchrony.json")
    store.runs += RESULTS.runs[1:]
    store.transfers += RESULTS.transfers[1:]
    store.save()
    again = Store(store.path)
    assert (again.runs, again.transfers) == (store.runs, store.transfers)
    todo = [m.case for m in RESULTS.runs]
    assert measure(again, todo, [20], 3) == RESULTS
    assert calls == [("slow", TASKS["slow"], (), 3), (todo[0],)]
    assert Store(store.path).runs == again.runs


def test_runs_are_those_asked_for() -> None:
    given = {**DEFAULTS, "tasks": "tokens,slow", "seeds": "3,4", "calibration": "30", "staleness": "1,4"}
    found = list(cases(given, split(["slow.env.size=60"])))
    assert len(found) == len(set(found)) == (1 + 2 * (1 + 2 * 2)) + (1 + 2 * (1 + 3 * 2))
    turns = [c for c in found if c.searchers and c.staleness == 0]
    assert [(c.name, c.searchers, c.steps, c.seed) for c in turns] == [("tokens", 1, 30, 3), ("slow", 1, 30, 3)]
    assert {c.overrides for c in found if c.name == "slow"} == {("env.size=60",)}
    for c in found[:2]:  # with and without searchers
        checked(composed([*c.config, "run=anywhere"]))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("tasks=grid", "tasks: expected some of tokens, molecules, slow with commas between them, got 'grid'"),
        ("searchers=0", "searchers: expected numbers of at least 1"),
        ("steps=2", "steps: expected at least 3, or 0 for each task's own, got 2"),
        ("nonsense=1", "overrides such as molecules.env.size=200, got nonsense=1"),
        ("molecules.env.sise=60", "env.sise"),
    ],
)
def test_what_does_not_fit_is_told(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks=molecules", argument]) == 2
    assert message in capsys.readouterr().err


def test_a_slow_reward_takes_its_time_and_is_the_same() -> None:
    slow = Slow("qed", 0.01)
    began = time.perf_counter()
    values = slow(["CCO", "c1ccccc1"])
    assert time.perf_counter() - began >= 0.02
    assert values.tolist() == slow.quick(["CCO", "c1ccccc1"]).tolist()


@pytest.mark.slow
def test_the_command_measures_on_a_small_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Molecules with two searchers and without, each in new processes, with all that Ray starts."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    options = [f"out={tmp_path}", "tasks=slow", "searchers=2", "waiting=2", "seeds=0", "steps=4", "megabytes=1"]
    small = ["slow.env.size=60", "slow.env.max_reactions=1", "slow.evaluator.n_samples=8"]
    assert main([*options, "times=2", *small]) == 0
    found = Store(tmp_path / "asynchrony.json")
    assert [(m.case.searchers, m.case.staleness) for m in found.runs] == [(1, 0), (0, 0), (2, 4)]
    for m in found.runs:
        asynchronous = m.case.searchers > 0
        assert len(m.steps) == 3
        assert len(m.publishes) == len(m.waits) == 3 * asynchronous
        assert len(m.searches) >= 16 * asynchronous
        assert sum(m.publishes) + sum(m.waits) < m.seconds
        assert m.lag_max <= m.case.staleness
        assert m.cpu > 0
        assert (m.cpu_others > 0) == asynchronous
        assert [step for step, _ in m.progress] == [1, 2, 3, 4]
    assert found.runs[0].lag == 0
    assert {t.name: len(t.publish) for t in found.transfers} == {"slow": 2, "1 MB": 2}
    assert found.transfers[1].megabytes == pytest.approx(1)
    assert (tmp_path / "asynchrony.png").exists()
