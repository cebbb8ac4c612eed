"""What fingers know from other tools: commands and options that rlx has by another name or does not need, and words in
the place of options. Options are looked at before they are parsed, since a parser would read -fa as -f with the file a.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    ("cli", "llama-cli", "completion", "complete", "predict-text", "simple"): "rlx generate model.gguf -p TEXT",
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
    ("--mlock", "--mmap", "--no-mmap", "--no-warmup", "--numa"):
        "weights are mapped and copied to the device once; leave it out",
    ("-i", "--interactive", "-cnv", "--conversation", "-if", "--interactive-first", "-ins", "--instruct", "-mli",
     "--multiline-input"): "`rlx chat` talks with a model",
    ("-no-cnv", "--no-conversation", "-st", "--single-turn"): "`rlx generate` goes on from a text and ends",
    ("-p", "--prompt"): "`rlx generate` goes on from a prompt; --system of `rlx chat` is what the model is told first",
    ("-np", "--parallel", "-ns", "--sequences"): "`rlx serve` answers several requests at once",
    ("-sysf", "--system-prompt-file"): "--system \"$(cat FILE)\" gives the text of a file",
    ("-v", "--verbose"): "--stats prints counts and speeds at the end, RLX_DEBUG=1 what is compiled",
    ("-mm", "--mmproj", "-mmu", "--mmproj-url"): "rlx's language models take text alone",
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
    ("--log-disable", "-lv", "--verbose-prompt", "--no-display-prompt", "--simple-io", "-co", "--color"): "the answer "
        "alone is on standard output, and nothing else is printed without --stats; leave it out",
    ("-cb", "--cont-batching", "-nocb"): "requests are batched as they come; leave it out",
    ("--embedding", "--embeddings"): "the server has /v1/embeddings in any case; leave it out",
    ("--draft-min", "--draft-p-min", "-ngld", "-cd"): "--guesses says how many tokens are guessed at once",
}  # fmt: skip
ELSEWHERE = {name: what for names, what in _ELSEWHERE.items() for name in names}


class Command(TyperCommand):
    """A command that says what to give in place of llama.cpp's options that it has not."""

    def get_params(self, ctx: Any) -> list[Any]:
        return plainly_taken(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name: parameter for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if "--model" in own:  # a command about language models
            for before, arg in pairwise(["", *args]):
                name = arg.partition("=")[0]
                if arg == "--":
                    break
                if before in own and not getattr(own[before], "is_flag", False):  # the value of an option
                    continue
                if name in ELSEWHERE and name not in own:
                    raise RlxError(f"{self.name}: there is no {name}: {ELSEWHERE[name]}")
        ctx.allow_extra_args = True  # refused here
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise RlxError(_one_too_many(self.name or "", rest, own))
        return rest


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
