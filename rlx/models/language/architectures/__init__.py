"""The architectures that rlx knows: each a function from config.json to blocks, and the names of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.models.language.architectures.base import CAUSAL, Architecture
from rlx.models.language.config import Fields

# The modules of this folder and the values of `model_type` that each handles: only the module of a model is imported.
_MODULES = {
    "llama": "llama mistral cwm jais2 internlm3 iquestcoder",
    "qwen": "qwen2 qwen2_moe qwen3 qwen3_moe",
    "gemma": "gemma vaultgemma gemma2 gemma3_text",
    "gemma4": "gemma3n_text gemma4_text",
    "phi3": "phi3",
    "gpt2": "gpt2 openai-gpt",
    "olmo": "olmo olmo2 olmo3 olmo_hybrid olmoe flex_olmo",
    "gpt_oss": "gpt_oss",
    "mamba": "mamba falcon_mamba mamba2",
    "qwen_next": "qwen3_next qwen3_5_text qwen3_5_moe_text qwen3_5 qwen3_5_moe",
    "mixtral": "mixtral phimoe minimax minimax_m2",
    "variants": """
        smollm3 seed_oss arcee apertus helium ernie4_5 ernie4_5_moe ministral ministral3 nanochat""",
    "phi": "phi stablelm starcoder2 nemotron",
    "neox": "gpt_neox persimmon",
    "gptj": "gptj codegen gpt_neo gpt_bigcode",
    "alibi": "bloom mpt falcon",
    "opt": "opt biogpt",
    "sines": "ctrl",
    "cohere": "cohere cohere2 cohere2_moe",
    "granite": "granite granitemoe granitemoeshared hyperclovax granite_swa granitemoe_swa granitemoehybrid",
    "glm": "glm glm4 glm4_moe sarvam_moe glm4_moe_lite",
    "sparse": "deepseek_v32 glm_moe_dsa",
    "deepseek": "deepseek_v2 deepseek_v3 sarvam_mla axk1 dots1",
    "kimi": "kimi_linear",
    "lfm2": "lfm2 lfm2_moe",
    "hybrid": "jamba bamba nemotron_h falcon_h1",
    "exaone": "exaone exaone4 exaone_moe",
    "hunyuan": "hunyuan_v1_dense hunyuan_v1_moe hy_v3",
    "latent": "youtu minicpm3",
    "mixtures": "solar_open mellum afmoe",
    "zamba": "zamba2",
    "dbrx": "dbrx",
    "bitnet": "bitnet",
    "llama4": "llama4_text aria_text",
    "seeing": """
        aria llama4 gemma3 gemma4 llava llava_next llava_onevision vipllava mistral3 internvl idefics3 smolvlm lfm2_vl
        qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe glm4v glm4v_moe""",
}


class _Architectures(Mapping[str, Architecture]):
    """The architectures by `model_type`; a module is imported when one of its architectures is looked up."""

    def __init__(self) -> None:
        self._places = {name: module for module, names in _MODULES.items() for name in names.split()}

    def __getitem__(self, name: str) -> Architecture:
        module = import_module(f"{__name__}.{self._places[name]}")
        found: Architecture = module.ARCHITECTURES[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


ARCHITECTURES = _Architectures()
OTHERS = ("bert", "whisper")  # models that rlx reads but that are not language models
# For families without code in rlx: the nearest architecture that it has, and what that lacks.
MISSING = {
    "doge": ("llama", "masks that it computes"),
    "jetmoe": ("mixtral", "attention with experts"),
    "xglm": ("opt", "positions of sines"),
    "zamba": ("zamba2", "the first Mamba"),
    "recurrent_gemma": ("gemma2", "the linear recurrent unit"),
    "longcat_flash": ("deepseek_v3", "two blocks of attention in a layer, and experts that do nothing"),
    "diffllama": ("llama", "differential attention"),
    "rwkv": ("mamba", "RWKV's recurrence"),
    "xlstm": ("mamba", "xLSTM's recurrence"),
    "axk2": ("deepseek_v32", "norms with gates"),
    "deepseek_v4": ("deepseek_v32", "compressed keys and hyper-connections"),
    "hy_v4": ("glm_moe_dsa", "hyper-connections"),
    "dots3_note_text": ("glm_moe_dsa", "gates of heads, norms of keys with ropes, and scaled latents"),
    "bailing_hybrid": ("kimi_linear", "forget gates of full rank, with a lower bound"),
    "minimax_m3_vl_text": ("minimax_m2", "sparse attention by blocks"),
    "mimo_v2_flash": ("gpt_oss", "values of another width than keys, and their factor"),
    "laguna": ("afmoe", "numbers of heads by layer, and gates by softplus"),
    "flint": ("qwen3_moe", "attention sinks, and windows with ropes alone"),
    "dory": ("afmoe", "normalized queries with learned factors, and layers that run in loops"),
    "lfm3": ("lfm2", "gates of attention's heads"),
    "qwen4_exp_text": ("qwen3_5_moe_text", "sparse attention by blocks, gated residuals and n-gram embeddings"),
    "inkling_text": ("mixtral", "learned relative positions, and convolutions in every layer"),
    "zaya": ("qwen3_moe", "attention in a compressed, convolved space, and routers that are MLPs"),
    "hrm_text": ("llama", "stacks of layers that run in loops"),
    "apertus1p5_text": ("apertus", "an output matrix of fewer tokens than the embeddings"),
    "gpt_neox_japanese": ("gpt_neox", "a bias of the last layer alone"),
    **dict.fromkeys(
        "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet trocr".split(),
        ("opt", "an encoder beside the decoder"),
    ),
    "mllama": ("llama", "attention to images"),
}  # fmt: skip


def architecture_of(fields: Fields) -> Architecture:
    """The architecture that `model_type` names.

    Raises: ModelFormatError for an unknown one, and for a model whose tokens attend to later ones."""
    kind = fields.content.get("model_type")
    result = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if result is None:
        inner = fields.content.get("text_config")
        inner = inner.get("model_type") if isinstance(inner, dict) else None
        if isinstance(inner, str) and inner in ARCHITECTURES:
            raise ModelFormatError(
                f"{fields.where}: model_type is {shown(kind)}, of which rlx has the text model alone, {inner!r}: give "
                "a folder whose config.json is text_config, with the weights of that part"
            )
        raise ModelFormatError(f"{fields.where}: model_type is {shown(kind)}; {_nearest(kind)}")
    fields.must_be("is_causal", True)
    fields.must_be("use_bidirectional_attention", False, None, *CAUSAL.get(str(kind), ()))
    return result


def _nearest(kind: object) -> str:
    """A text for error messages: the families that rlx knows, and the nearest to an unknown one."""
    from rlx.models import encoders  # Imported here, as encoders import this package.

    known = sorted([*ARCHITECTURES, *encoders.TYPES, "whisper"])
    listed = f"rlx knows {', '.join(known)}"
    if not isinstance(kind, str):
        return listed
    if (missing := {**MISSING, **encoders.MISSING}.get(kind)) is not None:
        near, what = missing
        return f"{listed}; the nearest is {near}, which lacks {what}"
    import difflib  # only an error needs it

    alike = difflib.get_close_matches(kind, known, 1, 0.6)
    return f"{listed}; the nearest name is {alike[0]}" if alike else listed
