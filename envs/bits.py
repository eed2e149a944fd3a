"""Bit sequences of Malkin et al. 2022 (arXiv:2201.13259, section 5.3): write n bits in words of k bits.

Three ways of writing, all of a fixed number of steps: from left to right (a tree), at either end
(several parents), and at any empty place (non-autoregressive, as in Tiapkin et al. 2024,
arXiv:2310.12934). A batch of states is a tensor of word numbers, long ``[N, n/k]``, EMPTY where
nothing is written yet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from gfn.environment import DiscreteEnvironment, TooManyStatesError

EMPTY = -1
BLOCKS = ("00000000", "11111111", "11110000", "00001111", "00111100")  # what the published modes are made of
MAX_LISTED = 1_048_576  # states that enumerate is willing to list


def published_modes(bits: int, count: int, seed: int) -> list[str]:
    """``count`` distinct sequences of ``bits`` bits, each a random concatenation of the published BLOCKS.

    The published benchmark has 60 modes of 120 bits; drawn from 5^15, those are distinct anyway.

    Raises:
        ValueError: unless ``bits`` is a multiple of 8 and there are that many.
    """
    pieces = bits // 8
    if bits % 8 or not 1 <= count <= len(BLOCKS) ** pieces:
        raise ValueError(
            f"bit sequences: modes are made of blocks of 8 bits, so bits must be a multiple of 8 with 1 to "
            f"{len(BLOCKS) ** pieces} modes, got bits={bits} modes={count}; or list the modes themselves as texts"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        choice = torch.randint(len(BLOCKS), (pieces,), generator=generator)
        drawn["".join(BLOCKS[i] for i in choice.tolist())] = None
    return list(drawn)


def _as_bits(texts: Sequence[str], bits: int) -> Tensor:
    """Texts of 0 and 1 as a float table ``[M, n]``; float, for distances are matrix products."""
    wrong = [text for text in texts if len(text) != bits or set(text) - {"0", "1"}]
    if wrong or len(set(texts)) != len(texts) or not texts:
        raise ValueError(f"bit sequences: modes must be distinct texts of {bits} digits 0 or 1, got {list(texts)[:5]}")
    return torch.tensor([[float(digit) for digit in text] for text in texts])


class BitSequences(DiscreteEnvironment[Tensor]):
    """What the ways of writing share: R(x) = exp(−exponent · number of bits that differ from the nearest mode).

    A sequence finds the mode nearest to it (the first of several) if it is within ``radius``.

    Args:
        bits: length of a sequence, n.
        word: bits written at once, k; divides ``bits``.
        modes: how many to draw, or the modes themselves as texts of 0 and 1.
        exponent: reward exponent β.
        radius: bits in which a sequence may differ from a mode that it finds; 30 in the program of Tiapkin et al.
        seed: of the drawing of modes, apart from that of a run, so that runs share their modes.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    def __init__(
        self,
        bits: int = 120,
        word: int = 8,
        modes: int | Sequence[str] = 60,
        exponent: float = 2.0,
        radius: int = 30,
        seed: int = 0,
    ):
        if bits < 1 or word < 1 or bits % word or word > 16:
            raise ValueError(f"{type(self).__name__}: needs words of 1 to 16 bits that divide {bits=}, got {word=}")
        if not 0 < exponent < torch.inf or radius < 0:
            raise ValueError(f"{type(self).__name__}: needs exponent > 0 and radius >= 0, got {exponent=} {radius=}")
        self.bits, self.word, self.exponent, self.radius = bits, word, exponent, radius
        texts = published_modes(bits, modes, seed) if isinstance(modes, int) else modes
        self.mode_bits = _as_bits(texts, bits)
        self.places, self.vocabulary = bits // word, 2**word
        self.n_actions = self._count_actions()
        self.max_steps = self.places
        self.n_features = 2 * bits
        self._shift = torch.arange(word).flip(0)
        self.mode_counts: Mapping[str, int] = {"modes": len(texts), "mode_states": len(texts)}

    def reset(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.full((n, self.places), EMPTY, device=self.device)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        self.require_allowed(states, actions, self.forward_mask(states), "step")
        return self._write(states, actions)

    def undo(self, states: Tensor, actions: Tensor) -> Tensor:
        self.require_allowed(states, actions, self.backward_mask(states), "undo")
        return self._erase(states, actions)

    @abstractmethod
    def _count_actions(self) -> int:
        """Number of action names, given how many words and places there are."""

    @abstractmethod
    def _write(self, states: Tensor, actions: Tensor) -> Tensor:
        """The states after actions that are allowed."""

    @abstractmethod
    def _erase(self, states: Tensor, actions: Tensor) -> Tensor:
        """The states before actions that led here."""

    def is_initial(self, states: Tensor) -> Tensor:
        return (states == EMPTY).all(1)

    def is_terminal(self, states: Tensor) -> Tensor:
        return (states != EMPTY).all(1)

    def bits_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Bits of the words, 0 where nothing is written, and which are written; float ``[N, n]`` each."""
        bit = (states.clamp_min(0).unsqueeze(2) >> self._shift) & 1
        written = (states != EMPTY).repeat_interleave(self.word, 1)
        return bit.flatten(1).to(torch.get_default_dtype()), written.to(torch.get_default_dtype())

    def words_of(self, bits: Tensor) -> Tensor:
        """The complete states with these bits ``[N, n]``, long ``[N, n/k]``."""
        return (bits.long().unflatten(1, (self.places, self.word)) << self._shift).sum(2)

    def encode(self, states: Tensor) -> Tensor:
        """For each bit whether it is 0 and whether it is 1, neither where nothing is written, ``[N, 2n]``."""
        bit, written = self.bits_of(states)
        return torch.cat([written - bit, bit], 1)

    def _distances(self, states: Tensor) -> Tensor:
        """Number of written bits that differ from each mode, ``[N, M]``."""
        bit, written = self.bits_of(states)
        modes = self.mode_bits.to(bit.dtype)
        return bit @ (1 - modes).T + (written - bit) @ modes.T

    def log_reward(self, states: Tensor) -> Tensor:
        return -self.exponent * self._distances(states).amin(1).double()

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Number of bits in which complete sequences differ, ``[N]``."""
        return (self.bits_of(first)[0] != self.bits_of(second)[0]).sum(1)

    def modes(self, states: Tensor) -> Mapping[str, Tensor]:
        """``modes``: the nearest mode if within ``radius``; ``mode_states``: the mode itself; −1 elsewhere."""
        distance, nearest = self._distances(states).min(1)
        return {"modes": nearest.where(distance <= self.radius, -1), "mode_states": nearest.where(distance == 0, -1)}

    def benchmark_states(self, generator: torch.Generator | None = None) -> Tensor:
        """The published test set: for each mode and each i from 0 to n − 1, the mode with i random bits flipped."""
        count = torch.arange(self.bits, device=self.device).repeat(len(self.mode_bits))
        order = torch.rand(len(count), self.bits, generator=generator, device=self.device).argsort(1).argsort(1)
        flipped = order < count.unsqueeze(1)
        return self.words_of(self.mode_bits.bool().repeat_interleave(self.bits, 0) ^ flipped)

    def describe(self, states: Tensor) -> list[str]:
        """Words as bits, joined by spaces; dashes where nothing is written."""
        rows = cast("list[list[int]]", states.tolist())
        return [" ".join("-" * self.word if w == EMPTY else f"{w:0{self.word}b}" for w in row) for row in rows]

    def _require_listable(self, count: int) -> None:
        if count > MAX_LISTED:
            reason = f"{count} states are too many to list (at most {MAX_LISTED}); evaluate by samples instead"
            raise TooManyStatesError(f"{type(self).__name__}: {reason} (evaluator.exact=false)")


class Contiguous(BitSequences):
    """Sequences without gaps: what is written stands at the left, so a state is a word count and its words."""

    def enumerate(self) -> Tensor:
        """All sequences of 0 to n/k words, the shorter ones first, each length in lexicographic order."""
        self._require_listable(sum(self.vocabulary**length for length in range(self.places + 1)))
        lists: list[Tensor] = []
        for length in range(self.places + 1):
            place = self.vocabulary ** torch.arange(length, device=self.device).flip(0)
            words = torch.arange(self.vocabulary**length, device=self.device).unsqueeze(1) // place % self.vocabulary
            lists.append(pad(words, (0, self.places - length), value=EMPTY))
        return torch.cat(lists)

    def index(self, states: Tensor) -> Tensor:
        """Position in :meth:`enumerate`, long ``[N]``."""
        length = self._written(states)
        column = torch.arange(self.places, device=states.device)
        power = (length.unsqueeze(1) - 1 - column).clamp_min(0)
        number = (states.clamp_min(0) * self.vocabulary**power).sum(1)
        return number + (self.vocabulary**length - 1) // (self.vocabulary - 1)

    def forward_mask(self, states: Tensor) -> Tensor:
        return (~self.is_terminal(states)).unsqueeze(1).expand(-1, self.n_actions)

    def _written(self, states: Tensor) -> Tensor:
        return (states != EMPTY).sum(1)

    def _appended(self, states: Tensor, words: Tensor) -> Tensor:
        return states.scatter(1, self._written(states).unsqueeze(1), words.unsqueeze(1))

    def _shortened(self, states: Tensor) -> Tensor:
        return states.scatter(1, (self._written(states) - 1).clamp_min(0).unsqueeze(1), EMPTY)

    def backward_mask(self, states: Tensor) -> Tensor:
        last = states.gather(1, (self._written(states) - 1).clamp_min(0).unsqueeze(1))
        return last == torch.arange(self.vocabulary, device=states.device)


class Append(Contiguous):
    """From left to right: action w writes word w at the end. A tree, so P_B may be ``CertainBackward``."""

    def _count_actions(self) -> int:
        return self.vocabulary

    def _write(self, states: Tensor, actions: Tensor) -> Tensor:
        return self._appended(states, actions)

    def _erase(self, states: Tensor, actions: Tensor) -> Tensor:
        return self._shortened(states)

    def log_potential(self, states: Tensor) -> Tensor:
        """log R that a state would have if what is not written yet were that of its nearest mode, ``[N]``."""
        return self.log_reward(states)


class PrependAppend(Contiguous):
    """At either end: action w appends word w, action 2^k + w prepends it.

    Where both give the same sequence, as for the first word, there are two edges, and P_F and P_B
    count both.
    """

    def _count_actions(self) -> int:
        return 2 * self.vocabulary

    def _write(self, states: Tensor, actions: Tensor) -> Tensor:
        word, prepends = (actions % self.vocabulary), actions >= self.vocabulary
        prepended = torch.cat([word.unsqueeze(1), states[:, :-1]], 1)
        return torch.where(prepends.unsqueeze(1), prepended, self._appended(states, word))

    def _erase(self, states: Tensor, actions: Tensor) -> Tensor:
        beheaded = pad(states[:, 1:], (0, 1), value=EMPTY)
        return torch.where((actions >= self.vocabulary).unsqueeze(1), beheaded, self._shortened(states))

    def backward_mask(self, states: Tensor) -> Tensor:
        is_first = states[:, :1] == torch.arange(self.vocabulary, device=states.device)
        return torch.cat([super().backward_mask(states), is_first], 1)


class Insert(BitSequences):
    """In any order: action p · 2^k + w writes word w into the empty place p."""

    def _count_actions(self) -> int:
        return self.places * self.vocabulary

    def _write(self, states: Tensor, actions: Tensor) -> Tensor:
        place, word = actions // self.vocabulary, actions % self.vocabulary
        return states.scatter(1, place.unsqueeze(1), word.unsqueeze(1))

    def _erase(self, states: Tensor, actions: Tensor) -> Tensor:
        return states.scatter(1, (actions // self.vocabulary).unsqueeze(1), EMPTY)

    def forward_mask(self, states: Tensor) -> Tensor:
        return (states == EMPTY).repeat_interleave(self.vocabulary, 1)

    def backward_mask(self, states: Tensor) -> Tensor:
        return (states.unsqueeze(2) == torch.arange(self.vocabulary, device=states.device)).flatten(1)

    def log_potential(self, states: Tensor) -> Tensor:
        """log R that a state would have if what is not written yet were that of its nearest mode, ``[N]``."""
        return self.log_reward(states)

    def enumerate(self) -> Tensor:
        """All (2^k + 1)^(n/k) states as numbers whose digits are the words plus one, in rising order."""
        count = (self.vocabulary + 1) ** self.places
        self._require_listable(count)
        return torch.arange(count, device=self.device).unsqueeze(1) // self._place % (self.vocabulary + 1) + EMPTY

    @property
    def _place(self) -> Tensor:
        return (self.vocabulary + 1) ** torch.arange(self.places, device=self.device).flip(0)

    def index(self, states: Tensor) -> Tensor:
        """Position in :meth:`enumerate`, long ``[N]``."""
        return ((states - EMPTY) * self._place).sum(1)
