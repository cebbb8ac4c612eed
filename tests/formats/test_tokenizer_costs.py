"""What a regular expression and a character map may cost, known before they are run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from rlx.formats.tokenizer import charsmap
from rlx.formats.tokenizer.regex import least_match
from tests.formats import tokenizer_specs as h
from tests.formats.published_tokenizers import BLOOM, CLIP, DEEPSEEK, O200K, QWEN3


class TestRegularExpressions:
    @pytest.mark.parametrize(
        "pattern",
        [
            *h.SOUND_PATTERNS,
            QWEN3,
            O200K,
            DEEPSEEK,
            CLIP,
            BLOOM,
            "[一-龥぀-ゟ゠-ヿ]+",
            " ",
            r"\.\.\.",
            "(?:ab?|c){1}d",
        ],
    )
    def test_published_ones_are_known(self, pattern: str) -> None:
        assert least_match(pattern) >= 1

    def test_the_fewest_characters(self) -> None:
        assert [least_match(p) for p in (" {2,}", "abc|d", "a{3}b?", "(?:ab|c)d", r"\s{2,}|[\n\r\t]{3}")] == [
            2,
            1,
            3,
            2,
            2,
        ]

    @pytest.mark.parametrize("pattern", [r" +\z", r"a+(?:\z|b?)", r"a*\A", r"\A", r"\A\z", r"\A+a"])
    def test_bounds_of_a_text_behind_a_repeat_are_refused(self, pattern: str) -> None:
        assert least_match(r"\A | \z") == least_match(r"\A +") == 1
        with pytest.raises(ValueError, match=r"without end may fail|nothing at all|only single characters"):
            least_match(pattern)

    @pytest.mark.parametrize("pattern", [p for p in h.HOSTILE_PATTERNS if p != r"\p{Nope}"])
    def test_hostile_ones_are_refused(self, pattern: str) -> None:
        with pytest.raises(ValueError, match=r"\w"):
            least_match(pattern)

    def test_what_is_taken_is_linear(self) -> None:
        """Patterns put together by chance: those that are taken must match long texts at once, in a process that may
        use few seconds."""
        parts = ("a", "b?", "[ab]+", r"\s*", "(?:a|b+)", "|", "a{1,3}", r"\p{L}", ".", "(a)?", "[^a]*", "c+",
                 r"\A", r"\z", r"(?:\z|a?)")  # fmt: skip
        pick = random.Random(7)
        patterns = ["".join(pick.choice(parts) for _ in range(pick.randrange(1, 9))) for _ in range(1500)]
        taken = []
        for pattern in patterns:
            try:
                least_match(pattern)
            except ValueError:
                continue
            taken.append(pattern)
        assert len(taken) > 100
        code = (
            "import json, resource, sys\nfrom tokenizers import Regex, normalizers\n"
            "resource.setrlimit(resource.RLIMIT_CPU, (100, 100))\n"
            "for pattern in json.load(sys.stdin):\n"
            "    for text in ('a' * 20_000, 'ab' * 10_000, ' ' * 20_000 + 'x', 'a' * 20_000 + 'd'):\n"
            "        normalizers.Replace(Regex(pattern), '').normalize_str(text)\n"
        )
        subprocess.run([sys.executable, "-c", code], input=json.dumps(taken[:100]), text=True, check=True)


class TestCharacterMaps:
    def test_growth(self) -> None:
        assert charsmap.growth(h.MAP, False) == 11  # U+FDFA: 33 bytes of three
        assert charsmap.growth(h.MAP, True) == 1  # decomposed text holds no such letter
        assert charsmap.growth(h.charsmap({b"ab": b"12345"}), False) == Fraction(5, 2)

    def test_the_package_reads_these_as_we_do(self) -> None:
        from tokenizers.normalizers import Precompiled

        assert Precompiled(h.MAP).normalize_str("½ﷺ\tx e\u0301") == "1⁄2صلى الله عليه وسلم x é"

    def test_a_trie_that_is_none(self) -> None:
        letters = np.arange(256, dtype="<u4")
        loop = letters << 10 | letters  # every unit but the first is the child of every other
        blob = (4 * len(loop)).to_bytes(4, "little") + loop.tobytes() + b"x\0"
        with pytest.raises(ValueError, match="its trie is no tree"):
            charsmap.growth(blob, False)
