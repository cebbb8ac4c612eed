"""What fingers know from other tools: commands and options that rlx has by another name or does not need, and words in
the place of options. Options are looked at before they are parsed, since a parser would read -fa as -f with the file a.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from rlx.cli.commands import COMMANDS
from rlx.cli.values import plainly_taken
from rlx.errors import RlxError, meant

# Commands of llama.cpp, ONNX Runtime's tools, Hugging Face and Ollama, each with rlx's.
_COMMANDS = {
    ("quantize", "llama-quantize"): "rlx convert MODEL --to Q4_K_M -o small.gguf",
    ("export", "convert_hf_to_gguf", "convert_hf_to_gguf.py"): "rlx convert FOLDER -o model.gguf",
    ("cli", "llama-cli", "complete", "predict-text", "simple"): "rlx generate model.gguf -p TEXT",
    ("completion",): "rlx generate model.gguf -p TEXT; for the shell's, rlx --install-completion",
    ("server", "llama-server"): "rlx serve model.gguf",
    ("llama-bench", "benchmark", "perf", "perf_test", "time"): "rlx bench MODEL",
    ("profile", "trace"): "rlx bench MODEL --profile trace.json",
    ("llama-perplexity", "ppl"): "rlx perplexity model.gguf -f text.txt",
    ("embedding", "embeddings", "llama-embedding", "encode"): "rlx embed FOLDER sentences.txt",
    ("infer", "inference", "predict", "exec", "execute", "forward"): "rlx run model.onnx --input x=x.npy",
    ("show", "info", "cat", "describe", "summary", "gguf-dump", "dump"): "rlx inspect MODEL",
    ("download", "get", "fetch"): "rlx pull NAME",
    ("train", "lora", "fine-tune", "sft"): "rlx finetune FOLDER talks.jsonl --out adapter",
    ("test", "selfcheck", "verify", "self-test"): "rlx selftest, of this machine; rlx check MODEL, of a model",
    ("compare", "diff", "validate"): "rlx check model.onnx",
    ("list", "ls", "gpus", "device", "list-devices"): "rlx devices",
    ("env", "status", "diagnose", "version"): "rlx doctor; rlx --version",
    ("help",): "rlx --help; rlx COMMAND --help",
    ("whisper", "asr", "whisper-cli"): "rlx transcribe FOLDER talk.wav",
    ("optimize", "simplify", "compile", "build"): "every run optimizes the model first; rlx inspect MODEL shows how",
    ("save",): "rlx.onnx.load(FILE).compile({\"x\": shape}).save(\"model.rlx\") in Python",
    ("visualize", "netron", "plot", "graph", "nodes", "operators", "ops"):
        "rlx inspect MODEL --nodes; --memory plan.svg draws its memory",
    ("tokenize", "detokenize", "llama-tokenize"): "rlx.models.load(MODEL).tokenizer in Python",
    ("imatrix", "llama-imatrix"): "rlx convert --to Q4_K_M quantizes without one",
    ("gguf-split", "llama-gguf-split", "merge"): "files of several parts are read as they are: give the first",
    ("export-lora", "llama-export-lora"): "rlx finetune … --resume --merge FILE",
    ("batched-bench", "llama-batched-bench"): "rlx bench model.gguf, of one talk at a time",
    ("speculative", "lookup", "llama-speculative"): "rlx generate model.gguf --draft small.gguf, or --lookup",
    ("mtmd-cli", "llama-mtmd-cli", "tts", "llama-tts", "llava-cli"): "rlx's language models take and give text alone",
    ("ps", "stop", "create", "rm", "cp", "push"): "no daemon runs and no store is kept: models are files and folders, "
        "which each command names",
    ("convert-onnx", "onnx", "load"): "rlx run model.onnx",
}
_INSTEAD = {name: what for names, what in _COMMANDS.items() for name in names}

_ELSEWHERE = {
    ("-fa", "--flash-attn"): "attention keeps no matrix of all scores in any case; leave it out",
    ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"): "--cache f16, bf16 or q8_0 is for keys and values together",
    ("-b", "-ub", "--batch-size", "--ubatch-size"): "--prefill-chunk says how many tokens of a prompt one run takes",
    ("-tb", "--threads-batch"): "--threads is for prompts and answers",
    ("-ts", "--tensor-split", "-sm", "--split-mode", "-mg", "--main-gpu"):
        '--layers-on "cuda:0=20,cuda:1=12" says how many layers each device takes, --device cuda:1 which one has all',
    ("-dev",): "--device names one",
    ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"):
        "`rlx pull NAME` downloads a model first; give its folder here",
    ("--mlock", "--mmap", "--no-mmap", "--warmup", "--no-warmup", "--numa", "--no-host", "--direct-io", "-dio"):
        "weights are mapped and copied to the device once; leave it out",
    ("-i", "--interactive", "-cnv", "--conversation", "-if", "--interactive-first", "-ins", "--instruct", "-mli",
     "--multiline-input"): "`rlx chat` talks with a model",
    ("-no-cnv", "--no-conversation", "-st", "--single-turn"): "`rlx generate` goes on from a text and ends",
    ("-p", "--prompt"): "`rlx generate` goes on from a prompt; --system of `rlx chat` is what the model is told first, "
        "`rlx perplexity` takes a text by -f FILE",
    ("-sys", "--system", "--system-prompt"): "--system of `rlx chat` is what the model is told first; a prompt is "
        "taken as it is",
    ("-np", "--parallel", "-ns", "--sequences"): "`rlx serve` answers several requests at once",
    ("-sysf", "--system-prompt-file"): "--system \"$(cat FILE)\" gives the text of a file",
    ("-v", "--verbose", "--perf", "--timings", "--show-timings"):
        "--stats prints counts and speeds at the end, RLX_DEBUG=1 what is compiled",
    ("-mm", "--mmproj", "-mmu", "--mmproj-url", "--image", "--audio", "--video"):
        "rlx's language models take text alone",
    ("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-nkvo", "--no-kv-offload"):
        "-ngl N and --layers-on say how many layers each device takes, with their caches",
    ("-r", "--reverse-prompt"): "--stop ends the answer before a text",
    ("-e", "--escape", "--no-escape"): "a prompt is taken as it is; the shell writes a new line as $'\\n'",
    ("--repeat-last-n",): "--repeat-penalty is for all tokens so far; leave it out",
    ("--lora-scaled", "--lora-init-without-apply"): "--lora takes an adapter with the scale that it was trained with",
    ("--mirostat", "--tfs", "--typical", "--dry-multiplier", "--xtc-probability", "--dynatemp-range", "--top-n-sigma",
     "--samplers", "--sampling-seq"):
        "--temperature, --top-k, --top-p, --min-p and the penalties say how tokens are drawn, in the order of "
        "rlx.sample",
    ("--ignore-eos",): "--logit-bias ID-inf forbids the token that ends a text",
    ("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"):
        "the settings of the model's files say how positions are turned",
    ("--chat-template", "--jinja", "--chat-template-file"): "the model's own template is used; leave it out",
    ("--no-perf", "--log-disable", "-lv", "--verbose-prompt", "--no-display-prompt", "--simple-io", "-co", "--color"):
        "the answer alone is on standard output, and nothing else is printed without --stats; leave it out",
    ("-cb", "--cont-batching", "-nocb"): "requests are batched as they come; leave it out",
    ("--embedding", "--embeddings"): "the server has /v1/embeddings in any case; leave it out",
    ("--draft-min", "--draft-p-min", "-ngld", "-cd"): "--guesses says how many tokens are guessed at once",
    ("--spec-type",): "--draft takes a smaller model that guesses, --lookup guesses from the text itself",
    ("--fit", "-fit", "--fit-target", "--fit-ctx"): "-ngl auto puts as many layers on the GPU as fit; -c says how long "
        "a text may be",
    ("--context-shift", "--no-context-shift", "--keep"): "a text ends where the context does; -c makes it longer",
    ("--swa-full",): "the cache of a sliding window needs no more than the window; leave it out",
    ("--override-kv",): "the settings of the model's files are taken; those of a folder stand in its config.json",
    ("--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro", "--slot-save-path", "--cache-reuse"):
        "`rlx serve` keeps the beginnings that prompts share, and `rlx chat` its talk, in memory; none is written",
    ("-cram", "--cache-ram"): "--pages says how much memory of prompts `rlx serve` keeps",
    ("--reasoning-budget", "--reasoning-format", "-rea", "--reasoning"): "what a model thinks is part of its text; "
        "--stop ends it before a text, -n after so many tokens",
    ("--control-vector", "--control-vector-scaled"): "rlx has adapters alone: --lora FOLDER",
    ("-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--prio", "--poll"):
        "--threads says how many threads compute; taskset and nice say where and how eagerly",
    ("--check-tensors",): "`rlx inspect FILE --nodes` lists every tensor",
    ("-bf", "--binary-file"): "-f FILE reads a prompt of UTF-8",
    ("--in-prefix", "--in-suffix", "--in-prefix-bos"): "the model's own chat template says what is around a question",
    ("--no-jinja",): "the model's own template is used; leave it out",
    ("--api-key",): "--api-key-file FILE, or the environment variable RLX_API_KEY, keeps a key out of the list of "
        "processes",
    ("--metrics", "--props", "--no-slots"): "GET /metrics and /health are there in any case; leave it out",
    ("--no-webui", "--no-ui", "--path"): "the page / is for whoever reaches the server; leave it out",
    ("--timeout", "-to"): "--seconds says how long an answer may take",
    ("--ssl-key-file", "--ssl-cert-file"): "the server speaks HTTP; a proxy before it, such as Caddy, speaks TLS",
    ("--reranking", "--rerank"): "a reranker's /v1/rerank is there in any case; leave it out",
    ("--models-dir", "--models-preset", "--models-max"): "a server has one model; start one for each, with its --port",
    ("-pg",): "-p and -n measure reading and writing, each by itself",
    ("-d", "--n-depth"): "-p N measures reading a text of N tokens",
    ("-o", "--output-format", "-oe"): "--json FILE writes what the table says",
    ("--ppl-stride", "--stride"): "chunks do not overlap; --context says how long they are",
    ("--ppl-output-type",): "`rlx perplexity` prints the estimate over all chunks alone; leave it out",
    ("--progress", "--delay"): "each result is printed as it comes; leave it out",
    ("--hellaswag", "--winogrande", "--multiple-choice", "--kl-divergence", "--kl-divergence-base"):
        "`rlx perplexity` computes perplexity alone",
}  # fmt: skip
ELSEWHERE = {name: what for names, what in _ELSEWHERE.items() for name in names}

# Options of other tools for ONNX files, embeddings and conversions that a command of rlx may lack. Each has pairs: an
# option of rlx ("": none is needed), and what to say where the command has that option.
_ANYWHERE = {
    ("-e", "--ep", "--provider", "--providers", "--execution-provider", "--backend", "--gpu", "--use-gpu", "--cuda",
     "--cpu"): [("--device", "--device auto, cpu, vulkan or cuda says what runs it")],
    ("--fp16", "--fp32", "--bf16", "--half", "--int8", "--dtype"):
        [("--precision", "--precision f32, tf32, f16, bf16 or int8 says how products are computed")],
    ("--shape", "--shapes", "--input-shape", "--input_shape", "--opt-shapes", "--optShapes", "--batch", "--batch-size",
     "-b", "--seq-len", "-f"): [("--dim", "--dim NAME=LENGTH, such as batch=8, sets a length left open by the file")],
    ("--batch", "--batch-size", "-b"): [("--top", "texts share runs by their numbers of tokens; leave it out")],
    ("-f", "--file"): [("--task", "the sound is the second word"), ("--top", "the file of texts is a word by itself")],
    ("--random", "--random-input", "--generate-data"): [("--seed", "inputs that are not given are random")],
    ("-i", "--inputs", "--feed", "--input-file", "--data", "--load-inputs", "--loadInputs"):
        [("--input", "--input NAME=x.npy gives an input")],
    ("-o", "--output", "--outputs", "--save-outputs", "--output-dir", "--embd-output-format"):
        [("--out", "--out PATH writes what comes out; without it, it is told on standard output"),
         ("--json", "--json FILE writes what the table says")],
    ("--csv", "--format"): [("--json", "--json FILE writes what the table says")],
    ("-n", "--iterations", "--iters", "--runs", "--repeat", "--times", "--duration", "--warmup"):
        [("--runs", "--runs N and --seconds N say how often"),
         ("--seconds", "--seconds N says how long it goes on"), ("--out", "`rlx bench` times runs")],
    ("--tolerance", "--tol", "--rtol", "--atol", "--threshold"):
        [("--verbose", "each node has the tolerance of its op (docs/design/numbers.md); --verbose prints every node's "
          "error")],
    ("--weights", "--params", "--tensors", "--layers", "-l", "--all", "-a"): [("--nodes", "--nodes lists every one")],
    ("--json",): [("--nodes", "in Python rlx.onnx.load(FILE) has .inputs, .outputs and .weights"),
                  ("", "in Python rlx.devices() and what each function gives have the same")],
    ("--imatrix", "--pure", "--output-tensor-type", "--token-embedding-type", "--tensor-type", "--leave-output-tensor",
     "--allow-requantize", "--keep-split", "--dry-run", "--vocab-only", "--verbose"):
        [("--outtype", "--to names a type for all matrices, or a mixture of llama.cpp's, such as Q4_K_M")],
    ("-l", "--lang", "-dl", "--detect-language"):
        [("--task", "--language en names it; without it the model hears which")],
    ("-tr", "--translate"): [("--task", "--task translate writes English")],
    ("-osrt", "-ovtt", "-otxt", "-oj", "-ocsv", "--output-srt", "--output-vtt", "--output-txt", "--output-json",
     "--output-format", "--output_format", "-ml", "--max-len", "--word-timestamps", "--word_timestamps"):
        [("--task", "the text is on standard output, with --timestamps a line for each segment with its times")],
    ("-bs", "--beam-size", "--beam_size", "-bo", "--best-of", "--temperature", "--vad", "--initial-prompt",
     "--initial_prompt"):
        [("--task", "the likeliest token is taken each time, after the folder's own marks; leave it out")],
    ("--pooling",): [("--normalize", "the model's folder or file says how tokens become one vector; leave it out")],
    ("-k", "--top-k", "--top_k", "--top-n", "--limit"): [("--top", "--top N says how many are printed")],
    ("--profile", "--trace", "--timeline"):
        [("--input", "`rlx bench MODEL --profile trace.json` times each step of a run")],
    ("--save", "--compile"):
        [("--input", "in Python rlx.onnx.load(FILE).compile().save(\"model.rlx\") writes a program")],
    ("--background", "--camera", "--fov", "--width", "--height", "--title"):
        [("--force", "rlx.splats.write_page, in Python, takes a camera, a background and a title")],
    ("--open", "--show", "--browser"): [("--force", "the page is a file, which any browser opens")],
    ("-m", "--model", "--checkpoint"): [("", "the model's file or folder is the first word")],
    ("-p", "--prompt", "--text"):
        [("--query", "texts are the lines of a file, or of standard input: echo TEXT | rlx embed MODEL; --query TEXT "
          "finds the nearest")],
    ("--embd-normalize",): [("--normalize", "--normalize brings vectors to length 1")],
    ("--devices",): [("--device", "--device names one, and is repeated where a command takes several"),
                     ("", "`rlx devices` lists them")],
    ("--device",): [("", "the command runs on no device, or tells of all of them; leave it out")],
    ("-dev", "--list-devices"): [("", "`rlx devices` lists them")],
    ("-v", "--verbose", "--debug", "--log-level", "-vv"): [("", "RLX_DEBUG=1 rlx … prints what is compiled")],
    ("--version",): [("", "rlx --version")],
}  # fmt: skip
ANYWHERE: dict[str, list[tuple[str, str]]] = {}
for _names, _what in _ANYWHERE.items():
    for _name in _names:
        ANYWHERE.setdefault(_name, []).extend(_what)


_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")  # as hints name options
_COMMAND = re.compile(r"(?:--?\w[\w-]* of )?`rlx [^`]*`[^;,]*")  # what they say of another command


class Command(TyperCommand):
    """A command that says what to give in place of other tools' options that it has not."""

    def get_params(self, ctx: Any) -> list[Any]:
        return plainly_taken(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own: dict[str, Any] = {name: p for p in self.params for name in (*p.opts, *p.secondary_opts)}
        for before, arg in pairwise(["", *args]):
            name = arg.partition("=")[0]
            if arg == "--":
                break
            if before in own and not getattr(own[before], "is_flag", False):  # the value of an option
                is_list = re.fullmatch(r"\d+(,\d+)+", arg)  # as llama-bench's options take
                if is_list and self.name == "bench" and before != "--ranks":
                    raise RlxError(f"{self.name}: {before} {arg}: expected one number; for several, repeat the command")
                continue
            if name not in own and (instead := in_place_of(name, own)):
                raise RlxError(f"{self.name}: there is no {name}: {instead}")
        ctx.allow_extra_args = True  # refused here
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise RlxError(_one_too_many(self.name or "", rest, own))
        return rest


def in_place_of(option: str, own: Container[str]) -> str | None:
    """What to give in place of an option that a command with these of its own has not."""
    if option in ELSEWHERE and "--model" in own:  # a command about language models
        return _of_its_command(ELSEWHERE[option], own)
    return next((what for needed, what in ANYWHERE.get(option, ()) if not needed or needed in own), None)


def _of_its_command(hint: str, own: Container[str]) -> str:
    """A hint, and of which command the options are that it names: the first of those about language models that has
    them, where the one that was typed lacks any."""
    named = set(_OPTION.findall(_COMMAND.sub("", hint)))
    if all(name in own for name in named):
        return hint
    from typer.main import get_command

    from rlx.cli.app import app

    group: Any = get_command(app)
    for name in COMMANDS:
        has = {o for p in group.get_command(None, name).params for o in (*p.opts, *p.secondary_opts)}
        if "--model" in has and named <= has:
            return f"in `rlx {name}` {hint}"
    return hint


def _one_too_many(command: str, rest: Sequence[str], own: dict[str, Any]) -> str:
    """What is wrong with words that a command has no argument for, and the option that they are meant for."""
    word = rest[0]
    name, equals, value = word.partition("=")
    hint = f"`rlx {command} --help` lists what it takes"
    if equals and name and "--dim" in own and value.isdecimal():
        hint = f"a length is given by --dim {word}"
    elif equals and name and "--input" in own:
        hint = f"an input is given by --input {word}"
    elif "--dim" in own and word.isdecimal():
        hint = f"a length is one word with its dimension, as in --dim batch={word}"
    elif "--input" in own and Path(word).suffix == ".npy":
        hint = f"an input is given by --input NAME={word}"
    elif "--system" in own:
        hint = "what is said to the model is typed in the talk, or comes by a pipe; rlx generate takes a prompt"
    elif "--out" in own and (word.endswith("/") or Path(word).suffix):
        hint = f"what is written goes to --out {word}"
    return f"{command}: {word} is one word too many; {hint}"


def no_command(word: str) -> str:
    """What is wrong with a word that is no command, and which was meant."""
    file = Path(word)
    if word in _INSTEAD:
        hint = f": {_INSTEAD[word]}"
    elif file.exists():
        command = "generate" if file.suffix == ".gguf" or (file / "config.json").is_file() else "run"
        hint = f"; a model's file follows a command, as in rlx {command} {word}"
    else:
        hint = f"{meant(word, COMMANDS)}; `rlx --help` lists them"
    return f"there is no command {word!r}{hint}"
