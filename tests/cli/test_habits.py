"""Commands about language models as fingers know them from llama.cpp, and the talk's own commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from rlx.cli.app import app
from rlx.cli.commands import COMMANDS
from rlx.cli.habits import ANYWHERE, ELSEWHERE, in_place_of
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
        (("--device", "vulkan", "--engine", "numpy"), "--engine numpy is of the CPU, and the model runs on vulkan:"),
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
    monkeypatch.setattr(registry, "probe_all", lambda: ([infos[1], infos[-1]], {"cuda": "CuPy is not installed"}))
    with pytest.raises(DeviceUnavailable) as refused:  # what CUDA lacks is nothing to its owner
        registry.find_device("amd")
    assert "no GPU but the software driver vulkan:0 (llvmpipe)" in str(refused.value)
    assert "CuPy" not in str(refused.value)
    with pytest.raises(DeviceUnavailable, match="CuPy is not installed"):
        registry.find_device("nvidia")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("metal", 'run by MoltenVK, as "vulkan"'),
        ("DirectML:0", 'GPUs of every maker run as "vulkan"'),
        ("all", "take all that are no software drivers"),
        ("cpu,vulkan", "commands that take several have a --device for each"),
        ("1", 'as in "vulkan:1"'),
        ("vulcan", "did you mean 'vulkan'"),
        ("Vulkan1", 'did you mean "vulkan:1"'),
        ("gfx1100", 'GPUs of AMD are "amd"'),
        ("none", 'the processor is "cpu"'),
        ("LLVMpipe", 'did you mean "vulkan:0"'),
        ("zluda", "through CUDA rlx runs NVIDIA's alone"),
        ("npu", "rlx runs on CPUs and on GPUs"),
        ("adreno", 'GPUs of every maker run as "vulkan"'),
        ("lavapipe", "software drivers of Vulkan"),
        ("m.onnx", "rlx.onnx.load takes the path of a file"),
    ],
)
def test_names_of_devices_that_rlx_has_not(name: str, words: str) -> None:
    with pytest.raises(DeviceUnavailable, match="is not understood") as refused:
        registry.find_device(name)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspct", "m.onnx"), "there is no command 'inspct' (did you mean 'inspect'?)"),
        (("quantize", "m.gguf"), "there is no command 'quantize': rlx convert MODEL --to Q4_K_M"),
        (("llama-server",), "rlx serve model.gguf"),
        (("completion", "bash"), "for the shell's, rlx --install-completion"),
        (("help",), "there is no command 'help': rlx --help; rlx COMMAND --help"),
        (("frobnicate",), "there is no command 'frobnicate'; `rlx --help` lists them"),
        (("m.gguf",), "a model's file follows a command, as in rlx generate m.gguf"),
        (("m.onnx",), "a model's file follows a command, as in rlx run m.onnx"),
        (("run", "m.onnx", "x=x.npy"), "an input is given by --input x=x.npy"),
        (("run", "m.onnx", "x.npy"), "an input is given by --input NAME=x.npy"),
        (("run", "m.onnx", "batch=8"), "a length is given by --dim batch=8"),
        (("check", "m.onnx", "--dim", "batch", "4"), "a length is one word with its dimension, as in --dim batch=4"),
        (("devices", "cpu"), "devices: cpu is one word too many; `rlx devices --help` lists"),
        (("convert", "m.gguf", "a.gguf", "-o", "b.gguf"), "convert: a.gguf, and --output b.gguf: give one of them"),
        (("chat", "m.gguf", "-p", "hi"), "chat: there is no -p: `rlx generate` goes on from a prompt"),
        (("generate", "m.gguf", "-p", "a", "-np", "4"), "generate: there is no -np: `rlx serve` answers several"),
        (("generate", "m.gguf", "-p", "a", "-mli"), "generate: there is no -mli: `rlx chat`"),
        (("generate", "m.gguf", "-p", "a", "--json-schema", "s.json"), "--json-schema-file FILE reads it from a file"),
        (("generate", "m.gguf", "--list-devices"), "generate: there is no --list-devices: `rlx devices` lists them"),
        (("generate", "m.gguf", "-p", "a", "--context-shift"), "-c makes it longer"),
        (("perplexity", "m.gguf", "-p", "a"), "`rlx perplexity` takes a text by -f FILE"),
        (("bench", "m.gguf", "-p", "32,64"), "bench: -p 32,64: expected one number; for several, repeat"),
        (("serve", "m.gguf", "--api-key", "k"), "--api-key-file FILE, or the environment variable RLX_API_KEY"),
        (("run", "m.onnx", "--provider", "x"), "run: there is no --provider: --device auto, cpu, vulkan or cuda"),
        (("run", "m.onnx", "--shape", "x:1"), "--dim NAME=LENGTH"),
        (("run", "m.onnx", "-o", "y"), "run: there is no -o: --out PATH"),
        (("run", "m.onnx", "--verbose"), "run: there is no --verbose: RLX_DEBUG=1"),
        (("bench", "m.onnx", "--csv"), "bench: there is no --csv: --json FILE"),
        (("check", "m.onnx", "--atol", "1"), "check: there is no --atol: each node has the tolerance of its op"),
        (("convert", "m.gguf", "--imatrix", "x"), "convert: there is no --imatrix: --to names"),
        (("embed", "-m", "m.gguf"), "embed: there is no -m: the model's file or folder is the first word"),
        (("embed", "m.gguf", "-p", "hi"), "echo TEXT | rlx embed MODEL"),
        (("optimize", "m.onnx"), "there is no command 'optimize': every run optimizes"),
        (("generate", "owner/A-1.2-GGUF", "-p", "a"), "(rlx pull owner/A-1.2-GGUF downloads one of that name)"),
        (("embed", "m.gguf", "a sentence"), 'a text itself comes by a pipe: echo "a sentence" | rlx'),
        (("generate", "m.gguf", "-p", "a", "-sys", "b"), "there is no -sys: --system of `rlx chat`"),
        (("chat", "m.gguf", "hello"), "what is said to the model is typed in the talk"),
        (("bench", "m.gguf", "-sm", "row"), "there is no -sm: in `rlx generate` --layers-on"),
        (("bench", "m.onnx", "-n", "3"), "leave it out; --runs N says how often it runs"),
        (("bench", "m.onnx", "--json", "-"), "--json -: nothing is written to standard output so"),
        (("bench", "m.onnx", "--json", "t.csv"), "--json t.csv: what is written is .json, not .csv: name it t.json"),
        (("run", "m.onnx", "--out", "-"), "--out -: nothing is written to standard output so"),
        (("run", "m.onnx", "results/"), "what is written goes to --out results/"),
        (("convert", ".", "-o", "-"), "--output -: nothing is written to standard output so"),
        (("convert", ".", "-o", "x.bin"), "what is written is .gguf, not .bin"),
        (("convert", "m.onnx", "-o", "m.rlx"), 'rlx.onnx.load("m.onnx").compile().save("m.rlx")'),
        (("inspect", "m.onnx", "--memory", "plan.png"), "what is written is .svg, not .png: name it plan.svg"),
        (("embed", "m.gguf", "m.onnx", "--out", "v.csv"), "what is written is .npy, not .csv: name it v.npy"),
        (("embed", "m.gguf", "m.onnx", "--pooling", "cls"), "says how tokens become one vector"),
        (("embed", "m.gguf", "m.onnx", "-k", "3"), "there is no -k: --top N says how many"),
        (("view", "x.ply", "--background", "white"), "rlx.splats.write_page, in Python, takes a camera"),
        (("transcribe", "m", "a.wav", "-osrt"), "with --timestamps a line for each segment"),
        (("transcribe", "m", "-f", "a.wav"), "there is no -f: the sound is the second word"),
        (("check", "m.onnx", "--devices", "cpu"), "there is no --devices: --device names one, and is repeated"),
        (("bench", "m"), "a GGUF file or a folder (did you mean 'm.gguf'?)"),
        (("run", "mm.onnx"), "mm.onnx: cannot be read: No such file or directory"),
        (("run", "model_1.onnx"), "(did you mean 'model-1.onnx'?)"),
        (("run", "m.onnx", "--profile"), "there is no --profile: `rlx bench MODEL --profile trace.json` times"),
        (("run", "m.onnx", "--save", "m.rlx"), '.save("model.rlx") writes a program'),
        (("run", "-"), "-: cannot be read: No such file or directory; standard input is not read here"),
        (("doctor", "--device", "vulkan"), "there is no --device: the command runs on no device, or tells of all"),
        (("run", "https://x.example/m.onnx"), "this is an address, and a file or folder of this machine is expected"),
    ],
    ids=str,
)
def test_words_that_stand_where_none_is_taken(
    rlx: Rlx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.gguf", "m.onnx", "model-1.onnx"):
        Path(name).touch()
    ran = rlx(*words)
    assert ran.status == 2 and ran.err.count("\n") == 1 and said in ran.err, ran


def test_hints_name_options_that_are_there() -> None:
    """Of the command that was typed, or of the one that the hint names."""
    group: Any = typer.main.get_command(app)
    have = {c: {o for p in group.get_command(None, c).params for o in (*p.opts, *p.secondary_opts)} for c in COMMANDS}
    wrong = []
    for command, own in have.items():
        for option in {**ELSEWHERE, **ANYWHERE}.keys() - own:
            hint = in_place_of(option, own) or ""
            named = {command, *re.findall(r"`rlx (\w+)", hint)}
            options = re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", hint.replace("rlx --version", ""))
            wrong += [(command, option, o) for o in options if not any(o in have[c] for c in named)]
    assert not wrong


def test_of_all_tokens_or_of_as_many_as_there_are(rlx: Rlx, model: Path) -> None:
    drawn = (*DRAWN, "-s", 3, "--device", "cpu")
    text = answer(rlx, "generate", model, "abc", *drawn)
    assert text == answer(rlx, "generate", model, "abc", *drawn, "--top-k", 0)


def test_convert_takes_its_words_as_llama_cpps_does(
    rlx: Rlx, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in (("a", ("-o", tmp_path / "a.gguf", "--to", "q8_0")), ("b", (tmp_path / "b.gguf", "Q8_0")),
                        ("c", ("--outfile", tmp_path / "c.gguf", "--outtype", "q8_0"))):  # fmt: skip
        assert rlx("convert", model, *words).status == 0, name
    whole = (tmp_path / "a.gguf").read_bytes()
    assert (tmp_path / "b.gguf").read_bytes() == whole == (tmp_path / "c.gguf").read_bytes()
    assert "convert: no output; rlx convert" in rlx("convert", model).err
    monkeypatch.chdir(tmp_path)
    ran = rlx("convert", model, "--to", "q8_0")
    assert ran.out == f"{model.stem}-q8_0.gguf: {len(whole):,} bytes\n"
    assert Path(f"{model.stem}-q8_0.gguf").read_bytes() == whole
    assert "exists already; --force" in rlx("convert", model, "--to", "q8_0").err
    assert f"GGUF files: give one of them, such as {tmp_path / 'a.gguf'}" in rlx("generate", tmp_path, "abc").err


def test_a_prompt_from_a_pipe_as_a_file(rlx: Rlx, model: Path) -> None:
    more = ("-n", 4, "--device", "cpu")
    want = answer(rlx, "generate", model, "abc", *more)
    assert answer(rlx, "generate", model, "-f", "-", *more, stdin=b"abc") == want


def test_what_is_missing_is_called_missing(rlx: Rlx, model: Path, tmp_path: Path) -> None:
    for words in (
        ("generate", model, "abc", "--lora", tmp_path / "none", "--device", "cpu"),
        ("finetune", tmp_path / "none", tmp_path / "talks.jsonl", "--show-example"),
        ("finetune", tmp_path / "none", tmp_path / "talks.jsonl", "--out", tmp_path / "out"),
    ):
        ran = rlx(*words)
        assert ran.status == 2 and f"{tmp_path / 'none'} does not exist; give " in ran.err, ran


@pytest.mark.parametrize("words", [(), ("generate",), ("devices",)], ids=str)
def test_help_by_its_short_name(rlx: Rlx, words: tuple[str, ...]) -> None:
    ran = rlx(*words, "-h")
    assert ran.status == 0 and ran.err == "" and ran == rlx(*words, "--help")
