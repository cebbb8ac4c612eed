"""Grammars: which tokens keep a text within a JSON schema or another grammar, by the package `llguidance`."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, RlxError
from rlx.formats.tokenizer.language import LanguageTokenizer
from rlx.host.locks import renewed
from rlx.models.language.graph import mask_words

# Without a limit, models may repeat white space between JSON tokens for ever.
_MOST_SYMBOLS = 20_000  # symbols of a grammar: so many take a fraction of a second, the library's own limit a minute
_JSON = {"whitespace_pattern": r"( |\r?\n[ \t]{0,16})?"}


class Grammars:
    """Makes constraints for a tokenizer's texts, each a `Constraint` for one sequence. Threads may share it.

    Raises: RlxError where `llguidance` is not installed."""

    def __init__(self, tokenizer: LanguageTokenizer, vocabulary: int) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise RlxError('grammars need the package `llguidance`: pip install "rlx[serve]"') from error
        self._library: Any = llguidance
        self._texts, self._vocabulary = tokenizer, vocabulary
        self._lock = renewed(self, "_lock", threading.Lock)
        self._made: Any = None

    def of(self, schema: Any, grammar: str | None) -> GrammarConstraint:
        """The constraint of a JSON schema (an object or JSON text) or of a grammar, whichever is given. Raises:
        DTypeError."""
        if schema is None:
            if not isinstance(grammar, str):
                raise DTypeError(f"grammar is {grammar!r:.40}; expected a text: GBNF (rules name ::= …), or Lark")
            return self.gbnf(grammar) if "::=" in grammar else self.lark(grammar)
        if grammar is not None:
            raise DTypeError("json_schema and grammar both say what the answer is; give one of them")
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise DTypeError(f"json_schema {schema!r:.60} is no JSON: {error}") from None
        if not isinstance(schema, (dict, bool)):
            raise DTypeError(f"json_schema is {schema!r:.60}; expected a JSON schema: an object")
        return self.json_schema(schema)

    def gbnf(self, text: str) -> GrammarConstraint:
        """Texts of a grammar in llama.cpp's GBNF, from its rule `root`. Raises: DTypeError."""
        from llguidance.gbnf_to_lark import gbnf_to_lark

        try:
            translated = gbnf_to_lark(text)
        except Exception as error:  # some of the library's errors have no type of their own
            raise DTypeError(f"the grammar is no GBNF that can be read: {' '.join(str(error).split())}") from error
        return self.lark(translated)

    def json_schema(self, schema: Any) -> GrammarConstraint:
        """Texts that are JSON of this schema, with white space as usual in JSON: one space, or a new line and its
        indentation. Raises: DTypeError for a schema that is wrong or not supported."""
        return self._constraint(json.dumps({"grammars": [{"json_schema": self._bounded(schema)}]}))

    def lark(self, text: str) -> GrammarConstraint:
        """Texts of a grammar in llguidance's variant of Lark. Raises: DTypeError."""
        return self._constraint(json.dumps({"grammars": [{"lark_grammar": text}]}))

    def lark_json(self, schema: Any) -> str:
        """A JSON schema as a term of a Lark grammar."""
        return f"%json {json.dumps(self._bounded(schema))}"

    @staticmethod
    def _bounded(schema: Any) -> Any:
        """The schema with a limit on white space, which the library reads at the schema's top level."""
        if schema is True:  # anything
            schema = {}
        if not isinstance(schema, dict):
            return schema
        if "x-guidance" in schema:
            raise DTypeError("x-guidance is no part of JSON Schema, and blanks are limited in any case; leave it out")
        return {**schema, "x-guidance": _JSON}

    def _constraint(self, grammar: str) -> GrammarConstraint:
        limits = self._library.LLParserLimits(max_grammar_size=_MOST_SYMBOLS)
        made = self._library.LLMatcher(self._tokenizer(), grammar, log_level=0, limits=limits)
        if made.is_error():
            raise DTypeError(f"the grammar is not supported: {_said(made)}")
        first = GrammarConstraint(made.deep_copy())
        first.mask(np.empty(mask_words(self._vocabulary), np.int32))
        if first.error:
            raise DTypeError(f"the grammar allows no text: {first.error}")
        return GrammarConstraint(made)

    def _tokenizer(self) -> Any:
        with self._lock:
            if self._made is None:
                source = _Source(self._texts, self._vocabulary)
                wrapped = self._library.TokenizerWrapper(source)
                ends = sorted(self._texts.special.ends) or None
                self._made = self._library.LLTokenizer(wrapped, n_vocab=self._vocabulary, eos_token=ends)
            return self._made


class GrammarConstraint:
    """What a grammar allows after the tokens so far; see `Constraint`."""

    def __init__(self, matcher: Any) -> None:
        self._matcher, self.error = matcher, ""

    def copy(self) -> GrammarConstraint:
        """A copy in the same state; the grammar is not compiled again."""
        return GrammarConstraint(self._matcher.deep_copy())

    def mask(self, words: npt.NDArray[np.int32]) -> None:
        assert words.dtype == np.int32 and words.flags.c_contiguous
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():  # the mask then allows only the end token, but the text is not complete
            self.error = _said(self._matcher)

    def take(self, token: int) -> bool:
        """Advances by a token. Returns: whether the text is complete, or the grammar cannot continue (then `error` says
        why)."""
        if not self._matcher.consume_token(token):
            self.error = _said(self._matcher) or "the grammar does not allow the token"
            return True
        return bool(self._matcher.is_stopped())


def _said(matcher: Any) -> str:
    """The library's error message, without the dump of its state after it."""
    return " ".join(str(matcher.get_error()).partition("\n<")[0].split())[:300]


class _Source:
    """The vocabulary as llguidance reads it: the bytes of each id. Ids without text get names such as <|7|>, as special
    tokens."""

    def __init__(self, tokenizer: LanguageTokenizer, vocabulary: int) -> None:
        held, special = tokenizer.vocabulary, tokenizer.special
        marks = [i for i in range(vocabulary) if i not in held.tokens or i in held.control or i in special.ends]
        self.special_token_ids = marks
        known = [i for i in range(vocabulary) if i in held.tokens]
        contents = dict(zip(known, held.contents(known), strict=True))
        self.tokens = [contents.get(i, b"") for i in range(vocabulary)]
        for i in marks:
            self.tokens[i] = f"<|{i}|>".encode()
        self.eos_token_id = min(special.ends, default=marks[0] if marks else 0)
        self.bos_token_id = special.bos
        self._encode = tokenizer.encode

    def __call__(self, text: bytes | str) -> list[int]:
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        return self._encode(plain, special=False)
