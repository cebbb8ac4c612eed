"""Models as actors of Ray Data. Tests with actors run where ray is installed; `make judges` does not install it, since
its packages take 300 MB: pip install 'rlx[ray]'."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import bulk
from rlx.errors import DataError, DeviceUnavailable, DTypeError, RlxError
from tests.models import task_folders
from tests.models.language.tiny import write_language_model
from tests.models.tiny import SENTENCES, write_model
from tests.onnx.models import model, node

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns of its own deprecated settings
with_ray = pytest.mark.late  # where it is installed
HAS_RAY = importlib.util.find_spec("ray") is not None
TEXTS = [SENTENCES[i % 5] for i in range(40)]


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(RlxError, match=r"is not installed: pip install 'rlx\[ray\]'"):
        bulk.embed("data.parquet", write_model(tmp_path / "model"))


def test_models_of_other_tasks_are_refused_first(tmp_path: Path) -> None:
    encoder, labels = write_model(tmp_path / "encoder"), task_folders.write(tmp_path / "labels", "cross-encoder")
    with pytest.raises(RlxError, match="is a classifier; expected an encoder of sentences or a language model"):
        bulk.embed("data.parquet", labels)
    for call in (bulk.generate, bulk.classify):
        with pytest.raises(RlxError, match="is an encoder of sentences; expected a"):
            call("data.parquet", encoder)


def test_a_cluster_that_runs_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses a number of CPUs beside RAY_ADDRESS, or where `ray start` was called."""
    asked: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        asked.append(options)
        if "num_cpus" in options:
            raise ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")

    fake = SimpleNamespace(init=init, is_initialized=lambda: False, data=None)
    for name in ("ray", "ray.data"):
        monkeypatch.setitem(sys.modules, name, fake)
    assert bulk._ray(4) is fake
    assert [options.get("num_cpus") for options in asked] == [5, None]


def test_an_actors_threads_are_on_one_machine() -> None:
    nodes = [{"Alive": alive, "Resources": {"CPU": 3.0, "GPU": 1.0}} for alive in (True, True, True, True, False)]
    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 12.0, "GPU": 4.0}, nodes=lambda: nodes)
    assert bulk._placed("embed", cluster, "cpu", None, 2)["size"] == 4
    assert bulk._placed("embed", cluster, "cpu", None, None)["size"] == 11
    assert bulk._placed("embed", cluster, "auto", None, None) == {"size": 4, "device": "cuda", "num_gpus": 1,
                                                                 "threads": None}  # fmt: skip
    with pytest.raises(DeviceUnavailable, match="5 actors of 2 CPUs, beside one that reads"):
        bulk._placed("embed", cluster, "cpu", 5, 2)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster with room for four threads of actors, one CPU that reads, and what Ray takes for a GPU."""
    found = pytest.importorskip("ray", reason="bulk inference needs ray, which pip install 'rlx[ray]' brings")
    found.init(num_cpus=5, num_gpus=1, include_dashboard=False, logging_level="error")
    found.data.DataContext.get_current().enable_progress_bars = False
    found.data.DataContext.get_current().execution_options.preserve_order = True
    yield found
    found.shutdown()


@pytest.fixture
def parquet(ray: Any, tmp_path: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"id": range(40), "text": TEXTS, "kept": [None, {"a": 1}] * 20})
    parquet.write_table(table, tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


def at_once(**more: Any) -> dict[str, Any]:
    return {"device": "cpu", "batch_size": 10, **more}


@with_ray
def test_embeddings_are_those_of_the_model(parquet: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = write_model(tmp_path / "model")
    bulk.embed(parquet, folder, actors=2, **at_once()).write_parquet(tmp_path / "out")
    given, got = pq.read_table(parquet), pq.read_table(tmp_path / "out")
    assert got.select(["id", "text", "kept"]).equals(given)
    with rlx.models.load(folder, "cpu") as encoder:
        assert np.abs(np.array(got["embedding"].to_pylist()) - encoder.encode(TEXTS)).max() < 1e-6


@with_ray
@pytest.mark.vulkan
def test_an_actor_has_the_gpu_that_ray_gives_it(ray: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (row,) = bulk.embed(ray.data.from_items([{"text": TEXTS[0]}]), folder, device="vulkan").take_all()
    with rlx.models.load(folder, "cpu") as encoder:
        assert np.abs(np.array(row["embedding"]) - encoder.embed(TEXTS[0])).max() < 1e-5


@with_ray
def test_labels_and_their_scores(parquet: Path, tmp_path: Path) -> None:
    folder = task_folders.write(tmp_path / "labels", "cross-encoder of three labels")
    rows = bulk.classify(parquet, folder, actors=1, **at_once(truncate=True)).take_all()
    with rlx.models.load(folder, "cpu") as classifier:
        for row, (best,) in zip(rows, classifier.classify(TEXTS, truncate=True), strict=True):
            assert row["label"] == best["label"] and row["label_score"] == pytest.approx(best["score"], abs=1e-6)


@with_ray
def test_answers_are_those_of_each_prompt_alone(ray: Any, tmp_path: Path) -> None:
    folder = write_language_model(tmp_path / "language", text=True)
    data = ray.data.from_items([{"text": text} for text in ("a cat", "dog", "a longer line of text", "cat", "the dog")])
    rows = bulk.generate(data, folder, "text", max_tokens=5, slots=3, actors=1, **at_once()).take_all()
    with rlx.models.load(folder, "cpu") as language:
        for row in rows:
            assert row["answer"] == "".join(language.generate(row["text"], 5))
            assert row["answer_ended"] == language.stats.ended


@with_ray
def test_an_actors_error_is_told_without_rays(ray: Any, tmp_path: Path) -> None:
    folder = write_language_model(tmp_path / "language", text=True)
    made = bulk.generate(ray.data.from_items([{"prompt": "a" * 90}]), folder, actors=1, **at_once())
    with pytest.raises(RlxError, match=r"^generate: 'a{40}'… in column 'prompt': 90 tokens are more than the context"):
        bulk.write(made, tmp_path / "out")


@with_ray
def test_rows_of_an_onnx_model_may_differ_in_length(ray: Any, tmp_path: Path) -> None:
    lengths = [3, 5, 3, 3, 5]
    rows = [{"n": n, "x": [float(i + n) for i in range(n)]} for n in lengths]
    nodes = [node("Mul", "x x", "square"), node("ReduceSum", "x axes", "total", keepdims=0)]
    written = onnx_file(
        tmp_path, nodes, {"x": ["b", "n"]}, {"square": ["b", "n"], "total": ["b"]}, {"axes": np.array([1])}
    )
    got = bulk.infer(ray.data.from_items(rows), written, actors=1, **at_once()).take_all()
    for row, given in zip(got, rows, strict=True):
        x = np.array(given["x"], np.float32)
        assert list(row["square"]) == list(x * x) and row["total"] == x.sum()


@with_ray
def test_an_actor_that_is_killed_is_started_again_and_every_row_is_there_once(ray: Any, tmp_path: Path) -> None:
    count = 400
    rows = ray.data.from_items([{"id": i, "text": SENTENCES[i % 5]} for i in range(count)])
    made = bulk.embed(rows, write_model(tmp_path / "model"), actors=2, **at_once())
    seen: list[int] = []
    killed = None
    for table in made.iter_batches(batch_size=10, batch_format="pyarrow", prefetch_batches=0):
        seen += table["id"].to_pylist()
        if killed is None:
            killed = actors()[0]
            os.kill(killed, signal.SIGKILL)
    assert sorted(seen) == list(range(count)) and killed not in actors()


def actors() -> list[int]:
    """The processes of the actors of this user's clusters, by the names that Ray gives them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"MapWorker(MapBatches(Embed)" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended
            pass
    return found


@with_ray
def test_bad_rows_and_columns_are_told_before_an_actor_starts(ray: Any, parquet: Path, tmp_path: Path) -> None:
    folder, before = write_model(tmp_path / "model"), actors()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    nulls = ray.data.from_items([{"text": "a"}] * 7 + [{"text": None}])
    for data, settings, error, says in (
        (parquet, {"column": "txt"}, DataError, r"the data have no column 'txt'; they have id, text, kept"),
        (parquet, {"column": "id"}, DataError, r"row 0: column 'id' holds int64, expected texts \(string\)"),
        (parquet, {"into": "kept"}, DataError, r"have a column 'kept' already"),
        (nulls, {}, DataError, r"row 7: column 'text' has no text \(null\)"),
        (tmp_path / "broken.parquet", {}, DataError, r"broken.parquet is no Parquet file: "),
        (tmp_path / "none.parquet", {}, FileNotFoundError, r"none.parquet does not exist"),
        (["a"], {}, DTypeError, r"the data are a list; expected a ray.data.Dataset or a path"),
        (parquet, {"actors": 5}, DeviceUnavailable, r"5 actors of 1 CPU, beside one that reads, and Ray's"),
        (parquet, {"device": "cuda", "actors": 2}, DeviceUnavailable, r"2 actors of a GPU, .* has 5 CPUs and 1 GPUs"),
        (parquet, {"device": "cpu:0"}, DeviceUnavailable, r"device is 'cpu:0'; expected 'auto', 'cpu', 'cuda' or"),
        (parquet, {"batch_size": 0}, DTypeError, r"batch_size is 0; expected an integer from 1"),
    ):
        with pytest.raises(error, match=says):
            bulk.embed(data, folder, **{"device": "cpu", **settings})
    written = onnx_file(tmp_path, [node("Neg", "x", "y")], {"x": ["b", 2]}, {"y": ["b", 2]})
    for values, says in (
        ([[1.0, 2.0], [3.0]], r"row 1: column 'x' has the shape \(1,\), expected \(2\)"),
        ([["a", "b"]], r"row 0: column 'x' holds .*, expected float32"),
        ([[1.0, 2.0], None], r"row 1: column 'x' holds 'None', expected float32"),
    ):
        with pytest.raises(DataError, match=says):
            bulk.infer(ray.data.from_items([{"x": value} for value in values]), written)
    assert set(actors()) <= set(before)


def onnx_file(folder: Path, *parts: Any) -> Path:
    (folder / "model.onnx").write_bytes(model(*parts).SerializeToString())
    return folder / "model.onnx"
