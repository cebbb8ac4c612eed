"""Sentence embeddings of a tiny BERT beside those of `transformers` in float64, on every device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.conformance.compare import distance
from rlx.conformance.embeddings import reference_embeddings
from rlx.errors import DTypeError, ModelFormatError, ShapeError
from tests.models.tiny import SENTENCES, write_model
from tests.models.variants import VARIANTS
from tests.threads import at_once


def nmse(got: npt.NDArray[Any], exact: npt.NDArray[Any]) -> float:
    return float(np.sum((got - exact) ** 2) / np.sum(exact**2))


@pytest.mark.parametrize("variant", VARIANTS)
class TestGolden:
    @pytest.mark.sample(2, vulkan=2)
    def test_device(self, variant: str, device: str, golden: dict[str, Any], tmp_path: Path) -> None:
        exact = np.array(golden[variant])
        with rlx.models.load(write_model(tmp_path, **VARIANTS[variant]), device) as encoder:
            got = encoder.encode(SENTENCES)
            assert [d for exe in encoder.executables() for d in exe.report().host_nodes] == []
        assert got.dtype == np.float32 and got.shape == exact.shape
        assert distance(got, exact).within()
        assert np.max(np.abs(got - exact)) <= 1e-6 * max(1.0, np.max(np.abs(exact)))

    def test_the_reference_itself(self, variant: str, golden: dict[str, Any], tmp_path: Path) -> None:
        """What `rlx check` and the demo judge devices by agrees with the authority to the last digits."""
        with rlx.models.load(write_model(tmp_path, **VARIANTS[variant]), "cpu") as encoder:
            exact = reference_embeddings(encoder, SENTENCES)
        assert np.max(np.abs(exact - np.array(golden[variant]))) < 1e-14


class TestHalfWeights:
    @pytest.mark.parametrize(
        ("dtype", "variant", "options"), [("f16", "f16", {"hidden_act": "silu"}), ("bf16", "bf16", {})]
    )
    @pytest.mark.sample(vulkan=1)
    def test_the_values_are_those_of_rounded_weights(
        self,
        device: str,
        dtype: str,
        variant: str,
        options: dict[str, Any],
        golden: dict[str, Any],
        tmp_path: Path,
    ) -> None:
        """Matrices rounded here; the golden folder has them, and its vectors too, rounded in the file: the vectors
        differ, so the comparison is with a folder whose vectors are rounded and whose matrices are not."""
        with rlx.models.load(
            write_model(tmp_path / "f32", half=dtype, **options), device, dtype=dtype
        ) as half:
            got = half.encode(SENTENCES)
            kept = half.weights.dtypes()
        assert distance(got, np.array(golden[variant])).within()
        matrices = {n for n, d in kept.items() if d.name == dtype}
        assert matrices == {n for n in kept if n.endswith("weight") and "LayerNorm" not in n}

    @pytest.mark.sample(vulkan=0)
    def test_rounding_an_f32_folder_costs_what_bf16_costs(
        self, device: str, golden: dict[str, Any], tiny: Path
    ) -> None:
        with rlx.models.load(tiny, device, dtype="bf16") as half:
            error = nmse(half.encode(SENTENCES), np.array(golden["mean"]))
        assert 1e-8 < error < 1e-3

    @pytest.mark.parametrize("kept, most", [("bf16", 2e-3), ("f16", 5e-5)])
    @pytest.mark.sample(1, vulkan=0)
    def test_activations_in_halves_cost_what_their_bits_cost(
        self, device: str, golden: dict[str, Any], tiny: Path, kept: str, most: float
    ) -> None:
        with rlx.models.load(tiny, device, activations=kept) as half:
            error = nmse(half.encode(SENTENCES), np.array(golden["mean"]))
            dtypes = half.weights.dtypes()
        assert 1e-9 < error < most
        assert all(d.name == kept for n, d in dtypes.items() if n.endswith("dense.weight"))

    def test_it_takes_half_the_memory(self, device: str, tmp_path: Path) -> None:
        folder = write_model(tmp_path, hidden_size=96, intermediate_size=384)
        with rlx.models.load(folder, device, dtype="bf16") as half, rlx.models.load(folder, device) as full:
            # Memory comes in pieces of 64 KiB at least: one of vectors beside the one of all matrices.
            assert half.weights.nbytes <= 0.5 * full.weights.nbytes + (1 << 16)

    def test_f32_by_name_is_the_default(self, tiny: Path) -> None:
        with rlx.models.load(tiny, "cpu", dtype="f32") as named, rlx.models.load(tiny, "cpu") as plain:
            assert np.array_equal(named.encode(SENTENCES), plain.encode(SENTENCES))

    @pytest.mark.parametrize("dtype", ["i8", "f64", "int3", 3])
    def test_other_dtypes(self, dtype: Any, tiny: Path) -> None:
        for word in ("dtype", "activations"):
            with pytest.raises(DTypeError):
                rlx.models.load(tiny, "cpu", **{word: dtype})


class TestSharing:
    @pytest.mark.late("vulkan")
    def test_executables_of_one_model_hold_its_weights_once(self, device: str, tiny: Path) -> None:
        with rlx.models.load(tiny, device) as encoder:
            once = encoder.weights.nbytes
            exact = sum(a.nbytes for a in encoder.file_weights().values())
            assert exact <= once < 2 * exact + 256 * len(encoder.file_weights())
            encoder.encode(["dog"])
            encoder.encode(list(SENTENCES))
            exes = encoder.executables()
            assert len(exes) > 1
            assert encoder.weights.nbytes == once
            assert len({id(exe.weights) for exe in exes}) == 1
            slots = [{n: exe.plan.slots[t.id] for n, t in exe.program.params.items()} for exe in exes]
            for name in set.intersection(*map(set, slots)):
                assert len({s[name] for s in slots}) == 1, f"{name} has one place for all"
            for exe in exes:
                assert exe.plan.arena_bytes == sum(
                    n for s, n in exe.plan.segments.items() if s.startswith("arena")
                )
                assert not any(s.startswith(("weights", "half")) for s in exe.plan.segments)
                assert exe.plan.arena_bytes <= 1.01 * exe.plan.max_live_bytes

    @pytest.mark.late("vulkan")
    def test_a_change_of_a_weight_reaches_every_executable(self, device: str, tiny: Path) -> None:
        with rlx.models.load(tiny, device) as encoder:
            short, long = ["dog"], [SENTENCES[2]]
            before = encoder.encode(short), encoder.encode(long)
            name = "embeddings.LayerNorm.weight"
            encoder.weights.set(name, 2 * encoder.file_weights()[name])
            after = encoder.encode(short), encoder.encode(long)
            assert all(np.max(np.abs(a - b)) > 1e-3 for a, b in zip(before, after, strict=True))


class TestBuckets:
    def sizes(self, encoder: Any) -> set[tuple[int, int]]:
        return {tuple(exe.graph.inputs["ids"].shape) for exe in encoder.executables()}

    def test_few_sizes_are_compiled(self, tiny: Path) -> None:
        with rlx.models.load(tiny, "cpu") as encoder:
            encoder.encode(["dog"])
            encoder.encode(["cat river"])
            assert self.sizes(encoder) == {(1, 8)}
            encoder.encode(["dog", "cat river"])  # 3 and 4 tokens
            assert len(encoder.executables()) == 2 and self.sizes(encoder) == {(1, 8)}
            encoder.encode(["dog", "dog " * 38])  # 40 positions: no row is longer
            assert self.sizes(encoder) == {(1, 8), (1, 40)}
            encoder.encode(["dog " * n for n in range(1, 30)])
            assert self.sizes(encoder) == {(1, 8), (1, 16), (1, 40), (4, 40), (8, 40)}

    def test_a_size_depends_on_its_own_batch(self, tiny: Path) -> None:
        """Short and long sentences, each in a row of its own: the short ones go in a short batch."""
        with rlx.models.load(tiny, "cpu") as encoder:
            given = ["dog"] * 8 + ["dog " * 30] * 8
            sizes = [size for _, _, size in encoder.batches(given[::-1], batch_size=8)]
        assert sizes == [(8, 8), (8, 32)]

    @pytest.mark.parametrize("batch_size", [1, 3, 8, 40, 10**9])
    def test_any_batch_size_gives_the_same(self, batch_size: int, golden: dict[str, Any], tiny: Path) -> None:
        with rlx.models.load(tiny, "cpu") as encoder:
            got = encoder.encode(list(SENTENCES) * 6, batch_size=batch_size)
            assert max(batch for batch, _ in self.sizes(encoder)) <= min(batch_size, 64)
        assert distance(got, np.tile(np.array(golden["mean"]), (6, 1))).within()

    def test_padding_has_no_influence(self, device: str, tiny: Path) -> None:
        """A sentence alone and the same beside longer ones: other sizes, the same answer."""
        with rlx.models.load(tiny, device) as encoder:
            together = encoder.encode(SENTENCES)
            for i in (0, 3, 7):
                assert np.max(np.abs(encoder.encode([SENTENCES[i]])[0] - together[i])) < 1e-6


class TestOrderAndEdges:
    @pytest.mark.sample(vulkan=0)
    def test_the_order_given_is_the_order_of_the_rows(self, device: str, tiny: Path) -> None:
        with rlx.models.load(tiny, device) as encoder:
            forward = encoder.encode(SENTENCES, batch_size=3)
            shuffled = np.random.default_rng(0).permutation(len(SENTENCES))
            backward = encoder.encode([SENTENCES[i] for i in shuffled], batch_size=3)
            assert np.max(np.abs(backward - forward[shuffled])) < 1e-6
            assert np.array_equal(encoder.encode(SENTENCES, batch_size=3), forward), (
                "and the bits are the same"
            )

    def test_no_sentences(self, device: str, tiny: Path) -> None:
        with rlx.models.load(tiny, device) as encoder:
            got = encoder.encode([])
            assert got.shape == (0, 24) and got.dtype == np.float32
            assert encoder.executables() == []

    def test_any_iterable_of_text(self, tiny: Path) -> None:
        with rlx.models.load(tiny, "cpu") as encoder:
            given = encoder.encode(s for s in ("dog", "cat"))  # type: ignore[arg-type]
            assert np.array_equal(given, encoder.encode(np.array(["dog", "cat"])))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("dog", "got one str; write \\[sentence\\]"),
            (["dog", 3], "sentence 1 is a int, expected str"),
            ([b"dog"], "sentence 0 is a bytes"),
            ([["dog"]], "sentence 0 is a list"),
            (None, "got a NoneType"),
            (["dog", "\udcff"], "sentence 1 holds a lone surrogate"),
        ],
        ids=ascii,
    )
    def test_what_is_not_a_list_of_text(self, given: Any, message: str, tiny: Path) -> None:
        with rlx.models.load(tiny, "cpu") as encoder, pytest.raises(DTypeError, match=message):
            encoder.encode(given)

    @pytest.mark.parametrize(
        ("batch_size", "error"), [(0, ShapeError), (-1, ShapeError), (2.0, DTypeError), ("8", DTypeError)]
    )
    def test_batch_sizes_that_are_none(self, batch_size: Any, error: type[Exception], tiny: Path) -> None:
        with rlx.models.load(tiny, "cpu") as encoder, pytest.raises(error, match="batch_size"):
            encoder.encode(["dog"], batch_size=batch_size)

    @pytest.mark.late("vulkan")
    def test_threads_share_an_encoder(self, device: str, tiny: Path) -> None:
        with rlx.models.load(tiny, device) as encoder:
            alone = [encoder.encode(SENTENCES[: n + 1]) for n in range(4)]
        with rlx.models.load(tiny, device) as encoder:
            found = at_once(12, lambda n: encoder.encode(SENTENCES[: n % 4 + 1]))
            assert all(np.array_equal(found[n], alone[n % 4]) for n in range(12))

    def test_nothing_is_printed_unasked_on_a_terminal_too(
        self, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with rlx.models.load(tiny, "cpu") as encoder:
            encoder.encode(SENTENCES, batch_size=1)
        assert capsys.readouterr() == ("", "")

    def test_a_progress_bar_when_asked_for(self, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with rlx.models.load(tiny, "cpu") as encoder:
            encoder.encode(SENTENCES, show_progress=True)
            shown = capsys.readouterr()
            assert "encoding" in shown.err and shown.out == ""
            encoder.encode(SENTENCES)
            assert capsys.readouterr() == ("", "")


class TestFoldersThatDoNotFit:
    def test_every_wrong_weight_is_named(self, tmp_path: Path) -> None:
        from tests.models.tiny import weights, write_safetensors

        made: dict[str, Any] = weights()
        del made["encoder.layer.1.output.dense.bias"]
        del made["embeddings.LayerNorm.weight"]
        made["encoder.layer.2.output.dense.bias"] = np.zeros(24, np.float32)
        made["encoder.layer.0.attention.self.query.weight"] = np.zeros((24, 23), np.float32)
        made["encoder.layer.0.attention.self.key.bias"] = np.zeros(24, np.int64)
        made["pooler.dense.bias"] = np.zeros(24, np.float32)  # known and not used: no mistake
        write_safetensors(write_model(tmp_path) / "model.safetensors", made)
        with pytest.raises(ModelFormatError) as caught:
            rlx.models.load(tmp_path, "cpu")
        for part in (
            str(tmp_path),
            "missing 'encoder.layer.1.output.dense.bias' (24,)",
            "missing 'embeddings.LayerNorm.weight' (24,)",
            "extra 'encoder.layer.2.output.dense.bias'",
            "'encoder.layer.0.attention.self.query.weight' has shape (24, 23), expected (24, 24)",
            "'encoder.layer.0.attention.self.key.bias' has dtype int64",
        ):
            assert part in str(caught.value)
        assert "pooler" not in str(caught.value)

    def test_names_with_the_prefix_of_a_larger_model(self, golden: dict[str, Any], tmp_path: Path) -> None:
        from tests.models.tiny import weights, write_safetensors

        folder = write_model(tmp_path)
        named: dict[str, Any] = {f"bert.{n}": w for n, w in weights().items()}
        named["cls.predictions.bias"] = np.zeros(48, np.float32)
        write_safetensors(folder / "model.safetensors", named)
        with rlx.models.load(folder, "cpu") as encoder:
            assert distance(encoder.encode(SENTENCES), np.array(golden["mean"])).within()
        named["embeddings.LayerNorm.bias"] = np.zeros(24, np.float32)
        write_safetensors(folder / "model.safetensors", named)
        with pytest.raises(
            ModelFormatError, match=r"'embeddings\.LayerNorm\.bias' stands there with and without"
        ):
            rlx.models.load(folder, "cpu")

    def test_a_model_of_another_size_counts_what_it_does_not_list(self, tmp_path: Path) -> None:
        from tests.models.tiny import CONFIG, shapes, weights, write_safetensors

        folder = write_model(tmp_path, num_hidden_layers=1)
        config = {**CONFIG, "num_hidden_layers": 20, "hidden_size": 48}
        write_safetensors(folder / "model.safetensors", weights(config))
        with pytest.raises(ModelFormatError, match=r"and \d+ more$") as caught:
            rlx.models.load(folder, "cpu")
        assert len(str(caught.value)) < 30_000 and len(shapes(config)) > 300

    def test_a_tokenizer_with_more_words_than_the_model(self, tmp_path: Path) -> None:
        with (
            rlx.models.load(write_model(tmp_path, vocab_size=20), "cpu") as encoder,
            pytest.raises(ModelFormatError, match=r"gives token \d+ for sentence 1; config.json knows 20"),
        ):
            encoder.encode(["the", SENTENCES[0]])

    def test_an_unknown_device(self, tiny: Path) -> None:
        with pytest.raises(rlx.errors.DeviceUnavailable, match="'tpu' is not understood"):
            rlx.models.load(tiny, "tpu")

    def test_after_close(self, device: str, tiny: Path) -> None:
        encoder = rlx.models.load(tiny, device)
        encoder.encode(["dog"])
        assert repr(encoder).startswith(f"SentenceEncoder({str(tiny)!r} on {device}")
        encoder.close()
        encoder.close()
        with pytest.raises(rlx.errors.GraphError, match="is closed; load it again"):
            encoder.encode(["dog"])
