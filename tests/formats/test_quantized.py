"""Quantized folders: each format written out of known codes, scales and zeros, and its definition in float64."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.errors import ModelFormatError
from rlx.formats import bitsandbytes, safetensors
from rlx.formats.huggingface import ModelFolder
from rlx.models.language.architectures.gpt2 import ARCHITECTURES
from rlx.packed import PackedArray
from tests.formats.gguf.test_convert import LLAMA, folder
from tests.formats.packed_sweep import counted
from tests.packed.tables import FP4, NF4

RNG = np.random.default_rng(3)
ROWS, COLUMNS = 16, 256
GPTQMODEL = Path(__file__).parent / "gptqmodel.json"
Arrays = dict[str, npt.NDArray[Any]]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def codes(high: int, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> npt.NDArray[np.int64]:
    return RNG.integers(0, high, shape)


def scales(shape: tuple[int, ...], dtype: Any = np.float16) -> npt.NDArray[Any]:
    return (RNG.uniform(0.01, 0.1, shape)).astype(dtype)


def words(values: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int32]:
    """Neighbours of the last axis in words, the first in the lowest bits."""
    per = 32 // bits
    apart = values.reshape(*values.shape[:-1], -1, per).astype(np.uint64)
    return (apart << (np.arange(per, dtype=np.uint64) * bits)).sum(-1).astype(np.uint32).view(np.int32)


def less_one(zeros: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int32]:
    """Zeros in words of GPTQ's first format, as gptqmodel writes it: 1 is taken off all fields of a word at once."""
    ones = words(np.ones_like(zeros), bits).view(np.uint32)
    return (words(zeros, bits).view(np.uint32) - ones).view(np.int32)


def gptq(
    bits: int = 4, group: int = 128, v2: bool = False, high: int | None = None
) -> tuple[Arrays, dict[str, Any], Any]:
    q, n = codes(1 << bits), COLUMNS // (COLUMNS if group == -1 else group)
    s, z = scales((ROWS, n)), codes(high or 1 << bits, (ROWS, n))
    arrays: Arrays = {
        "q.qweight": words(q, bits).T, "q.scales": s.T, "q.qzeros": words(z.T, bits) if v2 else less_one(z.T, bits),
        "q.g_idx": (np.arange(COLUMNS) // (COLUMNS // n)).astype(np.int32), "q.bias": np.ones(ROWS, np.float16),
    }  # fmt: skip
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False}
    if v2:
        settings["checkpoint_format"] = "gptq_v2"
    each = COLUMNS // n
    return arrays, settings, np.repeat(s, each, 1).astype(float) * (q - np.repeat(z, each, 1))


def awq(group: int = 128) -> tuple[Arrays, dict[str, Any], Any]:
    q, n = codes(16), COLUMNS // group
    s, z = scales((ROWS, n)), codes(16, (ROWS, n))
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds this column of its eight

    def stored(x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        return words(x.reshape(len(x), -1, 8)[..., order].reshape(len(x), -1), 4)

    arrays: Arrays = {"q.qweight": stored(q.T), "q.scales": s.T, "q.qzeros": stored(z.T)}
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return arrays, settings, np.repeat(s, group, 1).astype(float) * (q - np.repeat(z, group, 1))


def fp8(
    blocks: tuple[int, int] | None, name: str = "weight_scale_inv", one: bool = False
) -> tuple[Arrays, dict[str, Any], Any]:
    w = RNG.standard_normal((ROWS, COLUMNS)).astype(ml_dtypes.float8_e4m3fn)
    shape = (
        (1, 1) if one else (ROWS, 1) if blocks is None else (-(-ROWS // blocks[0]), -(-COLUMNS // blocks[1]))
    )
    s = scales(shape, np.float32)
    settings: dict[str, Any] = {"quant_method": "fp8"}
    if blocks is not None:
        settings["weight_block_size"] = list(blocks)
    a, b = blocks or ((ROWS, COLUMNS) if one else (1, COLUMNS))
    spread = np.repeat(np.repeat(s.astype(float), a, 0)[:ROWS], b, 1)[:, :COLUMNS]
    return {"q.weight": w, f"q.{name}": s.reshape(()) if one else s}, settings, w.astype(float) * spread


def int8() -> tuple[Arrays, dict[str, Any], Any]:
    w, s = (codes(256) - 128).astype(np.int8), scales((ROWS,), np.float32)
    arrays = {"q.weight": w, "q.SCB": s, "q.weight_format": np.zeros(1, np.uint8)}
    return (
        arrays,
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        w * (s[:, None] / np.float32(127)).astype(float),
    )


def four_bits(
    double: bool = False, kind: str = "nf4", block: int = 64, columns: int = COLUMNS, dtype: Any = ml_dtypes.bfloat16,
    book: Any = None, rows: int = ROWS,
) -> tuple[Arrays, dict[str, Any], Any]:  # fmt: skip
    """Dettmers et al., 2023: codes in blocks of all rows, whose scales may be codes themselves."""
    book = (FP4 if kind == "fp4" else NF4) if book is None else book
    q, state = codes(16, (rows * columns,)), {"quant_type": kind, "blocksize": block, "shape": [rows, columns]}
    s = scales((-(-len(q) // block),), np.float32)
    arrays = {"q.weight": (q[0::2] << 4 | q[1::2]).astype(np.uint8).reshape(-1, 1), "q.weight.quant_map": book}
    if double:
        numbers, coded = np.linspace(-1, 1, 256, dtype=np.float32), (np.arange(len(s)) * 37 % 256).astype(np.uint8)
        outer, offset = scales((-(-len(s) // 8),), np.float32), 0.25
        s = numbers[coded] * np.repeat(outer, 8)[: len(s)] + np.float32(offset)
        arrays |= {"q.weight.absmax": coded, "q.weight.nested_absmax": outer, "q.weight.nested_quant_map": numbers}
        state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": offset}
    else:
        arrays["q.weight.absmax"] = s
    state["dtype"] = np.dtype(dtype).name
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    arrays[f"q.weight.quant_state.bitsandbytes__{kind}"] = text
    want = (book[q] * np.repeat(s, block)[: len(q)]).reshape(rows, columns)
    return arrays, {"quant_method": "bitsandbytes", "load_in_4bit": True}, want


@pytest.mark.parametrize(
    ("block", "columns", "packed"),
    [(64, 128, "_64"), (32, 128, ""), (128, 64, "_64"), (64, 96, ""), (256, 96, ""), (4096, 192, "_64")],
)
@pytest.mark.parametrize(("double", "kind"), [(False, "nf4"), (True, "nf4"), (False, "fp4")])
def test_four_bits_in_blocks_that_may_end_in_another_row(
    double: bool, kind: str, block: int, columns: int, packed: str, tmp_path: Path
) -> None:
    arrays, settings, want = four_bits(double, kind, block, columns)
    tensors = opened(tmp_path, arrays, settings)
    found = tensors["q.weight"]
    assert tensors.kinds["q.weight"] == ((ROWS, columns), found.dtype) and found.dtype.name == kind + packed
    assert found.nbytes == ROWS * columns * (18 if packed else 20) // 32
    assert np.array_equal(found.dequantize(), want)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize(
    "more",
    [{"book": np.linspace(-1, 1, 16, dtype=np.float32)}, {"columns": 80}, {"block": 48},
     {"double": True, "columns": 40}],
)
def test_four_bits_that_no_packed_dtype_holds_become_floats(more: Any, dtype: Any, tmp_path: Path) -> None:
    arrays, settings, want = four_bits(dtype=dtype, **more)
    tensors = opened(tmp_path, {**arrays, "norm.weight": np.ones(3, np.float32)}, settings)
    assert set(tensors) == {"q.weight", "norm.weight"} and len(tensors) == 2
    found = tensors["q.weight"]
    assert found.dtype == np.dtype(dtype) and tensors.kinds["q.weight"] == (want.shape, rlx.dtypes.as_dtype(dtype))
    assert np.array_equal(found, want.astype(dtype))


def compressed(bits: int, group: int | None, packed: bool = False) -> tuple[Arrays, dict[str, Any], Any]:
    weights = {"num_bits": bits, "group_size": group, "symmetric": True}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    s = scales((ROWS, COLUMNS // group if group else 1), ml_dtypes.bfloat16)
    spread = np.repeat(s.astype(float), group or COLUMNS, 1)
    q = codes(1 << bits)
    signed = q - (1 << bits - 1)
    if bits == 8 and not packed:
        return {"q.weight": signed.astype(np.int8), "q.weight_scale": s}, settings, signed * spread
    arrays = {"q.weight_packed": words(q, bits), "q.weight_scale": s, "q.weight_shape": np.array([ROWS, COLUMNS])}
    return arrays, settings, signed * spread


def compressed_blocks(rows: int, columns: int) -> tuple[Arrays, dict[str, Any], Any]:
    arrays, _, want = fp8((rows, columns), "weight_scale")
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [rows, columns]}
    return arrays, {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}, want


FORMATS: dict[str, tuple[Any, str]] = {
    "GPTQ": (gptq, "int4_zp_128"),
    "GPTQ in groups of 64": (lambda: gptq(group=64), "int4_zp"),
    "GPTQ of whole rows": (lambda: gptq(group=-1), "int4_zp_128"),
    "GPTQ of 8 bits": (lambda: gptq(8), "int8_zp_128"),
    "GPTQ, second format": (lambda: gptq(group=32, v2=True), "int4_zp"),
    "GPTQ whose zeros are 0 or 1": (lambda: gptq(group=32, high=2), "int4_zp"),
    "GPTQ of 8 bits whose zeros are 0 or 1": (lambda: gptq(8, group=32, high=2), "int8_zp"),
    "AWQ": (awq, "int4_zp_128"),
    "AWQ in groups of 32": (lambda: awq(32), "int4_zp"),
    "fp8 in blocks": (lambda: fp8((128, 128)), "fp8_e4m3_128"),
    "fp8 in small blocks": (lambda: fp8((8, 64)), "fp8_e4m3"),
    "fp8 by rows": (lambda: fp8(None, "weight_scale"), "fp8_e4m3_128"),
    "fp8 with one scale": (lambda: fp8(None, "weight_scale", one=True), "fp8_e4m3_128"),
    "bitsandbytes int8": (int8, "int8_128"),
    "bitsandbytes nf4": (four_bits, "nf4_64"),
    "bitsandbytes fp4, double quantization": (lambda: four_bits(True, "fp4"), "fp4_64"),
    "compressed int4": (lambda: compressed(4, 128), "int4_128"),
    "compressed int8": (lambda: compressed(8, None), "int8_128"),
    "compressed int8 in groups": (lambda: compressed(8, 64), "int8"),
    "compressed int8 in words": (lambda: compressed(8, 128, True), "int8_128"),
    "compressed fp8 in blocks": (lambda: compressed_blocks(8, 128), "fp8_e4m3_128"),
}


def opened(folder: Path, arrays: Arrays, settings: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    safetensors.save(folder / "model.safetensors", {n: np.ascontiguousarray(a) for n, a in arrays.items()})
    return ModelFolder(folder).tensors()


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_the_numbers_of_their_definition(name: str, tmp_path: Path) -> None:
    make, dtype = FORMATS[name]
    arrays, settings, expected = make()
    tensors = opened(tmp_path, {**arrays, "norm.weight": np.ones(3, np.float32)}, settings)
    kept = {"q.bias"} & arrays.keys()
    assert set(tensors) == {"q.weight", "norm.weight"} | kept and len(tensors) == 2 + len(kept)
    found = tensors["q.weight"]
    assert isinstance(found, PackedArray) and found.dtype.name == dtype and found.shape == (ROWS, COLUMNS)
    assert tensors.kinds["q.weight"] == (found.shape, found.dtype)
    assert np.array_equal(found.dequantize("f64"), expected.astype(np.float32))
    with pytest.raises(KeyError):
        tensors["q.scales"]


def test_weights_of_random_shapes() -> None:
    """A sample of `python -m tests.formats.packed_sweep`."""
    kinds, found = counted(40, 5)
    assert not found and kinds["right"] >= 15


@pytest.mark.parametrize("key", ["format", "checkpoint_format"])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [4, 8])
def test_words_that_gptqmodel_packed(bits: int, form: str, key: str, tmp_path: Path) -> None:
    """With zeros of 0 in every third row, which the first format stores less 1 (`gptqmodel.py` made the file)."""
    packed = {n: np.array(v) for n, v in json.loads(GPTQMODEL.read_text())[str(bits)].items()}
    q, z, s = packed["codes"], packed["zeros"], packed["scales"].astype(np.float16)
    group = q.shape[1] // z.shape[1]
    arrays: Arrays = {"q.qweight": packed["qweight"].astype(np.int32), "q.scales": s,
                      "q.qzeros": packed[form].astype(np.int32),
                      "q.g_idx": (np.arange(q.shape[1]) // group).astype(np.int32)}  # fmt: skip
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, key: form}
    expected = (q - np.repeat(z, group, 1)) * np.repeat(s.T, group, 1).astype(np.float64)
    assert not z.all() and np.array_equal(opened(tmp_path, arrays, settings)["q.weight"].dequantize("f64"), expected)


def without(arrays: Arrays, name: str) -> Arrays:
    return {n: a for n, a in arrays.items() if n != name}


def changed(
    make: Any, drop: str = "", settings: dict[str, Any] | None = None, **arrays: Any
) -> tuple[Arrays, Any]:
    made, given, _ = make()
    renamed = {name.replace("__", "."): a for name, a in arrays.items()}
    return {**without(made, drop), **renamed}, {**given, **(settings or {})}


def test_mxfp4_experts(tmp_path: Path) -> None:
    q, e = codes(16, (2, 4, 3, 32)), RNG.integers(120, 132, (2, 4, 3))
    blocks = (q[..., 0::2] | q[..., 1::2] << 4).astype(np.uint8)
    arrays: Arrays = {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": e.astype(np.uint8)}
    tensors = opened(tmp_path, arrays, {"quant_method": "mxfp4"})
    found = tensors["gate_up_proj"]
    assert found.dtype.name == "mxfp4" and found.shape == (2, 4, 96) and list(tensors) == ["gate_up_proj"]
    expected = E2M1[q] * 2.0 ** (e[..., None] - 127)
    assert np.array_equal(found.dequantize(), expected.reshape(2, 4, 96))


@pytest.mark.parametrize("method", ["gptq", "nf4"])
def test_a_model_of_quantized_weights_gives_what_its_numbers_give(method: str, tmp_path: Path) -> None:
    config = {**LLAMA, "rope_scaling": None, "num_hidden_layers": 1, "vocab_size": 40}
    plain = {n: a for n, a in folder(tmp_path / "plain", config).items() if "layers.1." not in n}
    arrays: Arrays = {}
    for name, value in plain.items():
        if value.ndim == 1 or "_proj" not in name:
            arrays[name] = value
            continue
        rows, columns = value.shape
        stem, n = name.removesuffix(".weight"), columns // 32
        if method == "nf4":  # double quantization; o_proj in blocks that end within a row
            made, _, want = four_bits(True, block=128 if "o_proj" in name else 64, columns=columns, rows=rows)
            arrays |= {part.replace("q.weight", name): a for part, a in made.items()}
            plain[name] = want
            continue
        q, z, s = codes(16, value.shape), codes(16, (rows, n)), scales((rows, n)) / 8
        arrays |= {f"{stem}.qweight": words(q, 4).T, f"{stem}.scales": s.T, f"{stem}.qzeros": less_one(z.T, 4)}
        plain[name] = (np.repeat(s, 32, 1).astype(float) * (q - np.repeat(z, 32, 1))).astype(np.float32)
    (tmp_path / "packed").mkdir()
    for where, held in (("plain", plain), ("packed", arrays)):
        safetensors.save(
            tmp_path / where / "model.safetensors", {n: np.ascontiguousarray(a) for n, a in held.items()}
        )
    settings: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    if method == "nf4":
        settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "packed" / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    tokens = np.array([3, 17, 5, 30, 2], np.int32)
    with rlx.models.load(tmp_path / "plain", "cpu") as a, rlx.models.load(tmp_path / "packed", "cpu") as b:
        expected, found = a.logits(tokens), b.logits(tokens)
    error = np.square(found - expected, dtype=np.float64).sum() / np.square(expected, dtype=np.float64).sum()
    assert error <= 1e-11


@pytest.mark.parametrize("block", [5, 16, 300])
def test_floats_of_four_bits_that_are_made_in_parts(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts begin with a byte: ONNX models may have blocks of an odd length."""
    q, s = codes(16, (7 * 30,)), scales((-(-7 * 30 // block),), np.float32)
    pairs = (q[0::2] << 4 | q[1::2]).astype(np.uint8)
    held = bitsandbytes.FourBits("nf4", (7, 30), rlx.dtypes.f32, pairs, NF4, s, block)
    monkeypatch.setattr(bitsandbytes, "_CODES_AT_ONCE", 25)
    assert np.array_equal(held.floats(), (NF4[q] * np.repeat(s, block)[: len(q)]).reshape(7, 30))


@pytest.mark.parametrize(("part", "third"), [("q_proj", 0), ("k_proj", 1), ("v_proj", 2), ("o_proj", None)])
def test_packed_rows_of_gpt2_are_outputs(part: str, third: int | None) -> None:
    """bitsandbytes turns the weights of GPT-2, which files otherwise hold with a row for each input."""
    q = rlx.quantize(RNG.standard_normal((96 if third is not None else 32, 32)), "nf4")
    found = ARCHITECTURES["gpt2"].find(f"layers.0.self_attn.{part}.weight", SimpleNamespace(width=32), {}).make([q])  # type: ignore[arg-type]
    assert isinstance(found, PackedArray) and found.shape == (32, 32)
    assert np.array_equal(found.dequantize(), q.dequantize()[32 * (third or 0) :][:32])


REFUSED: dict[str, tuple[Any, str]] = {
    "an unknown method": (lambda: changed(gptq, settings={"quant_method": "quip"}), "rlx reads gptq, awq"),
    "no method": (lambda: changed(gptq, settings={"quant_method": None}), "rlx reads gptq"),
    "the layout of another kernel": (
        lambda: changed(gptq, settings={"format": "marlin"}), "quantization_config.format 'marlin'; rlx reads GPTQ"
    ),
    "another layout by its old name": (lambda: changed(gptq, settings={"checkpoint_format": "gptq_p"}), "'gptq_p'"),
    "two formats": (
        lambda: changed(gptq, settings={"format": "gptq", "checkpoint_format": "gptq_v2"}), "'gptq' and .*'gptq_v2'"
    ),
    "3 bits": (lambda: changed(gptq, settings={"bits": 3}), "GPTQ of 3 bits"),
    "bits as text": (lambda: changed(gptq, settings={"bits": "4"}), "expected an integer"),
    "a group of 0": (lambda: changed(gptq, settings={"group_size": 0}), "does not divide"),
    "a group of 48": (lambda: changed(gptq, settings={"group_size": 48}), "does not divide"),
    "a group of 16": (lambda: changed(awq, settings={"group_size": 16}), "shape"),
    "columns in another order": (
        lambda: changed(gptq, q__g_idx=np.arange(COLUMNS, dtype=np.int32)[::-1] // 128), "desc_act"
    ),
    "no scales": (lambda: changed(gptq, "q.scales"), "'q.scales' is missing"),
    "no zeros": (lambda: changed(awq, "q.qzeros"), "'q.qzeros' is missing"),
    "words of 64 bits": (lambda: changed(gptq, q__qweight=np.zeros((32, 16), np.int64)), "int64, expected int32"),
    "words in a row": (lambda: changed(gptq, q__qweight=np.zeros(32, np.int32)), "expected a matrix"),
    "other scales": (lambda: changed(gptq, q__scales=np.zeros((3, 16), np.float16)), "expected"),
    "both forms": (lambda: changed(gptq, q__weight=np.zeros((16, 256), np.float16)), "twice"),
    "AWQ of another kernel": (lambda: changed(awq, settings={"version": "gemv"}), "gemm"),
    "fp8 without a scale": (lambda: changed(lambda: fp8((128, 128)), "q.weight_scale_inv"), "has no scale"),
    "blocks as text": (lambda: changed(lambda: fp8((128, 128)), settings={"weight_block_size": "128"}), "two numbers"),
    "scales of other blocks": (
        lambda: changed(lambda: fp8((128, 128)), settings={"weight_block_size": [64, 32]}),
        "shape",
    ),
    "nf4 without a state": (lambda: state_of(b"{}"), "shape of its quant_state"),
    "nf4 whose state is no JSON": (lambda: state_of(b"{"), "JSON"),
    "nf4 of another shape": (lambda: state_of(None, shape=[3, 5]), "expected 8 of uint8"),
    "nf4 of another size of blocks": (lambda: state_of(None, blocksize=0), "blocksize of its quant_state is 0"),
    "nf4 of odd blocks": (lambda: state_of(None, blocksize=63), "expected an even number"),
    "nf4 of fewer blocks": (lambda: state_of(None, blocksize=32), "absmax is float32"),
    "nf4 with an offset that is none": (
        lambda: state_of(None, nested_blocksize=4, nested_offset=None), "nested_offset"
    ),
    "another kind of 4 bits": (lambda: changed(lambda: four_bits(kind="af4")), "'af4' of bitsandbytes"),
    "rows without scales": (lambda: changed(int8, q__SCB=np.zeros(3, np.float32)), "3 scales"),
    "zero points": (
        lambda: changed(lambda: compressed(4, 128), q__weight_zero_point=np.zeros(3, np.int32)), "zero points"
    ),
    "another shape": (lambda: changed(lambda: compressed(4, 128), q__weight_shape=np.array([1, 2])), "no matrix"),
}  # fmt: skip


def state_of(text: bytes | None, **more: Any) -> tuple[Arrays, dict[str, Any]]:
    """A weight of nf4 whose state is another."""
    arrays, settings, _ = four_bits()
    name = "q.weight.quant_state.bitsandbytes__nf4"
    held = json.dumps({**json.loads(arrays[name].tobytes()), **more}).encode() if text is None else text
    return {**arrays, name: np.frombuffer(held, np.uint8)}, settings


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    arrays, settings = REFUSED[name][0]()
    with pytest.raises(ModelFormatError, match=REFUSED[name][1]) as caught:
        opened(tmp_path, arrays, settings)
    assert str(tmp_path) in str(caught.value)
