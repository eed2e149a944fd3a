"""What is reported of completions: how many are right, how much they differ, and how many the limit cuts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from envs.tokens import metrics

if TYPE_CHECKING:
    from envs.tokens.environment import Sequences, Tokens
    from gfn.trajectories import Trajectories

KS = (1, 4, 8, 32)
CLOSE = 1e-6  # r is read from r/β, which is rounded
COMPARED = 20  # completions of each prompt that self-BLEU compares
PROMPTS = 8  # of so many prompts


def summary(
    env: Tokens, t: Trajectories[Sequences], ks: Sequence[int] = KS, right_from: float = 1.0
) -> dict[str, float]:
    """Figures of sampled completions; nothing is drawn, and those that are not defined are left out.

    A completion is right if it has ended with r ≥ ``right_from``. Figures of diversity are of the
    completions of one prompt, without their stop token, and then means over prompts.

    ``reward``: mean r, before the temperature, of all; ``pass@k``: chance that one of k completions is
    right, for the k ≤ the fewest samples of a prompt; ``unique_right``: distinct right completions of a
    prompt; ``unique``: distinct completions over all, an end and a cut being two things; ``cut``: share
    that the limit has ended; ``length_stopped``: mean tokens of the others, with the stop token;
    ``distinct_1`` to ``_3``: distinct n-grams over all; ``self_bleu``: of 20 completions of 8 prompts.

    Args:
        env: the environment.
        t: trajectories, ``[B]``.
        ks: numbers of tries.
        right_from: smallest r of a right completion.

    Warns:
        RuntimeWarning: if more than half of the sequences are cut.
    """
    final = t.final
    stopped = env.is_stopped(final)
    reward = t.log_reward.double() * env.temperature
    right = stopped & (reward >= right_from - CLOSE)
    cut = 1 - float(stopped.double().mean())
    if cut > 0.5:
        warnings.warn(f"more than half of the sequences {advice(env)}", RuntimeWarning, stacklevel=2)
    found = {
        "reward": float(reward.mean()),
        "cut": cut,
        "length_stopped": float(t.lengths[stopped].double().mean()),
        **_tries(final.prompt, right, ks),
        **_diversity(final, stopped, right),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def advice(env: Tokens) -> str:
    """What to do about sequences that the limit cuts, to follow on how many they are."""
    return (
        f"were cut at max_tokens={env.max_steps} before a stop token: raise env.max_tokens, add a stop id that "
        f"completions do end with, or lower env.cut_reward={env.cut_reward:g}, which is what they are worth"
    )


def _tries(prompt: Tensor, right: Tensor, ks: Sequence[int]) -> dict[str, float]:
    """Mean pass@k over prompts, for each k that the number of samples allows; of ``[B]``."""
    names, place, n = prompt.unique(return_inverse=True, return_counts=True)
    correct = torch.zeros_like(names).index_add(0, place, right.long())
    fitting = [k for k in ks if k <= int(n.min())]
    return {f"pass@{k}": float(metrics.pass_at_k(correct, n, k).mean()) for k in fitting}


def _diversity(final: Sequences, stopped: Tensor, right: Tensor) -> dict[str, float]:
    """Means over prompts of what is distinct among the completions of each; of ``[B]``."""
    prompts, ended, good = final.prompt.tolist(), stopped.tolist(), right.tolist()
    lengths = final.length.tolist()
    written = [row[:length] for row, length in zip(final.tokens.tolist(), lengths, strict=True)]
    rows = {prompt: [i for i, p in enumerate(prompts) if p == prompt] for prompt in sorted(set(prompts))}
    texts = {prompt: [written[i][:-1] if ended[i] else written[i] for i in own] for prompt, own in rows.items()}
    compared = list(texts.values())[:PROMPTS]
    return {
        "unique": _mean([metrics.unique([written[i] for i in own]) / len(own) for own in rows.values()]),
        "unique_right": _mean([metrics.unique_right(texts[p], [good[i] for i in own]) for p, own in rows.items()]),
        **{f"distinct_{n}": _mean([metrics.distinct(own, n) for own in texts.values()]) for n in (1, 2, 3)},
        "self_bleu": _mean([metrics.self_bleu(own[:COMPARED]) for own in compared]),
    }


def _mean(values: Sequence[float]) -> float:
    """Mean of those that are defined; NaN if there are none."""
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan
