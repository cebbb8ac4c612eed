"""Packed weights on the host: blocks of a few bits per element, read from GGUF, made from floats, and decoded."""

from rlx.packed.array import PackedArray as PackedArray
