"""What gptqmodel 7.7.0 packs, with torch 2.13: the words of products with zeros of 0, in both formats.

    python -m tests.formats.gptqmodel SOURCE

`SOURCE` is the unpacked source (`pip download --no-deps gptqmodel==7.7.0`), of which three functions are run as they
stand, for the package needs others that have no wheels. Its results are written into gptqmodel.json."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "gptqmodel.json"
COLUMNS, ROWS, GROUP = 128, 16, 32


def functions(source: Path) -> dict[str, Any]:
    """`pack_original` and the conversions of the words of zeros, in a namespace of what they use."""
    import torch
    import transformers.pytorch_utils
    from torch.nn.modules.conv import _ConvNd

    limits = SimpleNamespace(threadpool_limits=lambda _: contextlib.nullcontext())
    log = SimpleNamespace(info=SimpleNamespace(once=lambda _: None))
    names: dict[str, Any] = {
        "t": torch, "torch": torch, "nn": torch.nn, "np": np, "math": math, "transformers": transformers, "log": log,
        "_ConvNd": _ConvNd, "THREADPOOLCTL": limits, "BaseQuantLinear": torch.nn.Module, "QuantizeConfig": object,
    }  # fmt: skip
    for path, wanted in (
        ("nn_modules/qlinear/__init__.py", ["pack_original"]),
        ("utils/model.py", ["convert_gptq_v1_to_v2_format_module", "convert_gptq_v2_to_v1_format_module"]),
    ):
        text = (source / "gptqmodel" / path).read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                wanted.remove(node.name)  # the first one of the name
                exec(textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])), names)
    return names


def packed(names: dict[str, Any], bits: int) -> dict[str, Any]:
    """Codes and zeros, and the tensors that gptqmodel writes of them."""
    import torch

    rng, top = np.random.default_rng(bits), (1 << bits) - 1
    codes, zeros = rng.integers(0, top + 1, (ROWS, COLUMNS)), rng.integers(0, top + 1, (ROWS, COLUMNS // GROUP))
    zeros[::3], zeros[1::5] = 0, top
    scales = torch.from_numpy(rng.uniform(0.001, 0.02, zeros.shape)).half().float()
    groups = torch.arange(COLUMNS, dtype=torch.int32) // GROUP
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = torch.from_numpy(codes - zeros[:, groups]).float() * scales[:, groups]
    module: Any = torch.nn.Module()
    module.bits, module.maxq, module.planar = bits, top, False
    module.pack_dtype, module.pack_dtype_bits, module.pack_factor = torch.int32, 32, 32 // bits
    module.pack_np_math_dtype, module.pack_np_dtype, module.qzero_format = np.uint32, np.int32, lambda format=2: format
    module.register_buffer("g_idx", groups)
    with torch.no_grad():
        names["pack_original"](module, linear, scales, torch.from_numpy(zeros).float(), groups)
    second = module.qzeros.clone()
    names["convert_gptq_v2_to_v1_format_module"](module, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
    first = module.qzeros.clone()
    names["convert_gptq_v1_to_v2_format_module"](module, bits, torch.int32)
    assert torch.equal(module.qzeros, second)
    words = {"qweight": module.qweight, "scales": module.scales, "gptq": first, "gptq_v2": second}
    return {"codes": codes.tolist(), "zeros": zeros.tolist(), **{n: array.tolist() for n, array in words.items()}}


def main() -> None:
    names = functions(Path(sys.argv[1]))
    FILE.write_text(json.dumps({str(bits): packed(names, bits) for bits in (4, 8)}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
