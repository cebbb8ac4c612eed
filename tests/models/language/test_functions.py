"""Language models as functions of their weights: values and gradients, several texts in a row, packed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CapacityExceeded, DTypeError, GraphError, ModelFormatError, ShapeError
from rlx.finetune.adapter_files import write_peft
from rlx.models import Lora, load, trainable
from rlx.packed import PackedArray
from tests.models.language import tiny
from tests.models.language.families import IDS_ASKED, LIMIT, error
from tests.models.language.test_beside_transformers import MODELS, judge, random_model
from tests.models.language.test_families import BLOCKS, CASES, folder_of
from tests.outside import outside

IDS = tiny.TOKENS[:12].reshape(2, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_language_model(tmp_path_factory.mktemp("llama"))


def total(function: Any, ids: Any, by: Any, **more: Any) -> Any:
    """A function of weights whose gradient reaches every logit."""
    return lambda weights: rlx.sum(function(weights, ids, **more) * by)


@pytest.mark.parametrize("config", [tiny.LLAMA, tiny.GEMMA], ids=["llama", "gemma2"])
def test_logits_and_slopes_are_those_of_the_papers_formulas(config: dict[str, Any], tmp_path: Path) -> None:
    function, weights = trainable(tiny.write_language_model(tmp_path, config), "f64")
    assert weights.keys() == tiny.weights(config).keys()
    by = np.sin(np.arange(6.0 * config["vocab_size"])).reshape(1, 6, -1)
    rows = function(weights, IDS[:1])
    np.testing.assert_allclose(rows[0], tiny.logits(config, IDS[0]), rtol=1e-10, atol=1e-12)
    slopes = rlx.grad(total(function, IDS[:1], by), device="cpu")(weights)
    rng = np.random.default_rng(0)
    way = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    step = 1e-6

    def moved(sign: float) -> float:
        near = {name: w.astype(np.float64) + sign * step * way[name] for name, w in weights.items()}
        return float((tiny.logits(config, IDS[0], near) * by[0]).sum())

    along = sum(float((slopes[name] * way[name]).sum()) for name in weights)
    assert along == pytest.approx((moved(1) - moved(-1)) / (2 * step), rel=1e-6)


@pytest.mark.judged
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Norms and states are of f32 in transformers, whatever the model's dtype."""
    torch = outside("torch")
    random_model(tmp_path, name)
    model, ids = judge(tmp_path, name), torch.randint(3, 96, (2, 23))
    made = model(ids).logits
    by = torch.randn_like(made)
    (made * by).sum().backward()
    wanted = made.detach().numpy()
    function, weights = trainable(tmp_path, "f64")
    tokens = ids.numpy().astype(np.int32)
    found = function(weights, tokens)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    slopes = rlx.grad(total(function, tokens, by.numpy()), device="cpu")(weights)
    theirs = {n: p.grad.numpy() for n, p in model.named_parameters()}
    assert {n for n in theirs if ".experts." not in n} <= slopes.keys()
    for weight, slope in slopes.items():
        if weight in theirs:
            limit = 1e-3 if "linear_attn" in weight else 5e-5
            assert np.abs(slope - theirs[weight]).max() <= limit * max(1e-9, np.abs(theirs[weight]).max()), weight


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", BLOCKS)
def test_every_block_is_a_function_with_slopes(case: str, tmp_path: Path) -> None:
    """Values beside frozen ones of transformers, a slope beside a difference, two texts in a row beside each alone."""
    function, weights = trainable(folder_of(case, tmp_path), "f64")
    ids = np.asarray(IDS_ASKED, np.int32)[None]
    assert error(function(weights, ids)[0, -1, :16], np.asarray(CASES[case]["logits"])) <= LIMIT
    row, rng, step = ids[:, :7], np.random.default_rng(0), 1e-6
    segments = None if function.apart else np.array([[1, 1, 1, 2, 2, 2, 2]], np.int32)
    by = np.cos(np.arange(7.0 * function.config.vocabulary)).reshape(1, 7, -1)
    way = {name: rng.standard_normal(w.shape) * 0.1 for name, w in weights.items()}
    both = rlx.value_and_grad(total(function, row, by, segments=segments), device="cpu")
    slopes = both(weights)[1]
    ends = [float(both({n: w + sign * step * way[n] for n, w in weights.items()})[0]) for sign in (1, -1)]
    along = sum(float((slopes[n] * way[n]).sum()) for n in weights)
    assert along == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-5)
    if segments is not None:
        found = function(weights, row, segments=segments)
        for part in (slice(0, 3), slice(3, 7)):
            np.testing.assert_allclose(found[:, part], function(weights, row[:, part]), rtol=1e-9, atol=1e-9)


def test_texts_side_by_side_are_as_each_alone(folder: Path) -> None:
    function, weights = trainable(folder, "f64")
    texts = [tiny.TOKENS[:5], tiny.TOKENS[5:8], tiny.TOKENS[8:15]]
    row, segments = np.concatenate(texts)[None], np.repeat([1, 2, 3], [5, 3, 7]).astype(np.int32)[None]
    by = np.cos(np.arange(15.0 * 60)).reshape(1, 15, 60)
    both = rlx.value_and_grad(total(function, row, by, segments=segments), device="cpu")(weights)
    alone = [rlx.value_and_grad(total(function, text[None], by[:, s : s + len(text)]), device="cpu")(weights)
             for s, text in zip((0, 5, 8), texts, strict=True)]  # fmt: skip
    assert both[0] == pytest.approx(sum(v for v, _ in alone), rel=1e-9)
    for name, slope in both[1].items():
        np.testing.assert_allclose(slope, sum(g[name] for _, g in alone), rtol=1e-6, atol=1e-9)
    places = np.concatenate([np.arange(len(text), dtype=np.int32) for text in texts])[None]
    same = function(weights, row, places, segments)
    np.testing.assert_allclose(same, function(weights, row, segments=segments), rtol=1e-12)
    shifted = function(weights, texts[0][None], np.arange(7, 12, dtype=np.int32)[None])
    np.testing.assert_allclose(shifted, function(weights, texts[0][None]), rtol=1e-9)  # angles differ by differences


@pytest.mark.judged
def test_sinks_and_segments_go_together(tmp_path: Path) -> None:
    """gpt-oss' attention is written out, with a mask of its own."""
    outside("transformers")
    random_model(tmp_path, "gpt_oss")
    function, weights = trainable(tmp_path)
    row, segments = tiny.TOKENS[None, :9], np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2]], np.int32)
    found = function(weights, row, segments=segments)
    for part in (slice(0, 4), slice(4, 9)):
        np.testing.assert_allclose(found[:, part], function(weights, row[:, part]), rtol=1e-4, atol=1e-4)


def test_layers_computed_again_give_the_same(folder: Path) -> None:
    by = np.sin(np.arange(2.0 * 6 * 60)).reshape(2, 6, 60).astype(np.float32)
    slopes = []
    for again in (False, True):
        function, weights = trainable(folder, checkpoint=again)
        slopes.append(rlx.grad(rlx.checkpoint(total(function, IDS, by)), device="cpu")(weights))
    for name, slope in slopes[0].items():
        np.testing.assert_allclose(slope, slopes[1][name], rtol=1e-5, atol=1e-4)


def test_packed_weights_stay_so_and_gradients_pass_through(tmp_path: Path) -> None:
    held = {}
    for kind in (None, "q8_0"):
        held[kind] = tiny.write_gguf(tmp_path / f"{kind}.gguf", kind)
    function, packed = trainable(tmp_path / "q8_0.gguf")
    plain, weights = trainable(tmp_path / "None.gguf")
    assert isinstance(packed["model.layers.0.self_attn.q_proj.weight"], PackedArray)
    weights = {name: held["q8_0"][name] for name in weights}
    norms = [name for name in packed if not isinstance(packed[name], PackedArray)]
    by = np.sin(np.arange(2.0 * 6 * 60)).reshape(2, 6, 60).astype(np.float32)

    def of(function: Any, rest: dict[str, Any]) -> Any:
        return rlx.value_and_grad(lambda own: rlx.sum(function({**rest, **own}, IDS) * by), device="cpu")(
            {name: weights[name] for name in norms}
        )

    (a, mine), (b, theirs) = of(function, packed), of(plain, weights)
    assert a == pytest.approx(b, rel=1e-5)
    for name in norms:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dora", [False, True])
def test_a_correction_of_a_packed_weight_leaves_it_packed(dora: bool, tmp_path: Path) -> None:
    """No tensor in the program of the gradient is as large as the smallest of the weights in f32."""
    held = tiny.write_gguf(tmp_path / "q4_0.gguf", "q4_0")
    function, weights = trainable(tmp_path / "q4_0.gguf")
    adapted, adapter = function.adapted(Lora(2, 4.0, dora=dora, targets=("down_proj", "lm_head")), weights)
    for values in adapter.values():
        values["lora_B"] += 0.1
    value = rlx.jit(rlx.value_and_grad(lambda a: rlx.sum(adapted(a, weights, IDS[:1, :3]) ** 2)), device="cpu")
    loss, slopes = value(adapter)
    slots = value.report()[-1].plan.slots.values()
    assert max(slot.nbytes for slot in slots if slot.segment.startswith("arena")) < 4 * 60 * 64
    lora, name = adapted.lora, "model.layers.1.mlp.down_proj"
    near = {n: np.asarray(w, np.float64) for n, w in held.items()}
    for module, own in adapter.items():
        w = near[f"{module}.weight"] + lora.scale * own["lora_B"].astype(np.float64) @ own["lora_A"]
        if dora:
            w *= (own["lora_magnitude_vector"] / np.linalg.norm(w, axis=1))[:, None]
        near[f"{module}.weight"] = w
    wanted = tiny.logits(tiny.PACKED, IDS[0, :3], near)
    assert loss == pytest.approx((wanted**2).sum(), rel=1e-4)
    assert np.abs(slopes[name]["lora_A"]).max() > 0
    assert slopes[name].keys() == adapter[name].keys()


@pytest.mark.judged
def test_modules_that_hold_several_products_are_corrected_as_one(tmp_path: Path) -> None:
    """Phi-3 has q, k and v in one matrix, GPT-2 has it the other way round."""
    outside("transformers")
    for name, target in (("phi3", "qkv_proj"), ("gpt2", "c_attn")):
        random_model(tmp_path / name, name)
        function, weights = trainable(tmp_path / name, "f64")
        adapted, adapter = function.adapted(Lora(3, 3.0, targets=target), weights)
        changed = dict(weights)
        for module, own in adapter.items():
            own["lora_B"] += np.sin(np.arange(own["lora_B"].size)).reshape(own["lora_B"].shape).astype(np.float32)
            low = own["lora_B"].astype(np.float64) @ own["lora_A"]
            changed[f"{module}.weight"] = weights[f"{module}.weight"] + (low.T if name == "gpt2" else low)
        np.testing.assert_allclose(adapted(adapter, weights, IDS), function(changed, IDS), rtol=1e-6, atol=1e-6)


def test_what_cannot_be_is_told(folder: Path, tmp_path: Path) -> None:
    function, weights = trainable(folder, context=8)
    short = {name: w for name, w in weights.items() if name != "model.norm.weight"}
    with pytest.raises(GraphError, match=r"no 'model.norm.weight'.*give all that"):
        function(short, IDS)
    with pytest.raises(ShapeError, match=r"weight 'model.norm.weight' is f32\[3\]; expected shape \(24,\)"):
        function({**weights, "model.norm.weight": np.ones(3, np.float32)}, IDS)
    with pytest.raises(DTypeError, match=r"'model.norm.weight' is i32.*expected floats"):
        function({**weights, "model.norm.weight": np.ones(24, np.int32)}, IDS)
    with pytest.raises(ShapeError, match=r"ids are f64\[2, 6\]; expected i32 \(batch, length\)"):
        function(weights, IDS * 1.0)
    with pytest.raises(ShapeError, match="65 tokens in a row; the model has positions for 64"):
        function(weights, np.zeros((1, 65), np.int32))
    with pytest.raises(ShapeError, match=r"segments are .*; expected i32 \(2, 6\), as the ids"):
        function(weights, IDS, segments=IDS[:1])
    with pytest.raises(CapacityExceeded, match="positions: row 1 has index 8"):
        function(weights, IDS[:1, :2], np.array([[7, 8]], np.int32))
    with pytest.raises(GraphError, match=r"no product is of a module 'q_pro' \(did you mean 'q_proj'\?\)"):
        function.adapted(Lora(targets="q_pro"), weights)
    adapted, adapter = function.adapted(Lora(2, targets="q_proj"), weights)
    with pytest.raises(GraphError, match=r"the adapter has no 'model.layers.1.self_attn.q_proj'"):
        adapted(dict(list(adapter.items())[:1]), weights, IDS)
    with pytest.raises(DTypeError, match="rslora is 'no'; expected True or False"):
        Lora(rslora="no")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="rank is 0; expected an integer from 1"):
        Lora(0)
    mamba, own = trainable(tiny.write_mamba(tmp_path))
    with pytest.raises(GraphError, match="segments beside recurrent layers, whose states"):
        mamba(own, IDS % 20, segments=IDS)
    with pytest.raises(ModelFormatError, match="does not exist"):
        trainable(tmp_path / "nothing")
    with pytest.raises(DTypeError, match="dtype is i32; expected f32"):
        trainable(folder, "i32")


@pytest.mark.judged
@pytest.mark.parametrize("name, target", [("phi3", "qkv_proj"), ("gpt2", "c_attn")])
def test_such_a_modules_adapter_runs_beside_the_loaded_model(name: str, target: str, tmp_path: Path) -> None:
    outside("transformers")
    random_model(tmp_path / "base", name)
    function, weights = trainable(tmp_path / "base")
    adapted, adapter = function.adapted(Lora(3, 3.0, targets=target), weights)
    for own in adapter.values():
        own["lora_B"] += np.sin(np.arange(own["lora_B"].size)).reshape(own["lora_B"].shape).astype(np.float32)
    write_peft(tmp_path / "a", adapter, adapted.lora, base=None, model_type=name, task=None)
    with load(tmp_path / "base", "cpu", context=32) as model:
        model.load_adapter("a", tmp_path / "a")
        found = model.logits(IDS[0], adapter="a")
    wanted = adapted(adapter, weights, IDS[:1])[0]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert np.abs(wanted - function(weights, IDS[:1])[0]).max() > 0.1
    for own in adapter.values():
        own["lora_B"] = np.concatenate([own["lora_B"]] * 2)
    write_peft(tmp_path / "b", adapter, adapted.lora, base=None, model_type=name, task=None)
    with load(tmp_path / "base", "cpu", context=32) as model, pytest.raises(ModelFormatError, match="rows, expected"):
        model.load_adapter("b", tmp_path / "b")
