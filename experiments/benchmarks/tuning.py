"""One side of a race: training steps of a language model, one at a time, by this project or by TRL."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.language_model import LanguageModel, reference
from envs.tokens.pretrained import causal_model, stop_ids, tokenizer, with_lora
from envs.tokens.problems import Problems
from envs.tokens.smollm2 import folder
from envs.tokens.sources import ADDITION_TEMPLATE, additions
from envs.tokens.verified import Verified
from envs.tokens.verifiers import exact_answer
from experiments.benchmarks.clock import Clock, peak_memory
from gfn.objectives import DevGrad, Objective, ReverseKL
from gfn.sampling import rollout
from gfn.training import Report, Trainer
from gfn.trajectories import Trajectories

GENERATION, REWARD, REFERENCE, REST = "generation", "reward", "reference", "rest"
FORWARD, BACKWARD, OPTIMISER = "forward and loss", "backward", "optimiser"
RANK, ALPHA, PROMPTS = 16, 32, 8
LR = 0.0  # the model stays as it is, so that both sides and all rounds write texts of the same lengths


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        stop: what ends a completion: ``newline``, or ``eos``, the tokenizer's own end.
        trained: ``lora``, rank 16 on all linear layers, or ``full``.
        group: completions of each of the 8 prompts.
    """

    stop: str
    trained: str
    group: int

    @property
    def max_tokens(self) -> int:
        """Of a completion."""
        return 8 if self.stop == "newline" else 64


@dataclass(frozen=True)
class Step:
    """What one training step took.

    Attributes:
        spent: CPU seconds, by what they were spent on.
        wall: seconds.
        tokens: written, stop tokens included; all of them are trained on.
        memory: largest resident memory of the process so far, MiB.
    """

    spent: dict[str, float]
    wall: float
    tokens: int
    memory: float


class Turns:
    """Runs steps when told to by another process, and tells it what each took; the clock stands still meanwhile."""

    def __init__(self, connection: Connection, clock: Clock):
        self.connection, self.clock, self.tokens = connection, clock, 0
        self._since = 0.0

    def begin(self) -> None:
        """Wait for one's turn."""
        self.connection.recv()
        self.clock.spent.clear()
        self.tokens = 0
        self._since = time.perf_counter()
        self.clock.enter(REST)

    def end(self) -> None:
        """Tell that a step is done."""
        self.clock.leave()
        wall = time.perf_counter() - self._since
        self.connection.send(Step(dict(self.clock.spent), wall, self.tokens, peak_memory()))


def task_of(case: Case) -> Problems:
    """Sums of two digits, below three that are solved."""
    words: Any = tokenizer(str(folder()))
    config = causal_model(str(folder())).config
    stops = stop_ids(words, ["\n"] if case.stop == "newline" else None)
    problems = additions(n=PROMPTS)
    return Problems(problems, words, Verified(exact_answer), stops, config.vocab_size, template=ADDITION_TEMPLATE)


def ours(case: Case, steps: int, connection: Connection) -> None:
    """Train by trajectory balance, log Z from groups, with the model as it was as the prior."""
    with Clock() as clock:
        turns = Turns(connection, clock)
        env = Tokens(task_of(case), max_tokens=case.max_tokens)
        model = causal_model(str(folder()))
        policy = LanguageModel(env, with_lora(model, RANK, ALPHA) if case.trained == "lora" else model)
        prior = reference(policy, remember=0)
        objective = Objective(policy, prior, ReverseKL(), DevGrad())
        sampler = _EveryPrompt(env, policy, case.group, turns)
        trainer = Trainer(
            objective,
            sampler,
            steps=steps,
            lr=LR,
            clip_grad_norm=1.0,
            optimizer=partial(torch.optim.AdamW, fused=True),  # what TRL takes
            callbacks=[_OurTurns(turns, steps)],
        )
        clock.watch(sampler, "rollout", GENERATION)
        clock.watch(env, "log_reward", REWARD)
        clock.watch(prior, "log_prob_backward", REFERENCE)
        clock.watch(objective, "forward", FORWARD)
        clock.watch(torch.Tensor, "backward", BACKWARD)
        clock.watch(trainer.optimizer, "step", OPTIMISER)
        trainer.run()


class _EveryPrompt:
    """Completions of every prompt."""

    def __init__(self, env: Tokens, policy: LanguageModel, group_size: int, turns: Turns):
        self.env, self.policy, self.group_size, self.turns = env, policy, group_size, turns
        self.batch_size, self.one_group, self.forward = PROMPTS * group_size, False, True
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, step: int, size: int | None = None) -> Trajectories[Sequences]:
        t = self.rollout(step)
        self.turns.tokens += int(t.lengths.sum())
        return t

    def rollout(self, step: int) -> Trajectories[Sequences]:
        group = torch.arange(PROMPTS).repeat_interleave(self.group_size)
        start = Sequences(group, torch.full((len(group), self.env.max_steps), EMPTY))
        return rollout(self.env, self.policy, start, group=group, generator=self.generator, version=step)

    def settings(self, step: int) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _OurTurns:
    """Callback of the trainer."""

    def __init__(self, turns: Turns, steps: int):
        self.turns, self.steps = turns, steps

    def start(self, step: int) -> None:
        self.turns.begin()

    def __call__(self, report: Report) -> None:
        self.turns.end()
        if report.step < self.steps:
            self.turns.begin()

    def close(self) -> None: ...


def theirs(case: Case, steps: int, connection: Connection) -> None:
    """Train by TRL's GRPO without a reference, gradients neither checkpointed nor accumulated.

    Raises:
        ImportError: if TRL is not installed.
        RuntimeError: if it does not give the model the same tokens.
    """
    trl = trl_package()
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from peft import LoraConfig

    task = task_of(case)
    rows = [{"prompt": task.text(p), "answer": x.answer} for p, x in zip(task.prompts, task.problems, strict=True)]
    size = PROMPTS * case.group
    settings = trl.GRPOConfig(
        output_dir=tempfile.gettempdir(),  # nothing is written
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=size,
        num_generations=case.group,
        max_completion_length=case.max_tokens,
        generation_kwargs={"eos_token_id": list(task.stop_ids)},
        max_steps=steps,
        learning_rate=LR,
        lr_scheduler_type="constant",
        beta=0.0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    adapters = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    model = causal_model(str(folder()))
    ends: Any = model.generation_config
    ends.eos_token_id = task.stop_ids[0]
    words: Any = task.tokenizer
    words.eos_token_id = task.stop_ids[0]  # the trainer counts the tokenizer's among the ends
    with Clock() as clock:
        turns = Turns(connection, clock)
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=_rewards(task),
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=words,
            peft_config=adapters if case.trained == "lora" else None,
            callbacks=[_their_turns(turns)],
        )
        trainer._generate_single_turn = _counted(trainer._generate_single_turn, task, turns)
        clock.watch(trainer, "_generate", GENERATION)
        clock.watch(trainer, "_calculate_rewards", REWARD)
        clock.watch(trainer, "compute_loss", FORWARD)
        clock.watch(trainer.accelerator, "backward", BACKWARD)
        trainer.train()


def trl_package() -> Any:
    """TRL.

    Raises:
        ImportError: naming the extra of this project that has it.
    """
    try:
        import trl  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"this benchmark compares with TRL ({error}): pip install 'fgfn[bench]'") from error
    return trl


def _rewards(task: Problems) -> Callable[..., list[float]]:
    def right(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
        return task.verified(list(zip(completions, answer, strict=True))).tolist()

    return right


def _counted(generate: Callable[..., Any], task: Problems, turns: Turns) -> Callable[..., Any]:
    """The same, which also counts tokens and checks that prompts are those of the task."""

    def counted(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if {tuple(ids) for ids in prompt_ids} != set(task.prompts):
            raise RuntimeError("TRL encodes the prompts as other tokens than this project does; nothing to compare")
        completions, log_probs = generate(prompt_ids, *args, **kwargs)
        turns.tokens += sum(map(len, completions))
        return completions, log_probs

    return counted


def _their_turns(turns: Turns) -> Any:
    from transformers import TrainerCallback

    class TheirTurns(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            turns.clock.watch(kwargs["optimizer"], "step", OPTIMISER)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            turns.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            turns.end()

    return TheirTurns()
