"""Policies that are causal language models: a key-value cache to sample with, one pass to score with.

Both do the same work in the same order. Each prompt is read once, however many completions it has, and
its cache handed to them; completions that have ended leave the batch; the output head is applied where
a token is to be predicted and nowhere else. Where prompts differ in length they are padded on the left,
with positions that count from their first token; which entries are padding is known from lengths, since
the padding token of many models ends their texts as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.next_token import NextToken, next_token
from gfn.policies import Policy, Prior, Stepper
from gfn.trajectories import Trajectories


class LanguageModel(Policy[Sequences]):
    """P_F: the next token by a causal language model of transformers.

    Its dropout is always off, so that a batch is scored alike twice. Parameters that are frozen when it
    is made, as under LoRA, are left out of checkpoints, which hold a checksum of them instead.

    Args:
        env: whose prompts are completed.
        model: a causal language model, on its own or with adapters.
        temperature: logits are divided by it, in sampling and in scoring alike.

    Raises:
        ValueError: if the vocabulary is not that of the environment, a prompt has no tokens, the longest completion
            of the longest prompt does not fit into the model's context, or the temperature is not positive.
    """

    def __init__(self, env: Tokens, model: nn.Module, temperature: float = 1.0):
        super().__init__()
        lengths = torch.tensor([len(prompt) for prompt in env.task.prompts])
        _require_fit(env, model, lengths, temperature)
        self.model, self.temperature = model, temperature
        self.stop_ids, self.min_tokens = env.task.stop_ids, env.min_tokens
        # Left-padded: a prompt's last token is in the last column.
        prompts = torch.full((len(lengths), int(lengths.max())), EMPTY)
        for row, prompt in zip(prompts, env.task.prompts, strict=True):
            row[len(row) - len(prompt) :] = torch.as_tensor(prompt)
        self.prompts: Tensor
        self.register_buffer("prompts", prompts, persistent=False)
        self.frozen = frozenset(
            name for name, p in self.named_parameters(remove_duplicate=False) if not p.requires_grad
        )
        self.checksum: int | None = None
        self.register_state_dict_post_hook(_leave_frozen_out)
        self.register_load_state_dict_pre_hook(_put_frozen_back)
        self.train()

    def train(self, mode: bool = True) -> LanguageModel:
        """Stay in evaluation mode: dropout would make two scores of one batch differ."""
        return super().train(False)

    def distribution(self, states: Sequences) -> NextToken:
        _, logits = self._read(states)
        return self._next(logits, states.length)

    def stepper(self) -> Stepper[Sequences]:
        context: Context | None = None

        def advance(states: Sequences, kept: Tensor) -> NextToken:
            nonlocal context
            if context is None:
                context, logits = self._read(states)
            else:
                context.select(kept)
                last = states.tokens.gather(1, states.length.unsqueeze(1) - 1)
                logits = context.extend(last)[:, -1]
            return self._next(logits, states.length)

        return advance

    def _read(self, states: Sequences) -> tuple[Context, Tensor]:
        """Begin with what stands before each state's next token; the context, and the logits that follow it."""
        longest = int(states.length.max())
        if longest > 0:
            return self._begin(_left_padded(self.prompts[states.prompt], states.tokens[:, :longest]))
        prompt, row = states.prompt.unique(return_inverse=True)
        context, logits = self._begin(self.prompts[prompt])
        context.select(row)
        return context, logits[row]

    def _begin(self, tokens: Tensor) -> tuple[Context, Tensor]:
        """Read left-padded tokens ``[N, L]``; the context, and the logits after the last, ``[N, V]``."""
        tokens = tokens[:, int((tokens == EMPTY).sum(1).min()) :]
        context = Context(self.model)
        last = torch.arange(len(tokens), device=tokens.device), torch.full((len(tokens),), -1, device=tokens.device)
        return context, context.extend(tokens, last)[0]

    def log_prob(self, t: Trajectories[Sequences]) -> Tensor:
        final, lengths = t.final, t.lengths
        prompt, row = final.prompt.unique(return_inverse=True)
        context, logits = self._begin(self.prompts[prompt])
        first, rest = t.column == 0, t.column > 0
        result = logits.new_zeros(len(t.actions), dtype=torch.promote_types(logits.dtype, torch.float32))
        start = self._next(logits, torch.zeros_like(prompt))[row].log_prob(t.actions[first])
        result = result.index_put((first.nonzero().squeeze(1),), start)
        if not bool(rest.any()):
            return result
        context.select(row)
        written = final.tokens[:, : int(lengths.max()) - 1]
        inside = torch.arange(written.shape[1], device=lengths.device) < lengths.unsqueeze(1) - 1
        logits = context.extend(written.where(inside, EMPTY), (t.row[rest], t.column[rest] - 1))[0]
        return result.index_put(
            (rest.nonzero().squeeze(1),), self._next(logits, t.column[rest]).log_prob(t.actions[rest])
        )

    def _next(self, logits: Tensor, written: Tensor) -> NextToken:
        """The distribution after ``written`` tokens, ``[N]``, at least in float32."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logits = logits if self.temperature == 1 else logits / self.temperature
        return next_token(logits, self.stop_ids, written >= self.min_tokens if self.min_tokens else None)


class Context:
    """What a model has read, as its key-value cache, with rows that can be chosen and extended."""

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.cache: Any = None
        self.seen: Tensor | None = None  # which entries of the cache are tokens, bool [N, L]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order, repeats allowed."""
        if self.seen is not None and (len(rows) != len(self.seen) or bool((rows[1:] != rows[:-1] + 1).any())):
            self.cache.batch_select_indices(rows)
            self.seen = self.seen[rows]

    def extend(self, tokens: Tensor, wanted: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Read on, ``[N, L]`` with ``EMPTY`` for nothing; the logits after each, ``[N, L, V]``.

        Args:
            wanted: rows and columns of the only entries whose logits are asked for; these come as ``[1, M, V]``.
        """
        new = tokens != EMPTY
        seen = new if self.seen is None else torch.cat([self.seen, new], 1)
        position = (seen.cumsum(1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        with picked(self.model, wanted):
            output = self.model(
                input_ids=tokens.clamp_min(0),
                attention_mask=None if bool(seen.all()) else seen.long(),
                position_ids=position,
                cache=self.cache,
                use_cache=True,
            )
        self.cache, self.seen = output.cache, seen
        return output.logits


@contextmanager
def picked(model: Any, wanted: tuple[Tensor, Tensor] | None) -> Generator[None]:
    """Within, the output head of a model sees these rows and columns of the hidden states only, as ``[1, M, D]``.

    Whatever the model does with logits, such as capping them, it does as before.
    """
    if wanted is None:
        yield
        return

    def pick(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (given[0][wanted].unsqueeze(0),)

    hook = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        hook.remove()


class Unadapted(Policy[Sequences]):
    """A language model without its adapters, sharing every weight with it: what it was before training.

    It has no parameters of its own. The adapters are switched off in place and nothing is merged: merging
    them and taking them out again changes weights by rounding.
    """

    def __init__(self, policy: LanguageModel):
        super().__init__()
        self._adapted = (policy,)  # in a tuple, so that its parameters are not taken for this module's

    @contextmanager
    def _plain(self) -> Generator[LanguageModel]:
        (policy,) = self._adapted
        with policy.model.disable_adapter():  # pyright: ignore[reportCallIssue]
            yield policy

    def distribution(self, states: Sequences) -> NextToken:
        with self._plain() as policy:
            return policy.distribution(states)

    def stepper(self) -> Stepper[Sequences]:
        advance = self._adapted[0].stepper()

        def plain(states: Sequences, kept: Tensor) -> Any:
            with self._plain():
                return advance(states, kept)

        return plain

    def log_prob(self, t: Trajectories[Sequences]) -> Tensor:
        with self._plain() as policy:
            return policy.log_prob(t)


def reference(policy: LanguageModel, remember: int = 65536) -> Prior[Sequences]:
    """The language model as it is now, as the prior π_ref in the place of P_B.

    Args:
        policy: what will be trained; with adapters its own frozen weights serve, otherwise they are copied.
        remember: for how many trajectories its log-probabilities are kept, so that those used again are not
            scored again.
    """
    adapted = hasattr(policy.model, "disable_adapter")
    return Prior(Unadapted(policy), copied=False, remember=remember) if adapted else Prior(policy, remember=remember)


def _left_padded(first: Tensor, second: Tensor) -> Tensor:
    """Two tables of tokens ``[N, A]`` and ``[N, B]`` as one ``[N, A + B]``, with what is empty moved to the left."""
    joined = torch.cat([first, second], 1)
    order = (joined != EMPTY).int().argsort(dim=1, stable=True)
    return joined.gather(1, order)


def _require_fit(env: Tokens, model: Any, prompt_lengths: Tensor, temperature: float) -> None:
    if not 0 < temperature < torch.inf:
        raise ValueError(f"LanguageModel: temperature must be positive, got {temperature}")
    size = model.get_output_embeddings().weight.shape[0]
    if size != env.n_actions:
        raise ValueError(
            f"LanguageModel: the model predicts {size} tokens and the task has {env.n_actions}; the tokenizer and the "
            "model must belong together: give env.model and policy.model the same folder or name"
        )
    longest_prompt, shortest = int(prompt_lengths.max()), int(prompt_lengths.argmin())
    if prompt_lengths[shortest] == 0:
        raise ValueError(
            f"LanguageModel: prompt {shortest} has no tokens, and a model has to read one before it predicts another; "
            "begin it with the tokenizer's first token"
        )
    config = model.config
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if limit is not None and longest_prompt + env.max_steps > limit:
        raise ValueError(
            f"LanguageModel: the longest prompt has {longest_prompt} tokens and with env.max_tokens={env.max_steps} "
            f"does not fit into the model's context of {limit}; lower env.max_tokens, or leave long prompts out"
        )


def _leave_frozen_out(policy: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    if not policy.frozen:
        return
    if policy.checksum is None:
        policy.checksum = _checksum(policy)
    for name in policy.frozen:
        del state[prefix + name]
    state[prefix + "frozen"] = torch.tensor(policy.checksum)


def _put_frozen_back(policy: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    if not policy.frozen or prefix + "frozen" not in state:
        return
    policy.checksum = _checksum(policy) if policy.checksum is None else policy.checksum
    if int(state.pop(prefix + "frozen")) != policy.checksum:
        raise ValueError(
            "LanguageModel: the frozen weights are not those this checkpoint was trained on; give policy.model the "
            "folder that the run was started with"
        )
    weights = dict(policy.named_parameters(remove_duplicate=False))
    state.update({prefix + name: weights[name].detach() for name in policy.frozen})


def _checksum(policy: LanguageModel) -> int:
    """CRC-32 of the frozen weights."""
    weights, total = dict(policy.named_parameters(remove_duplicate=False)), 0
    for name in sorted(policy.frozen):
        total = zlib.crc32(weights[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), total)
    return total
