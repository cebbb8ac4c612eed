"""Model folders: what is read from them, and what is said when a part is missing, damaged or not supported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rlx
from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats.huggingface import ModelFolder, SentenceModules
from tests.models.tiny import write_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", max_length=12)


def change(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


class TestFolder:
    def test_parts(self, folder: Path) -> None:
        model = ModelFolder(str(folder))
        assert model.config["hidden_size"] == 24
        assert model.sentence_modules() == SentenceModules(("mean",), ("normalize",), 12)
        assert "embeddings.LayerNorm.bias" in model.tensors()

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match=r"absent does not exist; give the folder"):
            ModelFolder(tmp_path / "absent")

    def test_a_file_instead(self, folder: Path) -> None:
        with pytest.raises(ModelFormatError, match="is not a folder; give the folder"):
            ModelFolder(folder / "config.json")

    def test_without_config(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match=r"has no config\.json; is this a Hugging Face"):
            ModelFolder(tmp_path)

    def test_a_name_no_folder_can_have(self) -> None:
        with pytest.raises(ModelFormatError, match="does not exist"):
            ModelFolder("a\0b")

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe{}", b"3"], ids=repr)
    def test_a_damaged_config(self, folder: Path, content: bytes) -> None:
        (folder / "config.json").write_bytes(content)
        with pytest.raises(ModelFormatError, match=r"config\.json"):
            ModelFolder(folder)

    def test_a_config_of_20_megabytes(self, folder: Path) -> None:
        (folder / "config.json").write_bytes(b" " * 20_000_000)
        with pytest.raises(ModelFormatError, match="larger than 16,000,000 bytes"):
            ModelFolder(folder)

    def test_without_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with pytest.raises(ModelFormatError, match=r"neither model\.safetensors nor"):
            ModelFolder(folder).tensors()


class TestSentenceModules:
    def test_a_plain_bert_folder_means_mean_pooling(self, tmp_path: Path) -> None:
        model = ModelFolder(write_model(tmp_path / "plain", pooling=None))
        assert model.sentence_modules() == SentenceModules(("mean",))

    def test_cls_without_normalize(self, tmp_path: Path) -> None:
        model = ModelFolder(write_model(tmp_path / "cls", pooling="cls", normalize=False))
        assert model.sentence_modules() == SentenceModules(("cls",))

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ({"pooling_mode_splade": True}, "'pooling_mode_splade' is not a pooling mode"),
            ({"pooling_mode_max_tokens": "yes"}, "pooling_mode_max_tokens is 'yes', expected true or false"),
            ({"pooling_mode": "splade"}, "pooling_mode is 'splade', expected one or a list of cls, max, mean"),
            ({"pooling_mode": []}, r"pooling_mode is \[\], expected one or a list"),
            ({"pooling_mode": ["mean", 3]}, "expected one or a list"),
            ({"include_prompt": 0}, "include_prompt is 0, expected true or false"),
        ],
        ids=str,
    )
    def test_pooling_of_another_kind(self, folder: Path, entries: dict[str, Any], message: str) -> None:
        change(folder / "1_Pooling/config.json", **entries)
        with pytest.raises(ModelFormatError, match=rf"1_Pooling/config\.json: .*{message}"):
            ModelFolder(folder).sentence_modules()

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ({"in_features": 25}, "2_Dense takes 25 numbers, the module before gives 24"),
            ({"in_features": None}, "in_features is None, expected an integer from 1"),
            ({"out_features": 1 << 40}, "out_features is 1099511627776, expected an integer"),
            ({"activation_function": "torch.nn.modules.activation.Softmax"}, "activation_function is .*, expected of"),
            ({"activation_function": "mine.Tanh"}, "activation_function is 'mine.Tanh', expected of torch.nn"),
            ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings', expected 'sentence"),
            ({"use_residual": 1}, "use_residual is 1, expected true or false"),
        ],
        ids=str,
    )
    def test_dense_modules_that_are_refused(self, folder: Path, entries: dict[str, Any], message: str) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[2] |= {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "2_Dense").mkdir()
        told = {"in_features": 24, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}
        (folder / "2_Dense/config.json").write_text(json.dumps(told | entries))
        with pytest.raises(ModelFormatError, match=message):
            ModelFolder(folder).sentence_modules()

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("config_sentence_transformers", {"default_prompt_name": "x"}, "default_prompt_name is 'x', expected"),
            ("config_sentence_transformers", {"prompts": {"a": 3}}, "prompts is .*, expected an object of texts"),
            ("config_sentence_transformers", {"prompts": ["a"]}, "prompts is .*, expected an object of texts"),
            ("sentence_bert_config", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask', expected"),
            ("sentence_bert_config", {"modality_config": {}}, "modality_config is {}, expected"),
            ("tokenizer_config", {"model_max_length": "7"}, "model_max_length is '7', expected a number"),
            ("tokenizer_config", {"model_max_length": 0}, "model_max_length is 0, expected a number"),
        ],
        ids=str,
    )
    def test_other_files_that_are_refused(self, folder: Path, file: str, content: Any, message: str) -> None:
        (folder / "sentence_bert_config.json").unlink()
        (folder / f"{file}.json").write_text(json.dumps(content))
        with pytest.raises(ModelFormatError, match=rf"{file}\.json: {message}"):
            ModelFolder(folder).sentence_modules()

    def test_a_tokenizer_without_a_length_of_its_own(self, folder: Path) -> None:
        (folder / "sentence_bert_config.json").unlink()
        (folder / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
        with rlx.models.load(folder, "cpu") as encoder:
            assert encoder.max_length == 40

    @pytest.mark.parametrize("path", ["..", "../other", "/etc", "", None, 3, ["1_Pooling"]], ids=repr)
    def test_pooling_outside_the_folder(self, folder: Path, path: Any) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[1]["path"] = path
        (folder / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ModelFormatError, match=r"modules\.json.*not a name inside"):
            ModelFolder(folder).sentence_modules()

    def test_no_pooling_config(self, folder: Path) -> None:
        (folder / "1_Pooling/config.json").unlink()
        with pytest.raises(ModelFormatError, match=r"1_Pooling/config\.json: cannot be read"):
            ModelFolder(folder).sentence_modules()

    @pytest.mark.parametrize(
        "kinds",
        [
            [],
            ["Transformer"],
            ["Transformer", "Normalize", "Pooling"],
            ["Transformer", "Pooling", "LSTM"],
            ["Transformer", "Pooling", "Dense", "Pooling"],
            [None],
        ],
        ids=str,
    )
    def test_other_modules(self, folder: Path, kinds: list[str]) -> None:
        listed = [{"type": f"sentence_transformers.models.{kind}", "path": "1_Pooling"} for kind in kinds]
        (folder / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ModelFormatError, match=r"modules\.json: modules .* are not supported"):
            ModelFolder(folder).sentence_modules()

    def test_a_module_of_another_package(self, folder: Path) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[0]["type"] = "custom_st.Transformer"
        (folder / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ModelFormatError, match=r"modules \['custom_st.Transformer', .* are not supported"):
            ModelFolder(folder).sentence_modules()

    @pytest.mark.parametrize("content", ["{}", "3", "[3]", '["a"]', '[], "x": [1]'], ids=repr)
    def test_what_is_no_list_of_modules(self, folder: Path, content: str) -> None:
        (folder / "modules.json").write_text(content)
        with pytest.raises(ModelFormatError, match=r"modules\.json"):
            ModelFolder(folder).sentence_modules()

    def test_a_transformer_in_a_folder_of_its_own(self, folder: Path) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[0]["path"] = "0_Transformer"
        (folder / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ModelFormatError, match="'0_Transformer'"):
            ModelFolder(folder).sentence_modules()

    @pytest.mark.parametrize("value", [0, -1, "256", 2.5, True, [1]], ids=repr)
    def test_length_limits_that_are_none(self, folder: Path, value: Any) -> None:
        change(folder / "sentence_bert_config.json", max_seq_length=value)
        with pytest.raises(ModelFormatError, match=r"max_seq_length is .*, expected a positive integer"):
            ModelFolder(folder).sentence_modules()

    def test_lowercasing_is_read(self, folder: Path) -> None:
        change(folder / "sentence_bert_config.json", do_lower_case=True)
        assert ModelFolder(folder).sentence_modules().lower
        change(folder / "sentence_bert_config.json", do_lower_case="yes")
        with pytest.raises(ModelFormatError, match="do_lower_case is 'yes'"):
            ModelFolder(folder).sentence_modules()


def own_normalizer(folder: Path) -> None:
    """Lets the folder's tokenizer be of no class, so that its file alone says how it normalizes."""
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


class TestTokenizer:
    def test_special_tokens_and_the_limit(self, folder: Path) -> None:
        tokenizer = ModelFolder(folder).tokenizer(6)
        found = [ids.tolist() for ids in tokenizer.ids(["The CAT", "", "mountain", "a " * 50, "zebra"])]
        assert found == [[2, 5, 7, 3], [2, 3], [2, 25, 26, 3], [2, 6, 6, 6, 6, 3], [2, 1, 3]]

    def test_lowercasing_comes_before(self, folder: Path) -> None:
        own_normalizer(folder)
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
        assert ModelFolder(folder).tokenizer(6).ids(["The"])[0].tolist() == [2, 1, 3]
        assert ModelFolder(folder).tokenizer(6, lower=True).ids(["The"])[0].tolist() == [2, 5, 3]

    def test_many_texts(self, folder: Path) -> None:
        found = ModelFolder(folder).tokenizer(12).ids(["dog " * (i % 7) for i in range(2500)])
        assert [len(ids) for ids in found] == [2 + i % 7 for i in range(2500)]

    @pytest.mark.parametrize("length", [1, 2])
    def test_no_room_beside_the_special_tokens(self, folder: Path, length: int) -> None:
        with pytest.raises(
            ModelFormatError, match=f"adds 2 special tokens, which leave no room in the model's {length}"
        ):
            ModelFolder(folder).tokenizer(length)

    def test_a_lone_surrogate_is_the_callers_mistake(self, folder: Path) -> None:
        with pytest.raises(DTypeError, match="sentence 1 holds a lone surrogate at character 3"):
            ModelFolder(folder).tokenizer(6).ids(["fine", "not\ud800"])

    def test_without_the_file(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        with pytest.raises(ModelFormatError, match=r"has no tokenizer\.json"):
            ModelFolder(folder).tokenizer(6)

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"[1]", b"\xff", b'{"version": "1.0", "model": {}}'], ids=repr
    )
    def test_a_damaged_file(self, folder: Path, content: bytes) -> None:
        (folder / "tokenizer.json").write_bytes(content)
        with pytest.raises(ModelFormatError, match=r"tokenizer\.json: (is not|the JSON is|model)"):
            ModelFolder(folder).tokenizer(6)

    def test_a_special_token_that_its_table_lacks(self, folder: Path) -> None:
        """The package's own code panics on this one."""
        made = json.loads((folder / "tokenizer.json").read_text())
        made["post_processor"]["single"][0]["SpecialToken"]["id"] = "[NONE]"
        (folder / "tokenizer.json").write_text(json.dumps(made))
        with pytest.raises(ModelFormatError, match=r"single\[0\] is .* a token of special_tokens"):
            ModelFolder(folder).tokenizer(6)

    @pytest.mark.parametrize("content", ["a" * 100, "x" * 200])
    def test_a_normalizer_that_grows_text_without_end(self, folder: Path, content: str) -> None:
        """Four of the first kind make 100 million characters of one letter, in half a minute."""
        own_normalizer(folder)
        made = json.loads((folder / "tokenizer.json").read_text())
        step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
        made["normalizer"] = {"type": "Sequence", "normalizers": [step] * 4}
        (folder / "tokenizer.json").write_text(json.dumps(made))
        with pytest.raises(ModelFormatError, match=r"its normalizer and pre-tokenizer make up to .* bytes of one"):
            ModelFolder(folder).tokenizer(6)

    def test_a_normalizer_as_published_ones_have(self, folder: Path) -> None:
        own_normalizer(folder)
        made = json.loads((folder / "tokenizer.json").read_text())
        steps = [
            {"type": "Prepend", "prepend": "the"},
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            made["normalizer"],
        ]
        made["normalizer"] = {"type": "Sequence", "normalizers": steps}
        plain = ModelFolder(folder).tokenizer(6).ids(["the  cat"])[0]
        (folder / "tokenizer.json").write_text(json.dumps(made))
        assert ModelFolder(folder).tokenizer(6).ids(["  cat"])[0].tolist() == plain.tolist()

    def test_numbers_beyond_32_bits(self, folder: Path) -> None:
        made = json.loads((folder / "tokenizer.json").read_text())
        made["model"]["vocab"]["the"] = 1 << 31
        (folder / "tokenizer.json").write_text(json.dumps(made))
        with pytest.raises(ModelFormatError, match=r"tokenizer\.json: numbers a token 2147483648"):
            ModelFolder(folder).tokenizer(6).ids(["the"])

    def test_a_message_shows_little_of_the_file(self, folder: Path) -> None:
        own_normalizer(folder)
        made = json.loads((folder / "tokenizer.json").read_text())
        made["normalizer"] = "\x1b[2J" + "x" * 300_000
        (folder / "tokenizer.json").write_text(json.dumps(made))
        with pytest.raises(ModelFormatError, match=r"normalizer is .*; expected an object") as caught:
            ModelFolder(folder).tokenizer(6)
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()

    def test_without_the_package(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(RlxError, match=r'needs the package `tokenizers`: pip install "rlx\[hf\]"'):
            ModelFolder(folder).tokenizer(6)
