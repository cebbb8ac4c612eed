"""Commands about language models as fingers know them from llama.cpp, and the talk's own commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlx.cli.habits import ELSEWHERE
from rlx.driver import DeviceInfo, registry
from rlx.errors import DeviceUnavailable
from rlx.models import load
from tests.cli.conftest import Rlx
from tests.devices import device_here
from tests.models.language import tiny

CONFIG: dict[str, Any] = {**tiny.LLAMA, "vocab_size": 140}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_language_model(tmp_path_factory.mktemp("habits") / "m", CONFIG, text=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def answer(rlx: Rlx, *arguments: object, stdin: bytes = b"") -> str:
    ran = rlx(*arguments, "--engine", "numpy", stdin=stdin)
    assert ran.status == 0, ran
    return ran.out


DRAWN = ("-n", 8, "--temperature", 0.9)


@pytest.mark.parametrize(
    ("known", "own", "differs"),
    [
        (("--temp", 0.9), ("--temperature", 0.9), True),
        ((*DRAWN, "-s", 5), (*DRAWN, "--seed", 5), True),
        ((*DRAWN, "--min-p", 0.9, "-s", 1), (*DRAWN, "--top-k", 1, "--seed", 1), False),  # the likeliest alone
        (("--repeat-penalty", 2.5), ("--repetition-penalty", 2.5), True),
        (("-l", "65+50"), ("--logit-bias", "65=50"), True),
        (("-n", -1, "-c", 12), ("-n", 40, "--context", 12), True),
        (("--n-predict", 3), ("--max-tokens", 3), True),
        (("-ngl", 0), ("--device", "cpu"), False),
        (("-t", 1), ("--threads", 1), False),
    ],
    ids=str,
)
def test_options_by_their_other_names(
    rlx: Rlx, model: Path, known: tuple[object, ...], own: tuple[object, ...], differs: bool
) -> None:
    plain = ("--device", "cpu") if known[0] != "-ngl" else ()
    text = answer(rlx, "generate", "-m", model, "-p", "abc", "-n", 8, *plain, *known)
    assert text == answer(rlx, "generate", model, "abc", "-n", 8, *plain, *own)
    assert (text != answer(rlx, "generate", model, "abc", "-n", 8, "--device", "cpu")) is differs


def test_a_prompt_in_each_of_its_places(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("abc\n")  # editors end files so
    more = ("-n", 4, "--device", "cpu")
    want = answer(rlx, "generate", model, "-p", "abc", *more)
    assert want == answer(rlx, "generate", model, "abc", *more) == answer(rlx, "generate", "abc", "-m", model, *more)
    assert want == answer(rlx, "generate", model, "-f", file, *more)
    assert want == answer(rlx, "generate", model, "-p", "-", *more, stdin=b"abc")
    for arguments, words in (
        ((model,), "no prompt; give it as the second word"),
        ((), "no model; give a GGUF file or a Hugging Face folder: rlx generate model.gguf"),
        ((model, "abc", "-p", "x"), "the second word and --prompt both give a prompt"),
        ((model, "abc", "-m", model), "the model is "),
        ((model, "-f", tmp_path / "none.txt"), "none.txt: cannot be read"),
    ):
        ran = rlx("generate", *arguments, "--device", "cpu")
        assert ran.status == 2 and ran.err.count("\n") == 1 and words in ran.err, ran


def test_layers_on_the_gpu(rlx: Rlx, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device_here("vulkan")
    monkeypatch.delenv("RLX_DEVICE", raising=False)
    both = "cpu (1 layer), vulkan:0 (1 layer)"
    for count, where in ((1, both), (2, "vulkan:0"), (99, "vulkan:0"), ("all", "vulkan:0")):
        ran = rlx("generate", model, "abc", "-n", 1, "--device", "vulkan", "-ngl", count, "--stats")
        assert ran.status == 0, ran
        devices = ", ".join(line[8:].rpartition(", ")[0] for line in ran.err.splitlines() if line.startswith("device:"))
        assert devices.startswith(where.partition(", ")[0]) and ran.err.count("device:") == where.count(",") + 1, ran
    for arguments, words in (
        (("--device", "cpu", "-ngl", 9), "--gpu-layers 9: --device cpu is no GPU"),
        (("--device", "vulkan", "-ngl", 0), "leaves --device vulkan no layer"),
        (("-ngl", 1, "--layers-on", "cpu"), "both say where layers go"),
        (("-ngl", "many"), "expected a number of layers, all, or auto"),
    ):
        ran = rlx("generate", model, "abc", "-n", 1, *arguments)
        assert ran.status == 2 and words in ran.err, ran


@pytest.mark.parametrize("option", ["-fa", "-ctk", "-hf", "--repeat-last-n", "-ub", "--mlock", "--flash-attn=on"])
def test_options_that_are_not_there_say_what_is(rlx: Rlx, model: Path, option: str) -> None:
    ran = rlx("generate", model, "abc", option, "1")
    what = ELSEWHERE[option.partition("=")[0]]
    assert ran.status == 2 and ran.err == f"rlx: generate: there is no {option.partition('=')[0]}: {what}\n"
    assert answer(rlx, "generate", model, "-p", option, "-n", 1, "--device", "cpu"), "the value of another option"


def test_an_option_that_nobody_has_is_still_guessed(rlx: Rlx, model: Path) -> None:
    ran = rlx("generate", model, "abc", "--temprature", "1")
    assert ran.status == 2 and "--temperature" in ran.err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--logit-bias", "15043", "expected the id of a token and a number with its sign"),
        ("--logit-bias", "9999+1", "bias has the token 9999"),
        ("--repeat-penalty", "0", "a repetition above 0"),
        ("--min-p", "0.1", "--min-p has no effect without a temperature"),
        ("--json-schema", "{", "is no JSON"),
        ("--grammar-file", "none.gbnf", "cannot be read"),
    ],
)
def test_values_that_are_refused(rlx: Rlx, model: Path, option: str, value: str, words: str) -> None:
    if option == "--json-schema":
        pytest.importorskip("llguidance", reason="needs rlx[serve]")
    ran = rlx("generate", model, "abc", option, value, "--device", "cpu")
    assert ran.status == 2 and ran.err.count("\n") == 1 and words in ran.err, ran


def test_grammars_by_text_and_by_file(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="needs rlx[serve]")
    (tmp_path / "g.gbnf").write_text('root ::= "cab" | "bad"\n')
    (tmp_path / "s.json").write_text('{"enum": ["x", "y"]}')
    for option, file in (("--grammar", "g.gbnf"), ("--json-schema", "s.json")):
        text = answer(rlx, "generate", model, "abc", option, (tmp_path / file).read_text(), "--device", "cpu")
        assert text in ("cab\n", "bad\n", '"x"\n', '"y"\n')
        assert text == answer(rlx, "generate", model, "abc", f"{option}-file", tmp_path / file, "--device", "cpu")
    ran = rlx("generate", model, "abc", "--grammar", "x", "--grammar-file", tmp_path / "g.gbnf", "--device", "cpu")
    assert ran.status == 2 and "--grammar and --grammar-file both say" in ran.err


def test_the_talks_own_commands(rlx: Rlx, model: Path) -> None:
    settings = ("-m", model, "-n", 2, "--device", "cpu", "--engine", "numpy")
    ran = rlx("chat", *settings, stdin=b"ab\n/help\n/helf\n /a\n/clear\nab\n/exit\nnever\n")
    assert ran.status == 0, ran
    first, second, third = ran.out.splitlines()
    assert first == third != second, "the talk was forgotten before the third answer"
    with load(model, "cpu", engine="numpy") as made:
        assert first == "".join(made.generate("ab", 2)) and second == "".join(made.generate(f"ab{first} /a", 2))
    for words in ("/exit   ends the talk, as Ctrl-D does", "/clear", "there is no /helf (did you mean 'help'?)"):
        assert words in ran.err


def test_gpus_by_their_makers(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(backend: str, index: int, name: str, kind: Any = "discrete", driver: str = "") -> DeviceInfo:
        return DeviceInfo(backend, index, name, kind, 1 << 30, driver)

    infos = [
        gpu("cuda", 0, "NVIDIA H200"), gpu("vulkan", 0, "llvmpipe", "software"), gpu("vulkan", 1, "NVIDIA H200"),
        gpu("vulkan", 2, "AMD Radeon RX 7900 XTX (RADV NAVI31)"), gpu("vulkan", 3, "Navi", driver="radv Mesa 25"),
        gpu("vulkan", 4, "Intel(R) Arc(tm) A770", "integrated"), gpu("cpu", 0, "Intel(R) Xeon(R) Processor", "cpu"),
    ]  # fmt: skip
    monkeypatch.setattr(registry, "probe_all", lambda: (infos, {}))
    for name, id in (("amd", "vulkan:2"), ("AMD", "vulkan:2"), ("radeon:1", "vulkan:3"), ("nvidia", "cuda:0"),
                     ("intel", "vulkan:4")):  # fmt: skip
        assert registry.find_device(name).id == id
    with pytest.raises(DeviceUnavailable, match=r"'amd:2': rlx finds cuda:0 \(NVIDIA H200\)"):
        registry.find_device("amd:2")
    monkeypatch.setattr(registry, "probe_all", lambda: (infos[-1:], {"vulkan": "no loader"}))
    with pytest.raises(DeviceUnavailable, match="finds no GPU here; vulkan: no loader; `rlx doctor` says"):
        registry.find_device("amd")
    with pytest.raises(DeviceUnavailable, match="did you mean 'radeon'"):
        registry.find_device("radeom")
