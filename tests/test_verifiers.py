"""Which completions are right, and verifiers that fail in every way."""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.tokens.sources import gym
from envs.tokens.verified import Verified, outcome_of
from envs.tokens.verifiers import (
    GymScore,
    MathVerify,
    boxed,
    boxed_answer,
    calls_nothing,
    exact_answer,
    extracted,
    number,
)
from gfn.environment import RewardError
from gfn.workers import Failure

EXACT = [
    # numbers by value
    ("18", "18", 1),
    (" 18\n", "18", 1),
    ("18.", "18", 1),
    ("18.00", "18", 1),
    ("$18", "18", 1),
    ("+18", "18", 1),
    ("018", "18", 1),
    ("1,234", "1234", 1),
    ("1234", "1,234", 1),
    ("$1,234,567.50.", "1234567.5", 1),
    ("-3", "-3", 1),
    ("−3", "-3", 1),
    ("-$3", "-3", 1),
    ("$-3", "-3", 1),
    ("3", "-3", 0),
    ("-0", "0", 1),
    ("0.5", ".5", 1),
    ("0.50", "0.5", 1),
    ("0.3333", "0.33333", 0),
    ("1,2", "12", 0),
    ("1,23", "123", 0),
    ("12,34,567", "1234567", 0),
    ("18..", "18", 0),
    ("1 8", "18", 0),
    ("--18", "18", 0),
    ("1e1", "10", 0),
    ("١٨", "18", 0),
    ("18%", "18", 0),
    ("1/2", "0.5", 0),
    # where the answer stands
    ("3 * 6 = 18", "18", 1),
    ("I add.\n#### 18", "18", 1),
    ("####18", "18", 1),
    ("So the Answer is 18.", "18", 1),
    ("the answer is: $18", "18", 1),
    ("9 = 9\n#### 18", "18", 1),
    # text after it, several, none
    ("#### 18 dollars", "18", 0),
    ("#### 18\nNext question", "18", 0),
    ("#### 18 = 18", "18", 0),
    ("the answer is 18, I think", "18", 0),
    ("= 18 or 17", "18", 0),
    ("18 17", "18", 0),
    ("17 or 18", "18", 0),
    ("so 17 or 18", "18", 0),
    ("so 18", "18", 0),
    ("#### 17 #### 18", "18", 1),
    ("#### 18 #### 17", "18", 0),
    ("= 18 #### 17", "18", 0),
    ("the answer is 18 = 17", "18", 0),
    ("", "18", 0),
    ("  ", "18", 0),
    ("####", "18", 0),
    ("", "", 0),
    ("#### ", "", 0),
    # text
    ("Paris", "Paris", 1),
    (" Paris \n", "Paris", 1),
    ("the answer is Paris", "Paris", 1),
    ("paris", "Paris", 0),
    ("Paris.", "Paris", 0),
    ("Paris or Rome", "Paris", 0),
    ("x = 5", "x = 5", 1),
    ("#### x = 5", "x = 5", 1),
    ("x = 5", "5", 1),
    ("x=5", "x = 5", 0),
]


@pytest.mark.parametrize(("completion", "answer", "value"), EXACT)
def test_exact_answers(completion: str, answer: str, value: float) -> None:
    assert exact_answer(completion, answer) == value


def test_huge_numbers_are_told_apart() -> None:
    assert number("9" * 5000) != number("9" * 4999 + "8")
    assert number("$") is number(".") is number("") is number("-") is None


def test_what_is_read_from_a_completion() -> None:
    assert extracted("a = b = 3 ") == "3"
    assert extracted("x #### 1 #### 2 = 3") == "2 = 3"
    assert extracted("the answer is 4. No, the answer is 5.") == "5."
    assert extracted(" as it is ") == "as it is"


BOXES = [
    (r"\boxed{18}", "18"),
    (r"so $\boxed{ \frac{1}{2} }$.", r"\frac{1}{2}"),
    (r"\boxed{1} and \boxed{2}", "2"),
    (r"\boxed{\boxed{3}}", "3"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
    (r"\boxed {4}", "4"),
    (r"\fbox{5}", "5"),
    (r"$\boxed 6$", "6"),
    (r"\boxed{}", ""),
    (r"\boxed{7", None),
    (r"\boxed{1} \boxed{2", None),
    (r"\boxed", None),
    (r"\boxedness{8}", None),
    ("9", None),
]


@pytest.mark.parametrize(("text", "content"), BOXES)
def test_boxes(text: str, content: str | None) -> None:
    assert boxed(text) == content
    assert boxed_answer(text, content or "0") == bool(content)
    assert boxed_answer(text, "another") == 0.0


MATHEMATICS = [
    ("0.5", r"\frac{1}{2}", 1),
    (r"thus \boxed{\frac12}.", "1/2", 1),
    (r"\boxed{x^2+2x+1}", "(x+1)^2", 1),
    (r"\boxed{\{2, 1\}}", r"\{1,2\}", 1),
    ("#### 1,000", "1000", 1),
    ("so 17 or 18", "18", 0),
    (r"\boxed{17 or 18}", "18", 0),
    (r"\boxed{17, 18}", "18", 0),
    ("18} or {17", "18", 0),
    (r"\boxed{18", "18", 0),
    (r"\boxed{18} or \boxed{17}", "18", 0),
    (r"\boxed{}", "18", 0),
    ("", "18", 0),
]


@pytest.mark.parametrize(("completion", "answer", "value"), MATHEMATICS)
def test_mathematics(completion: str, answer: str, value: float) -> None:
    assert MathVerify()(completion, answer) == value


def test_an_answer_without_mathematics_is_no_wrong_completion() -> None:
    with pytest.raises(ValueError, match="cannot read the answer ''"):
        MathVerify()("18", "")


def entry_of(answer: str) -> str:
    return json.loads(answer)["answer"]


@pytest.mark.parametrize(
    "name", ["chain_sum", "gsm_symbolic", "countdown", "spiral_matrix", "cryptarithm", "rush_hour"]
)
def test_a_generator_accepts_its_answers_and_no_longer_text(name: str) -> None:
    score = GymScore()
    for problem in gym(name, size=2, seed=3):
        right = entry_of(problem.answer)
        if right is None:  # it has rules, and no answer of its own
            assert score("nonsense", problem.answer) == 0.0
            continue
        assert score(right, problem.answer) == score(f"I think\n#### {right}", problem.answer) == 1.0
        for wrong in (f"{right} or else", f"17 {right}", f"It is {right}", "", "nonsense"):
            assert score(wrong, problem.answer) == 0.0


def test_numbers_of_a_generator_count_by_value() -> None:
    problem = gym("gsm_symbolic", size=1, seed=0)[0]
    right = entry_of(problem.answer)
    score = GymScore()
    for text in (f"${right}.00", f"1 + 1 = {right}", f"the answer is {right}."):
        assert score(text, problem.answer) == 1.0
    assert score(f"{right} and a half", problem.answer) == score(f"{right}1", problem.answer) == 0.0


def test_an_answer_of_one_s_own_counts() -> None:
    """Countdown has many right answers; turned around, one is still right."""
    problem = next(p for p in gym("countdown", size=20, seed=0, min_numbers=3, max_numbers=3) if " - " not in p.answer)
    right = entry_of(problem.answer)
    other = f"({right})"
    assert GymScore()(other, problem.answer) == GymScore()(f"#### {other}", problem.answer) == 1.0
    assert GymScore()(f"{other} + 0", problem.answer) == 0.0, "it uses a number that is not there"


def test_completions_are_not_run(tmp_path: Path) -> None:
    """A generator would run this program; its score does not let it."""
    from reasoning_gym import create_dataset

    problem = gym("spiral_matrix", size=1, seed=0)[0]
    mark = tmp_path / "mark"
    program = f"[open('{mark}', 'w')]"
    assert GymScore()(program, problem.answer) == 0.0
    assert not mark.exists()
    generator = create_dataset("spiral_matrix", size=1, seed=0)
    generator.score_answer(program, generator[0])
    assert mark.exists()


COMPUTING = [
    "(1 + 2)*3",
    "[1, (2)]",
    "sin(x)**2 + C",
    "x**2*exp(x)",
    "2.5 - (3)",
    "_ Q _\nQ _ _",
    "A=(1)",
    "1.5*atan(x)",
]
CALLING = [
    "open('x')",
    "open ('x')",
    "(open)('x')",
    "[open][0]('x')",
    "'a'('x')",
    "[open # +\n('x')]",
    "open\\\n('x')",
    "x.sin(1)",
    "x.real",
    "x. real",
    "__name__",
    "f'{open(1)}'",
    "mysin(x)",
    "ｏpen('x')",
    "5!(x)",
]


def test_what_may_be_evaluated() -> None:
    assert [text for text in COMPUTING if not calls_nothing(text)] == []
    assert [text for text in CALLING if calls_nothing(text)] == []


def test_an_answer_of_another_generator_is_refused() -> None:
    problem = gym("chain_sum", size=1, seed=0)[0]
    changed = json.dumps({**json.loads(problem.answer), "answer": "0.25"})
    with pytest.raises(ValueError, match=r"chain_sum now gives '-?\d+' where .* '0\.25': another version"):
        GymScore()("1", changed)
    with pytest.raises(ValueError, match=r"made by envs\.tokens\.sources\.gym, got '18'"):
        GymScore()("18", "18")


@pytest.mark.parametrize(("package", "verifier"), [("math_verify", MathVerify), ("reasoning_gym", GymScore)])
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, verifier: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'fgfn\[tasks\]'"):
        verifier()


def troubled(completion: str, answer: str) -> Any:
    """Fails in a way that the completion stands for."""
    if completion == "raise":
        raise KeyError("no such place")
    if completion == "sleep":
        time.sleep(60)
    if completion == "die":
        os._exit(3)
    if completion == "exit":
        sys.exit(2)
    return {"nan": math.nan, "inf": -math.inf, "text": "1.0", "list": [1.0], "none": None, "complex": 1j}.get(
        completion, float(completion == answer)
    )


REASONS = {
    "raise": ("KeyError", "it raised KeyError: 'no such place'"),
    "exit": ("SystemExit", "it raised SystemExit: 2"),
    "nan": ("not a number", "expected a finite number, got nan"),
    "inf": ("not a number", "got -inf"),
    "text": ("not a number", "got '1.0'"),
    "list": ("not a number", r"got \[1.0\]"),
    "none": ("not a number", "got None"),
    "complex": ("not a number", "got 1j"),
}


@pytest.mark.parametrize("completion", REASONS)
def test_a_failure_is_no_wrong_answer(completion: str) -> None:
    verified = Verified(troubled, retries=0)
    with pytest.raises(
        RewardError,
        match=rf"troubled failed for the completion '{completion}' and the answer '7': .*{REASONS[completion][1]}; "
        "to go on, .* on_failure=",
    ):
        verified([("7", "7"), (completion, "7")])
    kind = REASONS[completion][0]
    verified = Verified(troubled, retries=0, on_failure=-0.5)
    assert verified([("7", "7"), (completion, "7"), ("8", "7")]).tolist() == [1.0, -0.5, 0.0]
    assert verified.failures == {kind: 1}


@pytest.mark.parametrize("value", [True, 1, 0.25, np.float32(0.5), np.bool_(True), np.int64(-2)])
def test_numbers_of_all_kinds_are_values(value: Any) -> None:
    assert outcome_of(lambda completion, answer: value, ("", "")) == float(value)


def test_workers_are_killed_in_time_and_failures_counted() -> None:
    limit = 1.5
    with Verified(troubled, workers=1, time_limit=limit, retries=0, on_failure=0.25) as verified:
        assert verified([("a", "a"), ("b", "a"), ("raise", ""), ("nan", "")]).tolist() == [1.0, 0.0, 0.25, 0.25]
        begun = time.monotonic()
        assert verified([("sleep", "")]).tolist() == [0.25]
        assert limit <= time.monotonic() - begun < 2 * limit
        assert verified.failures == {"KeyError": 1, "not a number": 1, "time limit": 1}


@pytest.mark.slow
def test_workers_that_died_are_replaced_and_the_others_values_come() -> None:
    with Verified(troubled, workers=1, time_limit=3.0, on_failure=0.25) as verified:
        batch = [(text, "a") for text in ("die", "a", "sleep", "b")]
        assert verified(batch).tolist() == [0.25, 1.0, 0.25, 0.0]
        assert verified.failures == {"worker died": 1, "time limit": 1}
        verified.close()
        assert verified([("c", "c")]).tolist() == [1.0], "it starts again"
    with (
        Verified(troubled, workers=1, time_limit=1.0) as strict,
        pytest.raises(RewardError, match="'sleep' and the answer 'a': it took longer than the limit of 1 s"),
    ):
        strict(batch[2:])


class SlowToLoad:
    """Takes longer to load than a call may take."""

    def __reduce__(self) -> tuple[Callable[[float], SlowToLoad], tuple[float]]:
        return loaded_after, (3.0,)

    def __call__(self, completion: str, answer: str) -> float:
        return 1.0


def loaded_after(seconds: float) -> SlowToLoad:
    time.sleep(seconds)
    return SlowToLoad()


class NeverLoads:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return math.sqrt, ("no number",)  # pyright: ignore[reportReturnType]

    def __call__(self, completion: str, answer: str) -> float:
        return 1.0


@pytest.mark.slow
def test_loading_takes_no_time_of_a_call() -> None:
    with Verified(SlowToLoad(), workers=1, time_limit=1.0) as verified:
        assert verified([("", "")]).tolist() == [1.0]
    with (
        Verified(NeverLoads(), workers=1, retries=0) as broken,
        pytest.raises(RewardError, match=r"NeverLoads failed .* it raised TypeError: must be real number"),
    ):
        broken([("", "")])


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [exact_answer, boxed_answer, MathVerify()])
def test_values_do_not_depend_on_the_workers(verifier: Callable[[str, str], float]) -> None:
    pairs = [(r"\boxed{18}", "18"), ("18", "18"), ("17", "18"), (r"\boxed{17}", "18")] * 3
    expected = [verifier(*pair) for pair in pairs]
    for workers in (0, 1):
        with Verified(verifier, workers=workers) as verified:
            assert verified(pairs).tolist() == expected
            assert verified([]).shape == (0,)


class Counting:
    """Remembers what it was asked, and fails the first ``failing`` times."""

    def __init__(self, failing: int = 0) -> None:
        self.asked: list[tuple[str, str]] = []
        self.failing = failing

    def __call__(self, completion: str, answer: str) -> float:
        self.asked.append((completion, answer))
        if len(self.asked) <= self.failing:
            raise OSError("not yet")
        return len(completion) / 4


def test_equal_pairs_are_verified_once() -> None:
    counting = Counting()
    verified = Verified(counting)
    assert verified([("aa", "x"), ("b", "x"), ("aa", "x"), ("aa", "y")]).tolist() == [0.5, 0.25, 0.5, 0.5]
    assert verified([("b", "x"), ("c", "x")]).tolist() == [0.25, 0.25]
    assert counting.asked == [("aa", "x"), ("b", "x"), ("aa", "y"), ("c", "x")]
    assert verified([]).shape == (0,)


def test_memory_is_limited_to_the_latest() -> None:
    counting = Counting()
    verified = Verified(counting, memory=2)
    pairs = [(letter, "") for letter in "abc"]
    assert verified(pairs).tolist() == [0.25] * 3
    verified(pairs[1:])
    assert len(counting.asked) == 3
    verified(pairs[:1])
    assert counting.asked[3:] == pairs[:1]


def test_retries() -> None:
    counting = Counting(failing=1)
    verified = Verified(counting, on_failure=0.0)
    assert verified([("aa", ""), ("b", "")]).tolist() == [0.5, 0.25]
    assert counting.asked == [("aa", ""), ("b", ""), ("aa", "")]
    assert verified.failures == {}
    counting = Counting(failing=2)
    verified = Verified(counting, on_failure=0.0)
    assert verified([("aa", "")]).tolist() == verified([("aa", "")]).tolist() == [0.0]
    assert (len(counting.asked), dict(verified.failures)) == (2, {"OSError": 1}), "the value of a failure is kept"


def test_a_copy_has_no_values_and_no_workers() -> None:
    verified = Verified(exact_answer, on_failure=0.0)
    assert verified([("1", "1")]).tolist() == [1.0]
    copy = pickle.loads(pickle.dumps(verified))
    assert copy([("1", "1"), ("2", "1")]).tolist() == [1.0, 0.0]
    assert repr(copy) == repr(verified) == "Verified(exact_answer, on_failure=0.0)"
    assert len(pickle.dumps(copy)) == len(pickle.dumps(verified))


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be sent to another process .* top level"):
        Verified(lambda completion, answer: 1.0, workers=1)
    numbers: dict[str, Any] = {"workers": -1, "time_limit": 0.0, "retries": -1, "on_failure": math.nan, "memory": 0}
    with pytest.raises(
        ValueError, match=r"workers ≥ 0, got -1; time_limit > 0.*on_failure: mask or finite, got nan; memory ≥ 1"
    ):
        Verified(exact_answer, **numbers)
    assert outcome_of(troubled, ("none", "")) == Failure("not a number", "expected a finite number, got None")
