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
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from envs.tokens.context import Context
from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.next_token import NextToken, next_token
from envs.tokens.packed import Packed, worthwhile
from envs.tokens.pretrained import context_length
from gfn.policies import Policy, Prior, Stepper
from gfn.trajectories import Trajectories

PATIENCE = 4  # steps of a rollout before anything is done that pays in a long one only
PASS = 64  # places to read that cost as much as one more pass


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
        packed: Packed | None = None
        begun = done = 0  # sequences and steps

        def advance(states: Sequences, kept: Tensor) -> NextToken:
            nonlocal context, packed, begun, done
            if context is None:
                context, logits = self._read(states)
                begun = len(states)
            else:
                if done == PATIENCE and _go_on(states, begun) and worthwhile(self.model):
                    packed = Packed(self.model)
                context.select(kept)
                last = states.tokens.gather(1, states.length.unsqueeze(1) - 1)
                with packed.in_use() if packed is not None else nullcontext():
                    logits = context.extend(last)[:, -1]
            done += 1
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
        written = final.tokens[:, : int(lengths.max()) - 1]
        inside = torch.arange(written.shape[1], device=lengths.device) < lengths.unsqueeze(1) - 1
        written = written.where(inside, EMPTY)
        parts = of_similar_length(lengths - 1)
        for rows in parts:
            if len(parts) == 1:  # of all rows, or of those that go on at all
                context.select(row[rows])
            here = context if len(parts) == 1 else context.of(row[rows])
            place = torch.full_like(lengths, -1).index_put((rows,), torch.arange(len(rows), device=rows.device))
            steps = (rest & (place[t.row] >= 0)).nonzero().squeeze(1)
            wanted = place[t.row[steps]], t.column[steps] - 1
            logits = here.extend(written[rows, : int(lengths[rows].max()) - 1], wanted)[0]
            scores = self._next(logits, t.column[steps]).log_prob(t.actions[steps])
            result = result.index_put((steps,), scores)
        return result

    def _next(self, logits: Tensor, written: Tensor) -> NextToken:
        """The distribution after ``written`` tokens, ``[N]``, at least in float32."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logits = logits if self.temperature == 1 else logits / self.temperature
        return next_token(logits, self.stop_ids, written >= self.min_tokens if self.min_tokens else None)


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


def reference(policy: LanguageModel, remember: int = 65536, reset_every: int = 0) -> Prior[Sequences]:
    """The language model as it is now, as the prior π_ref in the place of P_B.

    Args:
        policy: what will be trained; with adapters its own frozen weights serve, otherwise they are copied.
        remember: for how many trajectories its log-probabilities are kept, so that those used again are not
            scored again.
        reset_every: updates after which it becomes the model as it then is, each time; 0 never. All weights are then
            copied, also of a model with adapters.
    """
    adapted = hasattr(policy.model, "disable_adapter")
    if adapted and reset_every == 0:
        return Prior(Unadapted(policy), copied=False, remember=remember)
    return Prior(policy, remember=remember, reset_every=reset_every)


def of_similar_length(lengths: Tensor) -> list[Tensor]:
    """Rows in parts that waste little when each is padded to its longest, long ``[n]`` each; those of length 0 in none.

    A cut is made where it saves most, if that is more than another pass over the model costs.
    """
    longest_first = lengths.argsort(descending=True, stable=True)

    def cut(rows: Tensor) -> list[Tensor]:
        sizes = lengths[rows]
        saved = torch.arange(len(rows), 0, -1, device=rows.device) * (sizes[0] - sizes)
        place = int(saved.argmax())
        return [rows] if saved[place] <= PASS else [*cut(rows[:place]), *cut(rows[place:])]

    parts = cut(longest_first)
    if len(parts) == 1:
        return [torch.arange(len(lengths), device=lengths.device)]
    return [part for part in parts if int(lengths[part[0]]) > 0]


def _go_on(states: Sequences, begun: int) -> bool:
    """Whether a rollout promises to be long: half of its sequences are still written, and there is space."""
    return 2 * len(states) >= begun and states.tokens.shape[1] - int(states.length.max()) >= 2 * PATIENCE


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
    largest = max(max(prompt) for prompt in env.task.prompts)
    if largest >= size:
        raise ValueError(
            f"LanguageModel: a prompt has token {largest}, and the model knows those below {size}; the tokenizer and "
            "the model must belong together"
        )
    limit = context_length(model)
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
