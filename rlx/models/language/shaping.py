"""What changes the logits of one sequence before a token is picked: penalties for its tokens, and a constraint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError
from rlx.models.language.graph import Picking, mask_words
from rlx.records import Record, replace


class Constraint(Protocol):
    """Which tokens may come next in a sequence, as by a grammar."""

    def mask(self, words: npt.NDArray[np.int32]) -> None:
        """Writes the bits of the tokens that may come next: bit b of word w is token 32 w + b."""

    def take(self, token: int) -> bool:
        """Advances by a token. Returns: whether the text is complete with it."""


class Penalties:
    """Changes a sequence's next logits by its tokens so far. First `repetition`, as in `rlx.sample`, applies to each
    token of the prompt and the answer; then `bias` is added, by token, and for each token in the answer `presence` is
    subtracted once, and `frequency` once per occurrence. The host adds these up in f64 and rounds once."""

    def __init__(
        self, vocabulary: int, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0,
        bias: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        bias = bias or {}
        if odd := [token for token in bias if not 0 <= token < vocabulary]:
            raise DTypeError(f"bias has the token {odd[0]}; expected ids from 0 to {vocabulary - 1}")
        if not 2.0**-100 <= repetition <= 2.0**100 or not np.isfinite([presence, frequency]).all():
            raise DTypeError(f"penalties are {repetition}, {presence}, {frequency}; expected finite numbers, and a "
                             "repetition above 0")  # fmt: skip
        if odd := [token for token, value in bias.items() if not value < np.inf]:
            raise DTypeError(f"bias of token {odd[0]} is {bias[odd[0]]}; expected a number, or -inf, which forbids it")
        self._repetition, self._presence, self._frequency, self._bias = repetition, presence, frequency, bias
        self._counts: Counter[int] = Counter()
        self.scale = np.ones(vocabulary, np.float32)
        self.shift = np.zeros(vocabulary, np.float32)
        self.shift[[*bias]] = [*bias.values()]

    def begin(self, prompt: npt.NDArray[np.int32]) -> None:
        """Notes the prompt."""
        self.scale[prompt] = self._repetition

    def take(self, token: int) -> None:
        """Notes a token of the answer."""
        self._counts[token] += 1
        self.scale[token] = self._repetition
        away = self._presence + self._frequency * self._counts[token]
        self.shift[token] = self._bias.get(token, 0.0) - away


class Shaping(Record):
    """The penalties and the constraint of a sequence that runs alone; falsy if there is neither."""

    vocabulary: int
    penalties: Penalties | None = None
    constraint: Constraint | None = None

    def __bool__(self) -> bool:
        return self.penalties is not None or self.constraint is not None

    def begin(self, prompt: npt.NDArray[np.int32]) -> None:
        """Notes the prompt."""
        if self.penalties is not None:
            self.penalties.begin(prompt)

    def take(self, token: int) -> bool:
        """Notes a token of the answer. Returns: whether the text is complete with it."""
        if self.penalties is not None:
            self.penalties.take(token)
        return self.constraint is not None and self.constraint.take(token)

    def picking(self, plain: Picking) -> Picking:
        """The picking `plain`, extended for these penalties and this constraint."""
        return replace(plain, masked=self.constraint is not None, penalized=self.penalties is not None)

    def inputs(self) -> dict[str, Any]:
        """The program's inputs for penalties and constraint when it picks the next token."""
        made: dict[str, Any] = {}
        if self.penalties is not None:
            made = {"scale": self.penalties.scale[None], "shift": self.penalties.shift[None]}
        if self.constraint is not None:
            made["mask"] = np.empty((1, mask_words(self.vocabulary)), np.int32)
            self.constraint.mask(made["mask"][0])
        return made
