"""Runs of fine-tuning: texts in rows and alone, packed bases, checkpoints, early stops, what is written and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.driver import MemoryPlan
from rlx.errors import CheckpointError, ModelFormatError, OutOfDeviceMemory, RlxError
from rlx.finetune import Settings, finetune
from rlx.finetune.adapter_files import read_peft, write_gguf, write_peft
from rlx.finetune.data import LeftOut
from rlx.finetune.examples import examples_of
from rlx.finetune.language import LanguageTask, batches, split
from rlx.finetune.merge import merge
from rlx.finetune.model import ToTrain, to_train, tokenizer_of
from rlx.finetune.room import batch_of
from rlx.finetune.rows import Rows, rows_of
from rlx.finetune.run import _Best
from rlx.finetune.settings import share
from rlx.formats import gguf, safetensors
from rlx.formats.gguf.convert import folder_to_gguf
from rlx.models import Lora, load, trainable
from rlx.models.language import written
from rlx.packed import PackedArray
from rlx.train import Training
from tests.finetune import tiny
from tests.full import full
from tests.models.language.test_families import folder_of
from tests.models.language.tiny import _bytes_tokenizer as bytes_tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_base(tmp_path_factory.mktemp("tiny") / "base", hidden_size=32, intermediate_size=64)


@pytest.fixture
def settings(base: Path, tmp_path: Path) -> Settings:
    data = tiny.write_lines(tmp_path / "data.jsonl", tiny.talks(12))
    return Settings(model=base, data=data, out=tmp_path / "out", lora=Lora(2, 4.0, targets=("q_proj", "down_proj")),
                    steps=6, batch=3, length=64, rate=1e-2, device="cpu")  # fmt: skip


def losses(settings: Settings) -> list[float]:
    lines = (settings.out / "training" / "metrics.jsonl").read_text().splitlines()
    return [found["loss"] for found in map(json.loads, lines) if "loss" in found]


def rows(settings: Settings, packed: bool) -> Rows:
    examples = examples_of(settings.data, tokenizer_of(settings.model), 64, LeftOut("", False))
    return rows_of(examples, 64, packed)


def test_packed_rows_give_the_loss_and_gradients_of_each_alone(settings: Settings) -> None:
    made = to_train(replace(settings, dtype="f64"))
    for values in made.parameters.values():
        values["lora_B"] += 0.1

    def of(packed: bool) -> Any:
        held = rows(settings, packed)
        (batch,) = held.batches(len(held), np.arange(len(held)))
        return rlx.value_and_grad(made.loss, device="cpu")(made.parameters, made.frozen, batch)

    (a, together), (b, alone) = of(True), of(False)
    assert a == pytest.approx(b, rel=1e-6)
    for module, values in together.items():
        for name, slope in values.items():
            np.testing.assert_allclose(slope, alone[module][name], rtol=1e-6, atol=1e-6 * np.abs(slope).max())


@pytest.mark.late
def test_parts_of_a_batch_weigh_each_target_alike(settings: Settings) -> None:
    whole, parts = settings, replace(settings, out=settings.out.with_name("parts"), accumulate=3)
    for each in (whole, parts):
        finetune(each, lambda line: None)
    np.testing.assert_allclose(losses(parts), losses(whole), rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 3])
def test_an_evaluation_is_the_mean_over_its_targets_in_however_many_parts(parts: int, settings: Settings) -> None:
    given = replace(settings, accumulate=parts, evaluation=settings.data)
    task = LanguageTask(given, lambda line: None)
    frozen, adapter = task.frozen, task.parameters
    with rlx.training(task.loss, adapter, given.optimizer(6, False), frozen=frozen, device="cpu",
                      accumulate=parts, progress=False) as run:  # fmt: skip
        held = task.evaluation()
        assert held is not None and task.model.adapted is not None
        mean = run.evaluate(held)["loss"]
    logits = task.model.adapted(adapter, frozen, task.rows.ids, segments=task.rows.segments).astype(np.float64)
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    row, place = np.nonzero(task.rows.targets >= 0)
    assert mean == pytest.approx(-chances[row, place, task.rows.targets[row, place]].mean(), rel=1e-5)


def test_an_evaluation_that_is_not_finite_is_never_the_best(settings: Settings) -> None:
    best = _Best(replace(settings, evaluation=0.5, patience=3), [(1, float("nan")), (2, 2.0), (3, float("nan"))])
    assert best.loss == 2.0 and not best.over()
    best = _Best(replace(settings, evaluation=0.5, patience=2), [(1, float("nan")), (2, float("inf"))])
    assert best.loss is None and best.over()
    assert best.parameters({"w": 1}) == {"w": 1}


def test_parts_are_rounded_as_they_are_written(settings: Settings) -> None:
    assert [share(*x) for x in ((0.07, 100), (1.1, 10), (0.1, 30), (0.101, 30), (2, 5), (1e-7, 10))] == [
        7, 11, 3, 4, 10, 1]  # fmt: skip
    assert len(split(replace(settings, evaluation=0.07), 100)) == 7


def test_paths_may_be_texts(settings: Settings) -> None:
    given = replace(settings, model=str(settings.model), out=str(settings.out), evaluation=str(settings.data))
    assert (given.model, given.out, given.evaluation) == (settings.model, settings.out, settings.data)


def test_one_process_says_that_it_shares_no_state(settings: Settings) -> None:
    said: list[str] = []
    finetune(replace(settings, zero=1, steps=1), said.append)
    assert any(line.startswith("zero: one process keeps the whole state") for line in said)
    with pytest.raises(RlxError, match="--zero is 3; expected 0 or 1: there are no stages 2 and 3"):
        replace(settings, zero=3)


def test_a_folder_that_holds_an_adapter_is_not_written_over(settings: Settings, tmp_path: Path) -> None:
    settings.out.mkdir()
    for name in ("adapter_config.json", "model"):
        (settings.out / name).mkdir()
        for resume in (False, True):
            with pytest.raises(CheckpointError, match=f"{name} exists already; give another folder"):
                finetune(replace(settings, resume=resume), lambda line: None)
        (settings.out / name).rmdir()
    (settings.out / "training").mkdir()
    (settings.out / "training" / "step-00000001.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"has no finetune\.json, so that its run is none of finetune's"):
        finetune(replace(settings, resume=True), lambda line: None)
    with pytest.raises(RlxError, match=r"there is no folder .*; make it, or give --merge another name"):
        finetune(replace(settings, out=tmp_path / "free", merge=tmp_path / "no" / "m.gguf"), lambda line: None)


def test_a_run_that_does_not_fit_leaves_its_folder_free(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_device(self: Any, batch: Any) -> Any:
        raise OutOfDeviceMemory("it needs more")

    with monkeypatch.context() as patch:
        patch.setattr(rlx.train.Training, "prepare", full_device)
        with pytest.raises(OutOfDeviceMemory, match="it needs more"):
            finetune(settings, lambda line: None)
    assert finetune(replace(settings, accumulate=3, steps=1), lambda line: None)["steps"] == 1


def test_another_base_or_other_data_to_evaluate_with_is_refused(settings: Settings, tmp_path: Path) -> None:
    given = replace(settings, steps=1, evaluation=tiny.write_lines(tmp_path / "held.jsonl", tiny.talks(4)))
    finetune(given, lambda line: None)
    other = tiny.write_base(tmp_path / "base", hidden_size=32, intermediate_size=64)
    tensors = {n: np.array(t) for n, t in safetensors.load(other / "model.safetensors").items()}
    tensors["model.layers.1.mlp.up_proj.weight"] *= 1.5
    safetensors.save(other / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(CheckpointError, match="own settings, data and model; the model has other weights"):
        finetune(replace(given, model=other, resume=True), lambda line: None)
    tiny.write_lines(tmp_path / "held.jsonl", tiny.talks(5))
    with pytest.raises(CheckpointError, match="the data is another"):
        finetune(replace(given, resume=True), lambda line: None)


def test_an_adapter_with_magnitudes_is_merged_afterwards(settings: Settings, tmp_path: Path) -> None:
    given = replace(settings, lora=Lora(2, dora=True, targets="q_proj"), steps=1)
    finetune(given, lambda line: None)
    finetune(replace(given, resume=True, merge=tmp_path / "merged"), lambda line: None)
    before, after = safetensors.load(given.model), safetensors.load(tmp_path / "merged")
    changed = {n for n in before if not np.array_equal(before[n], after[n])}
    assert changed == {f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)}


@pytest.mark.parametrize("full", [False, True])
def test_indexers_are_not_trained(full: bool, settings: Settings, tmp_path: Path) -> None:
    """Rows are shorter than what the indexers keep, so that the loss does not depend on them."""
    folder = folder_of("deepseek_v32-0", tmp_path / "sparse", index_topk=64)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    (folder / "tokenizer.json").write_text(json.dumps(bytes_tokenizer(vocabulary)))
    data = tiny.write_lines(tmp_path / "texts.jsonl", [{"text": "abc" * (i % 4 + 1)} for i in range(6)])
    given = replace(settings, model=folder, data=data, steps=2, lora=None if full else Lora(2, 4))
    said: list[str] = []
    finetune(given, said.append)
    memory = next(line for line in said if line.startswith("memory:"))
    assert ("the adapter" in memory) != full and "the frozen weights" in memory
    if not full:
        adapter = read_peft(given.out)
        assert adapter and not any("indexer" in module for module in adapter)
        return
    before, after = (safetensors.load(path) for path in (folder, given.out / "model"))
    same = {name for name, x in after.items() if np.array_equal(x, before[name])}
    own = {name for name in before if ".indexer." in name}
    assert before.keys() == after.keys() and own and own <= same
    assert "model.layers.0.self_attn.q_a_proj.weight" not in same
    one, other = (replace(given, model=path) for path in (folder, given.out / "model"))
    assert LanguageTask(one, str).base != LanguageTask(other, str).base


def course(made: ToTrain, frozen: Any, settings: Settings, steps: int) -> list[float]:
    held = rows(settings, True)
    with rlx.training(made.loss, made.parameters, settings.optimizer(steps, False), frozen=frozen, device="cpu",
                      progress=False) as run:  # fmt: skip
        return [m["loss"] for m in run.over(batches(settings, held, 0), steps=steps)]


@pytest.mark.late
def test_a_packed_base_learns_as_its_dequantized_weights_do(settings: Settings, tmp_path: Path) -> None:
    folder = tiny.write_base(tmp_path / "wide", hidden_size=256, head_dim=64, intermediate_size=256)
    folder_to_gguf(folder, tmp_path / "q4_k.gguf", "q4_k")
    given = replace(settings, model=tmp_path / "q4_k.gguf")
    made = to_train(given)
    packed = {name for name, w in made.frozen.items() if isinstance(w, PackedArray)}
    assert len(packed) == 16 and made.frozen["model.layers.0.mlp.up_proj.weight"].dtype.name == "q4_k"
    plain = {name: w.dequantize() if name in packed else w for name, w in made.frozen.items()}
    steps = 50 if full() else 8
    one, other = course(made, made.frozen, given, steps), course(made, plain, given, steps)
    np.testing.assert_allclose(one, other, rtol=1e-5)
    assert one[-1] < one[0]


@pytest.mark.late
def test_no_dequantized_weight_outlives_its_product(settings: Settings, tmp_path: Path) -> None:
    """In the plan of a GPU's step packed weights are dequantized within their products, of gradients too: only the
    embeddings of tokens are tensors, and no more bytes are alive at once than with floats."""
    wide = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 1024, "num_hidden_layers": 1}
    folder = tiny.write_base(tmp_path / "wide", **wide)
    folder_to_gguf(folder, tmp_path / "q4_k.gguf", "q4_k")
    made = to_train(replace(settings, model=tmp_path / "q4_k.gguf"))

    def planned(frozen: Any) -> tuple[rlx.Graph, MemoryPlan]:
        with rlx.training(made.loss, made.parameters, settings.optimizer(6, False), frozen=frozen, device="vulkan",
                          progress=False) as run:  # fmt: skip
            run.prepare(batch_of(settings, 64))
            compiled = next(iter(run._programs.values())).compiled
            return compiled.program, compiled.plan

    graph, plan = planned(made.frozen)
    packed = {tuple(w.shape) for w in made.frozen.values() if isinstance(w, PackedArray)}
    ops = [node.op.name for node in graph.nodes if any(t.dtype.is_packed for t in node.inputs)]
    assert ops.count("packed_matmul") > 10 and set(ops) <= {"packed_matmul", "gather", "dequantize"}
    whole = [node.outputs[0].shape for node in graph.nodes if node.op.name == "dequantize"]
    assert whole == [(settings.batch * 64, 256)] and not packed & set(whole)
    plain = {n: w.dequantize() if isinstance(w, PackedArray) else w for n, w in made.frozen.items()}
    assert plan.max_live_bytes <= planned(plain)[1].max_live_bytes


@pytest.mark.late
def test_bf16_between_layers_rounds_products_too_and_learns_alike(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str | None] = []
    begin = rlx.train.training

    def training(*args: Any, precision: str | None = None, **more: Any) -> Any:
        made.append(precision)
        return begin(*args, precision=precision, **more)

    monkeypatch.setattr(rlx.train, "training", training)
    finetune(replace(settings, steps=3))
    half = replace(settings, steps=3, activations="bf16", out=tmp_path / "half")
    finetune(half)
    assert made == [None, "bf16"]
    assert losses(half) == pytest.approx(losses(settings), rel=2e-2)


def test_a_run_that_goes_on_ends_in_the_same_bits(settings: Settings) -> None:
    whole, parted = settings, replace(settings, out=settings.out.with_name("parted"), save_every=2)
    finetune(whole, lambda line: None)

    class Killed(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("memory:"):
            raise Killed

    with pytest.raises(Killed):
        finetune(parted, stop)
    made, held = to_train(parted), rows(parted, True)
    with rlx.training(made.loss, made.parameters, parted.optimizer(6, False), frozen=made.frozen, device="cpu",
                      folder=parted.out / "training", resume=True, total=6, progress=False) as run:  # fmt: skip
        for _ in run.over(lambda skip: batches(parted, held, skip), steps=4, save_every=2):
            pass
    with pytest.raises(CheckpointError, match="holds a run already; --resume goes on with it"):
        finetune(parted, lambda line: None)
    with pytest.raises(CheckpointError, match=r"rate is 0\.5, it was 0.01"):
        finetune(replace(parted, resume=True, rate=0.5), lambda line: None)
    others = tiny.write_lines(parted.data.with_name("others.jsonl"), tiny.talks(5))
    with pytest.raises(CheckpointError, match="the data is another"):
        finetune(replace(parted, resume=True, data=others), lambda line: None)
    assert finetune(replace(parted, resume=True), lambda line: None)["steps"] == 6
    assert losses(parted) == losses(whole)
    files = ("adapter_model.safetensors", "adapter_config.json", "adapter.gguf")
    assert [(whole.out / f).read_bytes() for f in files] == [(parted.out / f).read_bytes() for f in files]


@pytest.mark.late
def test_it_stops_where_evaluations_get_no_better_and_keeps_the_best(settings: Settings) -> None:
    lines: list[str] = []
    given = replace(settings, steps=40, rate=0.5, evaluation=0.25, evaluate_every=2, patience=2, schedule="constant")
    found = finetune(given, lines.append)
    assert found["steps"] < 40 and "stopped: 2 evaluations in a row were no better" in "\n".join(lines)
    best = safetensors.load(given.out / "training" / "best.safetensors")
    written = {n: v for values in read_peft(given.out).values() for n, v in values.items()}
    assert len(best) == 8 and any(np.array_equal(v, written["lora_B"]) for v in best.values())
    course = (given.out / "training" / "metrics.jsonl").read_text().splitlines()
    evaluations = [json.loads(x)["evaluation"]["loss"] for x in course if "evaluation" in x]
    assert found["evaluation"] == pytest.approx(min(evaluations))
    again = finetune(replace(given, resume=True), lines.append)
    assert again["evaluation"] == found["evaluation"] and "the run has ended" in "\n".join(lines)


@pytest.mark.late(dora=True)
@pytest.mark.parametrize("dora", [False, True])
def test_a_merged_model_gives_the_adapters_logits(dora: bool, settings: Settings, tmp_path: Path) -> None:
    lora = replace(settings.lora or Lora(), dora=dora)
    given = replace(settings, lora=lora, merge=tmp_path / "merged")
    lines: list[str] = []
    finetune(given, lines.append)
    assert any(line.startswith("no GGUF adapter") for line in lines) == dora
    made = to_train(given)
    ids = np.arange(3, 23, dtype=np.int32)
    assert made.adapted is not None
    wanted = made.adapted(read_peft(given.out), made.frozen, ids[None])[0]
    with load(tmp_path / "merged", "cpu", context=64) as model:
        np.testing.assert_allclose(model.logits(ids), wanted, rtol=1e-4, atol=1e-4)
        assert list(model.generate("say", 3))
    with load(settings.model, "cpu", context=64) as model:
        model.load_adapter("own", given.out)
        np.testing.assert_allclose(model.logits(ids, adapter="own"), wanted, rtol=1e-4, atol=1e-4)


MERGED = {
    "openai-gpt-0": "its matrices the other way round", "falcon_h1-0": "products that the model multiplies",
    "gpt_neox-0": "q, k and v in one, and GGUF by its graph", "lfm2-0": "names of its own",
    "bloom-0": "GGUF by its graph",
}  # fmt: skip


@pytest.mark.late(case=tuple(MERGED)[3:])
@pytest.mark.parametrize("case", MERGED)
def test_adapters_and_merged_models_of_other_families(case: str, tmp_path: Path) -> None:
    base = folder_of(case, tmp_path / "base")
    function, weights = trainable(base)
    adapted, adapter = function.adapted(Lora(2), weights)
    for values in adapter.values():
        values["lora_B"] += 0.05
    ids = np.arange(3, 12, dtype=np.int32)
    wanted = adapted(adapter, weights, ids[None])[0]
    for name in ("merged", "merged.gguf") if "GGUF" in MERGED[case] else ("merged",):
        merge(base, adapter, adapted.lora, tmp_path / name)
        with load(tmp_path / name, "cpu", context=64, engine="numpy") as model:
            np.testing.assert_allclose(model.logits(ids), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    config = json.loads((base / "config.json").read_text())
    write_peft(tmp_path / "adapter", adapter, adapted.lora, base=None, model_type=config["model_type"], task=None)
    with load(base, "cpu", context=64, engine="numpy") as model:
        model.load_adapter("own", tmp_path / "adapter")
        logits = model.logits(ids, adapter="own")
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    with pytest.raises(ModelFormatError, match=rf"as GGUF, not of '{case[:-2]}'; --merge writes the model"):
        write_gguf(tmp_path / "adapter.gguf", adapter, adapted.lora, config)


@pytest.mark.late(case=["gpt2-0", "phi3-0"])
@pytest.mark.parametrize("case", ["qwen2-0", "gpt2-0", "phi3-0"])
def test_magnitudes_beside_biases_and_joined_products(case: str, tmp_path: Path) -> None:
    """A loaded adapter of DoRA gives the logits of the function that was trained, alone and beside another adapter."""
    base = folder_of(case, tmp_path / "base")
    function, weights = trainable(base)
    adapted, adapter = function.adapted(Lora(2, dora=True), weights)
    for i, values in enumerate(adapter.values()):
        values["lora_B"] += 0.05
        values["lora_magnitude_vector"] *= 1.2 + 0.3 * np.sin(i + np.arange(len(values["lora_B"]), dtype=np.float32))
    ids = np.arange(3, 12, dtype=np.int32)
    wanted = adapted(adapter, weights, ids[None])[0]
    config = json.loads((base / "config.json").read_text())
    write_peft(tmp_path / "own", adapter, adapted.lora, base=None, model_type=config["model_type"], task=None)
    plain, other = function.adapted(Lora(3), weights)
    write_peft(tmp_path / "other", other, plain.lora, base=None, model_type=config["model_type"], task=None)
    with load(base, "cpu", context=64, engine="numpy") as model:
        before = model.logits(ids)
        for name in ("own", "other"):
            model.load_adapter(name, tmp_path / name)
        moved = model.logits(ids, adapter="own")
        assert np.abs(moved - wanted).max() <= 1e-4 * np.abs(wanted).max() < np.abs(moved - before).max()
        batch = model.batch(3)
        expected = {
            batch.add(ids, 1, adapter="own"): wanted, batch.add(ids, 1, adapter="other"): before,
            batch.add(ids, 1): before,
        }  # fmt: skip
        while expected:
            for token in batch.step():
                assert token.token == int(expected.pop(token.sequence)[-1].argmax())
        batch.close()


def test_a_gguf_file_of_graph_names_is_not_merged(settings: Settings, tmp_path: Path) -> None:
    written.folder_to_gguf(folder_of("gpt_neox-0", tmp_path / "base"), tmp_path / "m.gguf")
    with pytest.raises(RlxError, match=r"m\.gguf: rlx makes no folder of such a GGUF file"):
        finetune(replace(settings, model=tmp_path / "m.gguf", merge=tmp_path / "merged"), lambda line: None)


def test_no_gguf_adapter_where_a_file_has_the_heads_in_another_order(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"of llama, .* as GGUF, not of 'qwen3_5_text'"):
        write_gguf(tmp_path / "adapter.gguf", {}, Lora(2), {"model_type": "qwen3_5_text"})


def test_a_gguf_adapter_has_the_rows_in_llama_cpps_order(settings: Settings) -> None:
    finetune(settings, lambda line: None)
    held = read_peft(settings.out)["model.layers.1.self_attn.q_proj"]
    with gguf.read(settings.out / "adapter.gguf") as file:
        tensors = {name: np.asarray(t.read()) for name, t in file.tensors.items()}
        assert file.metadata["adapter.lora.alpha"] == 4.0 and file.metadata["general.type"] == "adapter"
    np.testing.assert_array_equal(tensors["blk.1.attn_q.weight.lora_a"], held["lora_A"])
    pairs = held["lora_B"].reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(32, 2)  # halves of 4 heads as neighbours
    np.testing.assert_array_equal(tensors["blk.1.attn_q.weight.lora_b"], pairs)
    assert tensors["blk.0.ffn_down.weight.lora_b"].shape == (32, 2)


@pytest.mark.late
def test_all_weights_are_trained_and_written_as_a_folder(settings: Settings) -> None:
    given = replace(settings, lora=None, rate=1e-3)
    finetune(given, lambda line: None)
    before, after = safetensors.load(given.model), safetensors.load(given.out / "model")
    assert before.keys() == after.keys() and not any(np.array_equal(before[n], after[n]) for n in before)
    with load(given.out / "model", "cpu", context=64) as model:
        assert list(model.generate("say", 2))


def test_places_that_cannot_be_written_are_refused_before_the_run(settings: Settings, tmp_path: Path) -> None:
    for place, why in ((settings.out, "is the folder of --out"), (tmp_path / "no" / "m.gguf", "there is no folder")):
        with pytest.raises(RlxError, match=why):
            finetune(replace(settings, merge=place), lambda line: None)
    with pytest.raises(RlxError, match="is the model's own folder"):
        finetune(replace(settings, out=settings.model), lambda line: None)
    assert not settings.out.exists() and not (settings.model / "training").exists()


def test_a_run_says_its_loss_and_where_it_was_interrupted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    step = Training.step

    def interrupted(run: Training, batch: Any) -> Any:
        if run.steps == 4:
            raise KeyboardInterrupt
        return step(run, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finetune(replace(settings, save_every=3), lines.append)
    assert lines[-1] == "interrupted in step 4 of 6; --resume goes on from step-00000003.safetensors"
    finetune(replace(settings, save_every=3, resume=True), lines.append)
    values = losses(settings)
    assert f"loss: {values[0]:.4f} in step 1, {values[-1]:.4f} in step 6" in lines


def test_settings_and_memory_that_do_not_fit(settings: Settings, tmp_path: Path) -> None:
    for wrong, why in (
        ({"batch": 0}, "batch is 0; expected an integer from 1"), ({"accumulate": 2}, "equal parts of the batch of 3"),
        ({"schedule": "up"}, "schedule is 'up'; expected one of linear"), ({"rate": -1.0}, "rate is -1.0"),
        ({"patience": 1}, "beside --patience"), ({"evaluation": 1.5}, "a part between 0 and 1"),
        ({"evaluation": 5}, "--eval is 5; expected a data file"), ({"model": None}, "None; expected a path"),
        ({"warmup": -1e-10}, "a number from 0, at most 1"), ({"epochs": 0}, "a number above 0, at most"),
        ({"zero": 2}, "zero is 2; expected 0 or 1"), ({"clip": float("inf")}, "clip is inf"),
        ({"packed": "no"}, "--pack is 'no'; expected True or False"), ({"resume": 1}, "resume is 1"),
        ({"lora": 8}, r"expected an rlx\.models\.Lora"),
        ({"lora": None, "merge": tmp_path / "m"}, "merge is .*expected nothing beside --full"),
        ({"evaluation": 0.5, "evaluate_every": 0}, "finetune: --eval-every is 0"),
    ):  # fmt: skip
        with pytest.raises(RlxError, match=why):
            replace(settings, **wrong)
    with pytest.raises(RlxError, match=r"quantize is 'f16'; expected a packed dtype"):
        finetune(replace(settings, quantize="f16"), lambda line: None)
    with pytest.raises(RlxError, match="of blocks of 256; no matrix has rows of whole blocks"):
        finetune(replace(settings, quantize="q4_k"), lambda line: None)
    lines: list[str] = []
    finetune(replace(settings, quantize="q8_0", steps=1), lines.append)
    assert lines[0] == "packed: 14 of the 21 weights, as q8_0"
    folder_to_gguf(settings.model, tmp_path / "q.gguf", "q8_0")
    with pytest.raises(RlxError, match="all weights are trained in a folder; `rlx convert` makes one"):
        finetune(replace(settings, out=tmp_path / "other", model=tmp_path / "q.gguf", lora=None), lambda line: None)
    from rlx.finetune.room import refused

    session = rlx.Session("cpu", memory_limit=1_000_000)
    error = refused(OutOfDeviceMemory("it needs more"), replace(settings, batch=4), 64, session)
    assert "it needs more; it would fit with --accumulate" in str(error)
