"""The graph of a language model for some tokens at any position, with its caches as states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

import rlx.ops as ops
from rlx.dtypes import f32, i32
from rlx.ir import Graph, Tensor
from rlx.models.language.adapters import LowRank, LowRanks
from rlx.models.language.blocks import Blocks, WeightTypes
from rlx.models.language.caches import Size
from rlx.models.language.config import LanguageConfig, Mixer
from rlx.models.language.latent import latent
from rlx.models.language.pages import pages_for
from rlx.models.language.recurrent import conv, delta, hybrid, lightning, mamba, mamba2
from rlx.records import Record

if TYPE_CHECKING:
    from rlx.models.language.parallel import TensorParallel

Head = Literal["token", "next", "choices", "guessed", "logits", "hidden"]
LOG = 64  # how many tokens the state `log` holds
SCORED = 20  # how many of the likeliest tokens are given with their log-probabilities
MIXERS: dict[Mixer, Callable[[Blocks, Tensor, int], Tensor]] = {
    "attention": Blocks.attention,
    "mamba": mamba,
    "mamba2": mamba2,
    "delta": delta,
    "kda": lambda b, x, index: _kda(b, x, index),
    "latent": latent,
    "conv": conv,
    "hybrid": hybrid,
    "lightning": lightning,
    "mlp": lambda b, x, index: b.mlp(x, f"layers.{index}.mlp"),
    "experts": lambda b, x, index: b.experts(x, f"layers.{index}.mlp"),
}


def _kda(b: Blocks, x: Tensor, index: int) -> Tensor:
    from rlx.models.language.kda import kda  # most models have none

    return kda(b, x, index)


class Picking(Record):
    """How a program picks a token: the greatest logit (`greedy`), or by sampling. `top_k` limits sampling to the
    greatest logits (`top_ks`: by a number for each sequence, which takes longer), `top_p` by the sum of probabilities,
    `min_p` by each probability relative to the greatest. With `masked` only tokens whose bits are set are allowed; with
    `penalized` logits are scaled and shifted first. With `scored` log-probabilities are given too."""

    greedy: bool = True
    top_k: int | None = None
    top_p: bool = False
    masked: bool = False
    top_ks: bool = False
    scored: bool = False
    min_p: bool = False
    penalized: bool = False

    def __or__(self, other: Picking) -> Picking:
        """A picking that covers both; neither may have a `top_k`."""
        flags = {name: getattr(self, name) or getattr(other, name) for name in _FLAGS}
        return Picking(self.greedy and other.greedy, **flags)

    @property
    def extent(self) -> int:
        """How much work it is beyond taking the greatest logit; orders pickings by cost."""
        return sum(map(bool, (not self.greedy, *(getattr(self, name) for name in _FLAGS))))


_FLAGS = ("top_p", "masked", "top_ks", "scored", "min_p", "penalized")
GREEDY = Picking()


def mask_words(vocabulary: int) -> int:
    """The number of 32-bit words with one bit for each token."""
    return -(-vocabulary // 32)


def only(logits: Tensor, words: Tensor) -> Tensor:
    """The logits, (batch, vocabulary), of the tokens whose bits are set; -inf for others."""
    batch, vocabulary = logits.shape
    bits = ops.right_shift(ops.reshape(words, (batch, -1, 1)), np.arange(32, dtype=np.int32))
    allowed = ops.reshape(ops.bitwise_and(bits, 1), (batch, -1))[:, :vocabulary]
    return ops.where(ops.equal(allowed, 1), logits, -np.inf)


def language_graph(
    config: LanguageConfig, size: Size, weights: WeightTypes, head: Head = "token", picking: Picking = GREEDY,
    adapter: LowRank | LowRanks | None = None, layers: range | None = None, parallel: TensorParallel | None = None,
) -> Graph:  # fmt: skip
    """A run over `size.chunk` tokens of each of `size.batch` sequences, through all layers or those in `layers`. A part
    that does not begin with the first layer has the input `x`, (batch · chunk, state) in the dtype of activations, in
    place of `ids`, and one that does not end with the last layer has only the output `x`; so it is with `layer_inputs`,
    (batch · chunk, n), where layers read more than the state. With `parallel` the graph is one
    rank's, and `config` the settings of its part.

    Inputs: `ids`, i32 (batch, chunk); `at`, i32 (batch,), the position of each sequence's first token here. For the
    head "token" and chunks of several tokens: `last`, i32 (batch,), the index in the chunk of the last token before the
    padding. For sampling: `key`, i32 (batch, 2), `temperature` and, if used, `top_p` and `min_p`, f32 (batch,). If
    `penalized`: `scale` and `shift`, f32 (batch, vocabulary): logits are divided by `scale` (negative ones multiplied),
    then `shift` is added. If `masked`: `mask`, i32 (batch, words), where bit b of word w stands for token 32 w + b.
    With `top_ks`: `top_k`, i32 (batch,), below 1 for no limit. With several adapters: `adapter`, i32 (batch,), the
    number of each sequence's, or -1.
    Output: `token`, i32 (batch, 1), the id that follows the last token; or `logits`, f32 (batch, chunk, vocabulary); or
    `hidden`, f32 (batch, chunk, width), after the last norm; or `choices`, i32 (batch, chunk), the likeliest after
    each; for the head "guessed" `choices` are picked as `token` is, at each position, and the inputs of sampling have a
    row for each of the batch · chunk tokens. With `scored`, beside a token: `scores`, f32 (batch, 1 + n), the
    log-probabilities of that token and of the n = SCORED likeliest, by the model's own logits (before temperature,
    limits and mask), and `likeliest`, i32 (batch, n), the ids of the latter.

    The head "next" is a decoding step that needs nothing from the host: `ids`, `at` and the inputs of sampling are
    states, of which a run updates the first two (`at` by the state `stride`, 0 for sequences that do not advance), and
    it writes the new token into the state `log`, i32 (batch, LOG), at the position of the token before it modulo LOG.
    Where the caches have more slots than a run has sequences, the input `slot`, i32 (), names the run's slot. Where
    sequences share pages, `table`, i32 (batch, pages of the context), lists each sequence's pages.

    With `size.beside` a step of all slots computes as many tokens of prompts too: the input `beside`, i32 (3, tokens),
    has their ids, positions and slots, whose row of `table`, and whose `adapter`, is theirs. Only the slots' own tokens
    have logits: a prompt's last token is to be that of its slot's step.
    """
    g = Graph(f"{config.architecture}-{size.batch}x{size.chunk}-{head}")
    layers = range(config.layers) if layers is None else layers
    given = g.state if head == "next" else g.input
    count = size.stepped
    x = given("ids", (count, size.chunk), i32) if layers.start == 0 else None
    at = places = given("at", (count,), i32)
    slot = g.input("slot", (), i32) if size.slots > size.batch and not size.pages else None
    table = given("table", (count, pages_for(size.context)), i32) if size.pages else None
    # A step of several sequences leaves the states of those that do not advance unchanged.
    strides = head == "next" or (config.recurrent and size.batch > 1)
    stride = given("stride", (count,), i32) if strides else None
    number = given("adapter", (count,), i32) if isinstance(adapter, LowRanks) else None
    owners = None
    if size.beside:
        beside = g.input("beside", (3, size.beside), i32)
        owners = ops.concat([g.constant(np.arange(count, dtype=np.int32)), beside[2]])
        x = x if x is None else ops.concat([x, ops.reshape(beside[0], (-1, 1))])
        places = ops.concat([at, beside[1]])
        table, number = (None if t is None else ops.gather(t, owners) for t in (table, number))
    if parallel is not None:
        parallel = parallel.within(f"{g.name} ({size!r}, {picking!r})")
    blocks = Blocks(g, config, size, weights, places, slot, adapter, number, stride, table, parallel, owners)
    if x is None:
        x = g.input("x", (blocks.rows, config.state), size.activations)
        if config.beside:
            blocks.layer_inputs = g.input("layer_inputs", (blocks.rows, config.beside), size.activations)
    x = through_layers(blocks, x, layers)
    if layers.stop < config.layers:
        g.output("x", x)
        if blocks.layer_inputs is not None:
            g.output("layer_inputs", blocks.layer_inputs)
        return g
    if head in ("token", "next"):
        x, place = x[:count] if size.beside else _last(g, x, size), at
        if size.chunk > 1:
            place = at + g.inputs["last"]
        logits = blocks.logits(blocks.last_norm(x))
        token = _picked(given, logits, place, picking)
        if picking.scored:
            _score(g, logits, token)
        if stride is not None and head == "next":
            g.update("ids", token)
            _write_log(g, token, at, size)
            g.update("at", ops.minimum(at + stride, size.context - 1))  # the last use of `at`, so no copy
        else:
            g.output("token", token)
        return g
    x = blocks.last_norm(x)
    if head == "guessed":
        step = g.constant(np.arange(size.chunk, dtype=np.int32).reshape(1, -1))
        places = ops.reshape(ops.reshape(at, (size.batch, 1)) + step, (-1,))
        chosen = _picked(given, blocks.logits(x), places, picking)
        g.output("choices", ops.reshape(chosen, (size.batch, size.chunk)))
    elif head == "choices":
        chosen = ops.cast(ops.argmax(blocks.logits(x), axis=-1), i32)
        g.output("choices", ops.reshape(chosen, (size.batch, size.chunk)))
    elif head == "logits":
        g.output("logits", ops.reshape(blocks.logits(x), (size.batch, size.chunk, config.vocabulary)))
    else:
        g.output("hidden", ops.reshape(ops.cast(x, f32), (size.batch, size.chunk, config.width)))
    return g


def through_layers(blocks: Blocks, x: Tensor, layers: range | None = None) -> Tensor:
    """The hidden states after some layers, all by default, before the last norm: (batch · chunk, width). x is token ids
    if the layers begin with the first one, else hidden states."""
    layers = range(blocks.config.layers) if layers is None else layers
    if layers.start == 0:
        x = blocks.embedding(x)
    for index in layers:
        x = layer(blocks, x, index)
    return x


def layer(b: Blocks, x: Tensor, index: int) -> Tensor:
    """The mixer of a layer and its MLP, each with its norms and added to x."""
    name, mixer, c = f"layers.{index}", MIXERS[b.config.mixers[index]], b.config
    if c.streams is not None or c.shared is not None:
        from rlx.models.language import altup, shared  # most models need neither

        return shared.layer(b, x, index) if c.streams is None else altup.layer(b, x, index)
    placement = c.placements[index] if c.placements else c.placement
    routed, inner = c.experts is not None and index not in c.dense, c.inners[index] if c.inners else c.inner

    def mlp(normed: Tensor, x: Tensor) -> Tensor:
        if c.experts is not None and c.experts.beside:
            return b.beside(x, normed, name, inner)
        return b.experts(normed, f"{name}.mlp") if routed else b.mlp(normed, f"{name}.mlp", inner)

    def around(x: Tensor, block: Callable[[Tensor], Tensor], before: str, after: str, skip: float) -> Tensor:
        normed = x if placement in ("after", "post") else b.norm(x, f"{name}.{before}")
        result = b.summed(block(normed))
        x = normed if placement == "inside" else x
        if placement in ("after", "around"):
            result = b.norm(result, f"{name}.{after}")
        x = x if skip == 1.0 else x * skip
        x = x + (result if c.residual_scale == 1.0 else result * c.residual_scale)
        return b.norm(x, f"{name}.{after}") if placement == "post" else x

    if c.parallel:
        first = second = b.norm(x, f"{name}.input_layernorm")
        if c.parallel == 2:
            second = b.norm(x, f"{name}.post_attention_layernorm")
        mixed, made = mixer(b, first, index), mlp(second, x)
        return x + mixed + made if b.parallel is None else x + b.summed(mixed + made)
    skips = c.skips[index] if c.skips else (1.0, 1.0)
    x = around(x, lambda t: mixer(b, t, index), "input_layernorm", "post_attention_layernorm", skips[0])
    if c.alone or (not c.inner and c.experts is None):
        return x
    second_norm = "pre_feedforward_layernorm" if placement == "around" else "post_attention_layernorm"
    x = around(x, lambda t, x=x: mlp(t, x), second_norm, "post_feedforward_layernorm", skips[1])  # type: ignore[misc]
    x = x if c.layer_inputs is None else x + b.of_layer_inputs(x, index)
    return ops.cast(x * b.weight(f"{name}.layer_scalar", (1,)), x.dtype) if c.layer_scales else x


def _last(g: Graph, x: Tensor, size: Size) -> Tensor:
    """The row of each sequence's last token, (batch, width)."""
    if size.chunk == 1:
        return x
    last = g.input("last", (size.batch,), i32)
    if size.batch > 1:
        last = last + g.constant(np.arange(size.batch, dtype=np.int32) * size.chunk)
    return ops.gather(x, last)


def _write_log(g: Graph, token: Tensor, at: Tensor, size: Size) -> None:
    log = g.state("log", (size.stepped, LOG), i32)
    # Finds the place of `at` by one expression over all places, which is a single launch.
    apart = ops.reshape(at, (size.stepped, 1)) + g.constant(np.arange(LOG, 0, -1, dtype=np.int32))
    here = ops.equal(apart % LOG, 0)
    g.update("log", ops.where(here, token, log))


def _picked(given: Callable[..., Tensor], logits: Tensor, place: Tensor, picking: Picking) -> Tensor:
    """The token of each row of logits, i32 (batch, 1)."""
    batch, vocabulary = logits.shape
    if picking.penalized:
        logits, scale = ops.cast(logits, f32), given("scale", (batch, vocabulary), f32)
        logits = ops.where(logits > 0, logits / scale, logits * scale) + given("shift", (batch, vocabulary), f32)
    if picking.masked:
        logits = only(logits, given("mask", (batch, mask_words(vocabulary)), i32))
    if picking.greedy:
        return ops.cast(ops.argmax(logits, axis=-1, keepdims=True), i32)
    key, heat = given("key", (batch, 2), i32), given("temperature", (batch,), f32)
    top_p = given("top_p", (batch,), f32) if picking.top_p else None
    top_k = given("top_k", (batch,), i32) if picking.top_ks else picking.top_k
    min_p = given("min_p", (batch,), f32) if picking.min_p else None
    token = ops.sample(logits, key, place, temperature=heat, top_k=top_k, top_p=top_p, min_p=min_p)
    return ops.reshape(token, (batch, 1))


def _score(g: Graph, logits: Tensor, token: Tensor) -> None:
    """Adds the outputs `scores` and `likeliest` for the token of each row."""
    logs = ops.log_softmax(ops.cast(logits, f32))
    best, likeliest = ops.top_k(logs, min(SCORED, logits.shape[1]))
    own = ops.take_along_axis(logs, ops.maximum(token, 0))
    g.output("scores", ops.concat([own, best], axis=1))
    g.output("likeliest", ops.cast(likeliest, i32))
