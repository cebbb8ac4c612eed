"""`python -m rlx.conformance.names_page`: writes docs/names.md, what NumPy, JAX and SciPy call what rlx has.

Each name of the table is looked up in rlx; what is not there is shown as a hole.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from rlx.conformance.names import ARRAY_API, DIFFERENCES, DTYPES, LACKING, NUMPY, OTHERS

PAGE = Path("docs/names.md")
COMMAND = "python -m rlx.conformance.names_page"
_HEAD = """# Names from NumPy, JAX and SciPy

Written by `{command}`; do not edit. What goes by a name in numpy goes by it in jax.numpy too; a
dash is a hole. Scalars, lists and arrays are taken outside a traced function and inside.

What differs throughout: Python's numbers take the dtype of the arrays beside them, lists of floats are f32, integers
and bools that have to become floats become f32. Sums and products (`matmul`, `dot`) of integers of 8 and 16 bits are
i32, and so is u8 beside i8. Functions whose result is as long as the values ask for take `size=` in a traced function,
as in JAX. Keywords may have NumPy's, JAX's or SciPy's names (`ddof=`, `num=`, `axes=`). There is no `out=`, nothing is
changed in place, and elementwise functions have no `where=`. i16, u16, u32 and u64 are computed by NumPy: on a GPU as
steps on the host, which the report lists, and which `Session(fallback="error")` refuses. u64 beside a signed integer is
a DTypeError, where NumPy gives float64.

"""


def entries(words: str) -> Iterator[tuple[str, str]]:
    """Each name of a text, and rlx's name of it."""
    for word in words.split():
        theirs, _, ours = word.partition("=")
        yield theirs, ours if "=" in word else theirs


def ours(module: str, name: str) -> str:
    """rlx's name of the function, or "" if rlx lacks it."""
    if not name:
        return ""
    here = f"{module}.{name}" if module else name
    owner: object = importlib.import_module("rlx")
    try:
        for part in here.split("."):
            owner = getattr(owner, part)
    except AttributeError:
        return ours("", name) if module == "linalg" else ""  # products are top-level functions, as in NumPy too
    return f"rlx.{here}"


def rows(prefix: str, module: str, words: str) -> Iterator[str]:
    for theirs, name in entries(words):
        mine = ours(module, name)
        lacking = LACKING.get(theirs, "").split() if prefix.startswith("numpy") else []
        holes = [f"no {', '.join(f'`{word}`' for word in lacking)}"] if lacking else []
        known = DIFFERENCES.get(f"{prefix}.{theirs}") or DIFFERENCES.get(theirs)
        differs = "; ".join([*filter(None, [known]), *holes]) if mine else ""
        yield f"| `{prefix}.{theirs}` | {f'`{mine}`' if mine else '–'} | {differs} |"


def count(module: str, words: str) -> tuple[int, int]:
    """How many of the names rlx has, and the number of all names."""
    present = [bool(ours(module, name)) for _, name in entries(words)]
    return sum(present), len(present)


def table(title: str, prefix: str, module: str, words: str) -> str:
    have, all_ = count(module, words)
    lines = [f"## {title}: {have} of {all_}", "", f"| {prefix} | rlx | what differs |", "|---|---|---|"]
    return "\n".join([*lines, *rows(prefix, module, words)]) + "\n"


def page() -> str:
    """The text of the page."""
    have, all_ = count("", ARRAY_API)
    lacking = [f"`{name}`" for name, mine in entries(ARRAY_API) if not ours("", mine)]
    parts = [_HEAD.format(command=COMMAND)]
    lacks = f", and lacks {', '.join(lacking)}" if lacking else ""
    parts.append(f"Of the array API's functions (edition 2025.12) rlx has {have} of {all_}{lacks}.\n")
    parts += [table(title, "numpy", "", words) for title, words in NUMPY.items()]
    parts.append(table("Dtypes by name", "numpy", "", DTYPES))
    parts += [table(prefix, prefix, module, words) for prefix, (module, words) in OTHERS.items()]
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
