"""Options of llama.cpp's commands that rlx has by another name, or does not need: said before they are parsed, since a
parser would read -fa as -f with the file a."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from typer.core import TyperCommand

from rlx.cli.values import plainly_taken
from rlx.errors import RlxError

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
    ("-i", "--interactive", "-cnv", "--conversation", "-if", "--interactive-first"): "`rlx chat` talks with a model",
    ("-no-cnv", "--no-conversation", "-st", "--single-turn"): "`rlx generate` goes on from a text and ends",
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
        return super().parse_args(ctx, args)
