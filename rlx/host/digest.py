"""SHA-256 without hashlib where little is hashed: hashlib loads OpenSSL, which takes three milliseconds of a start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _hashlib import HASH
    from hashlib import sha256 as _small
else:
    try:  # Python's own module, as its `random` imports that of SHA-512
        from _sha2 import sha256 as _small
    except ImportError:
        try:
            from _sha256 import sha256 as _small  # before Python 3.12
        except ImportError:
            from hashlib import sha256 as _small

_LARGE_BYTES = 1 << 20  # OpenSSL is five times as fast, which is worth its import for so many


def sha256(*parts: bytes | memoryview) -> HASH:
    """The hash of the parts one behind the other, as hashlib's: with `digest` and `hexdigest`."""
    make, loaded = _small, "hashlib" in sys.modules
    if loaded or sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts) >= _LARGE_BYTES:
        from hashlib import sha256 as make
    result = make()
    for part in parts:
        result.update(part)
    return result
