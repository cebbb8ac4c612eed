"""Presents a GGUF file as a Hugging Face folder: its settings as in config.json, its tensors with the names and values
of a folder, so that one description of an architecture reads both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, f32
from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.formats.gguf.keys import READ, unfollowed
from rlx.formats.gguf.names import BY_ARCHITECTURE, EXPERTS, Family
from rlx.formats.gguf.plain import BY_ARCHITECTURE as PLAIN
from rlx.formats.gguf.plain import family_of, hybrid, rules
from rlx.formats.gguf.reader import GgufFile, GgufTensor
from rlx.formats.gguf.tokenizer import read_tokenizer
from rlx.formats.settings import warn_ignored
from rlx.formats.tokenizer.language import LanguageTokenizer
from rlx.packed import PackedArray
from rlx.packed.array import copy_into, part_of

Value = npt.NDArray[Any] | PackedArray
MAX_LAYERS = 1 << 12
MAX_EXPERTS = 1 << 12
# Tensors that are settings: factors of RoPE's frequencies.
_SETTINGS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_PAIRS = {"pairs of q": "num_attention_heads", "pairs of k": "num_key_value_heads"}  # the number of heads, by `Change`
SCORES = "cls.output.weight"  # the output weight of a reranker made from a decoder: rows that give its answers' logits

# YaRN settings that llama.cpp ignores too, with the values that change nothing.
_USUAL = {"rope.scaling.yarn_attn_factor": 1.0, "rope.scaling.yarn_ext_factor": 1.0}


class GgufModel:
    """The model of an open GGUF file. `config` has the settings of an equivalent config.json; `kinds` has the shape and
    dtype of each tensor by its name in a folder; `read` gives a tensor, packed as in the file.

    Raises: ModelFormatError for a file without an architecture or of one that rlx does not know, and for tensors that
    the architecture does not have."""

    families: ClassVar[Mapping[str, Family]] = BY_ARCHITECTURE

    def __init__(self, file: GgufFile) -> None:
        self.file, self.where = file, str(file.path)
        name = file.value("general.architecture", str)
        if file.metadata.get("general.type") == "adapter":
            self._refuse("is an adapter; give the model that it was made for, and this file as --lora (load_adapter)")
        family = family_of(name, file.metadata) or self.families.get(name)
        if family is None:
            known = ", ".join({**self.families, **PLAIN})
            self._refuse(f"general.architecture is {shown(name)}; rlx reads {known}")
        self.family: Family = family
        self.config = self._config()
        self.kinds: dict[str, tuple[tuple[int, ...], DType]] = {}
        # Factors of products with packed tensors: a number, or one for each expert.
        self.scales: dict[str, npt.NDArray[np.float32]] = {}
        self._factors = self._scales_of_products()
        self._found: dict[str, tuple[GgufTensor, int | None]] = {}
        alone = self._required_alone()
        for tensor in file.tensors.values():
            of_product = tensor.name.endswith((".scale", ".input_scale"))  # input_scale is for quantized activations
            if of_product and self.family.folder_name(tensor.name) is None:
                continue
            if tensor.name in alone:
                continue
            if tensor.name not in _SETTINGS and (tensor.name != SCORES or self.family.folder_name(SCORES)):
                self._add(tensor)
        self._listed = self._numbers_of_layers()
        self.kinds |= {name: (value.shape, f32) for name, value in self._listed.items()}

    def _refuse(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.where}: {what}")

    def _scales_of_products(self) -> dict[str, npt.NDArray[np.float32]]:
        """The tensors NAME.scale, by the names of the weights whose products they scale."""
        result: dict[str, npt.NDArray[np.float32]] = {}
        for name, tensor in self.file.tensors.items():
            stem, _, end = name.rpartition(".")
            if end not in ("scale", "input_scale") or self.family.folder_name(name) is not None:
                continue
            weight = self.file.tensors.get(f"{stem}.weight")
            if weight is None or not name.startswith("blk.") or len(weight.shape) not in (2, 3):
                self._refuse(f"tensor {shown(name)} is beside no matrix of a layer, whose product it could multiply")
            expected = (1,) if len(weight.shape) == 2 else weight.shape[:1]
            if tensor.shape != expected or tensor.dtype is not f32:
                came = f"{tensor.dtype}{list(tensor.shape)}"
                self._refuse(f"tensor {shown(name)} is {came}, expected f32{list(expected)}")
            if end == "scale":
                result[weight.name] = np.asarray(tensor.read(), np.float32)
        return result

    def _numbers_of_layers(self) -> dict[str, npt.NDArray[np.float32]]:
        """One-number tensors of a folder that the file stores as settings: a number for each layer, or one for all."""
        result, layers = {}, self.config["num_hidden_layers"] if self.family.listed else 0
        for part, key in self.family.listed.items():
            held = self.file.metadata.get(key)
            held = held if isinstance(held, list) else [held] * layers
            if len(held) != layers or not all(type(value) is float for value in held):
                self._refuse(f"{key} is {shown(self.file.metadata.get(key))}, expected a number for each layer")
            shape = () if part.endswith(("beta", "eps")) else (1,)
            for i, value in enumerate(held):
                result[f"{self.family.layers}.{i}.{part}"] = np.full(shape, value, np.float32)
        return result

    def _keep(self, name: str, tensor: GgufTensor, expert: int | None, shape: tuple[int, ...], dtype: DType) -> None:
        """Enters a tensor under a folder's name. A plain weight whose product has a scale becomes f32, scaled by it."""
        factor = self._factors.get(tensor.name)
        if factor is not None and dtype.is_packed:
            one = 0 if len(tensor.shape) == 2 else slice(None) if expert is None else expert
            self.scales[name] = np.asarray(factor[one])
        elif factor is not None:
            dtype = f32
        self.kinds[name], self._found[name] = (shape, dtype), (tensor, expert)

    def _add(self, tensor: GgufTensor) -> None:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        for kind, stem in EXPERTS.items():
            if rest == f"{stem}.weight" and len(tensor.shape) == 3 and not self.family.stacked:
                if tensor.shape[0] > MAX_EXPERTS:
                    self._refuse(f"tensor {shown(tensor.name)} has {tensor.shape[0]:,} experts")
                for e in range(tensor.shape[0]):
                    name = f"{self.family.layers}.{block}.mlp.experts.{e}.{kind}.weight"
                    self._keep(name, tensor, e, tensor.shape[1:], tensor.dtype)
                return
        stack = self.family.stacks.get(tensor.name.removesuffix(".weight"))
        if stack is not None and len(tensor.shape) == 3 and tensor.shape[0] <= MAX_EXPERTS:
            for i in range(tensor.shape[0]):
                self._keep(f"{stack}.{i}.weight", tensor, i, tensor.shape[1:], tensor.dtype)
            return
        folder_name = self.family.folder_name(tensor.name)
        if folder_name is None:
            self._refuse(
                f"tensor {shown(tensor.name)} is not one that a model of {self.family.architecture} has"
            )
        change, shape, dtype = self.family.change(tensor.name), tensor.shape, tensor.dtype
        if change == "transposed":
            shape, dtype = shape[::-1], (f32 if dtype.is_packed else dtype)
        elif change == "squeezed":
            shape = (*shape[:1], 1, *shape[1:])
        elif change == "one row":
            if math.prod(shape[:-1]) != 1:
                self._refuse(f"tensor {shown(tensor.name)} has shape {shape}, expected one row")
            shape = (1, *shape[-1:])
        elif change == "flat":
            shape, dtype = (math.prod(shape),), f32
        elif change in ("one more", "minus exp"):
            dtype = f32
        self._keep(folder_name, tensor, None, shape, dtype)

    def read(self, name: str) -> Value:
        """The tensor of this name in a folder; if it is packed, `scales` may have a factor of its products.

        Raises: ModelFormatError, KeyError."""
        if name in self._listed:
            return self._listed[name]
        tensor, expert = self._found[name]
        value, factor = self._read(name, tensor, expert), self._factors.get(tensor.name)
        if factor is None or isinstance(value, PackedArray):
            return value
        return times(np.asarray(value, np.float32), factor if expert is None else factor[expert])

    def plain(self, name: str) -> npt.NDArray[Any]:
        """The tensor as floats, multiplied by the factor of its products. Raises: as `read`."""
        value = self.read(name)
        if not isinstance(value, PackedArray):
            return value
        return times(value.dequantize(), self.scales.get(name))

    def _read(self, name: str, tensor: GgufTensor, expert: int | None) -> Value:
        if expert is not None:
            value = tensor.read(expert, expert + 1)
            if isinstance(value, PackedArray):
                return PackedArray(value.dtype, value.shape[1:], value.data[0])
            return np.asarray(value[0])
        value = tensor.read()
        change = self.family.change(tensor.name)
        if change is None or (change == "one row" and isinstance(value, PackedArray)):
            return value
        if change in _PAIRS:
            return taken(value, self._halves(tensor, change))
        plain = np.asarray(value.dequantize() if isinstance(value, PackedArray) else value)
        if change == "transposed":
            return np.ascontiguousarray(plain.T)
        if change in ("squeezed", "one row"):
            return plain.reshape(self.kinds[name][0])
        if change == "flat":
            return plain.reshape(self.kinds[name][0]).astype(np.float32)
        plain = plain.astype(np.float32)
        with np.errstate(all="ignore"):
            return plain - 1 if change == "one more" else np.log(-plain)

    def _halves(self, tensor: GgufTensor, change: str) -> npt.NDArray[np.int64]:
        """The row order that turns a tensor for RoPE on adjacent pairs into one for RoPE on halves."""
        heads = self.config[_PAIRS[change]]
        rows = halves_of_pairs(tensor.shape[0], heads)
        if rows is None:
            self._refuse(
                f"tensor {shown(tensor.name)} has {tensor.shape[0]:,} rows, which {heads} heads do not divide"
            )
        return rows

    def read_part(self, name: str, axis: int, start: int, stop: int) -> Value:
        """A range of one axis of the tensor of this name in a folder, as `read` gives it. Raises: as `read`."""
        tensor, expert = self._found.get(name, (None, None))
        change = None if tensor is None else self.family.change(tensor.name)
        scaled = tensor is not None and tensor.name in self._factors and not self.kinds[name][1].is_packed
        if tensor is None or scaled or (expert is None and change is not None and change not in _PAIRS):
            return part_of(self.read(name), axis, start, stop)
        if expert is not None or change is None:
            return tensor.part(axis, start, stop, expert)
        order = self._halves(tensor, change)
        if axis != 0:
            return taken(tensor.part(axis, start, stop), order)
        order = order[start:stop] - start  # rows are reordered within heads, and a range is whole heads
        return taken(tensor.part(axis, start, stop), order)

    def read_into(self, name: str, out: npt.NDArray[np.uint8]) -> None:
        """Writes the tensor of this name in a folder into memory of its size, as `read` gives it. Raises: as `read`."""
        tensor, expert = self._found.get(name, (None, None))
        change = None if tensor is None else self.family.change(tensor.name)
        if tensor is None or (tensor.name in self._factors and not self.kinds[name][1].is_packed):
            copy_into(self.read(name), out)
        elif expert is not None:
            tensor.read(expert, expert + 1, out)
        elif change is None or (change == "one row" and tensor.dtype.is_packed):
            tensor.read(out=out)
        else:
            copy_into(self.read(name), out)

    def tokenizer(self) -> LanguageTokenizer:
        """The file's tokenizer. Raises: RlxError without the package `tokenizers`, ModelFormatError."""
        return read_tokenizer(self.file)

    def _config(self) -> dict[str, Any]:
        family, arch = self.family, self.family.architecture
        config: dict[str, Any] = {"model_type": family.model_type, "architectures": [family.class_name]}
        for names, kind in ((family.counts, int), (family.numbers, float)):
            for name, key in names.items():
                config[name] = self._setting(f"{arch}.{key}", kind, name)
        for name, key in family.optional.items():
            value = self.file.metadata.get(f"{arch}.{key}")
            if value is not None:
                config[name] = value
        for key, usual in _USUAL.items():
            value = self.file.metadata.get(f"{arch}.{key}", usual)
            if type(value) is not type(usual) or value != usual:
                self._refuse(f"{arch}.{key} is {shown(value)}; rlx has no code for other than {usual}")
        table = self.file.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            self._refuse("has no matrix token_embd.weight")
        config["vocab_size"] = table.shape[0]
        config["tie_word_embeddings"] = "output.weight" not in self.file.tensors
        layers: int = config["n_layer" if arch == "gpt2" else "num_hidden_layers"]
        if not 0 < layers <= MAX_LAYERS:
            self._refuse(f"{arch}.block_count is {layers}; expected 1 to {MAX_LAYERS:,}")
        for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            token = self.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
            config[f"{key}_token_id"] = token if type(token) is int else None
        if self.family.latent:
            self._latent(config)
        elif "num_attention_heads" in config and self.family.architecture != "gemma4":
            self._heads(config)
        self._check_settings(config)
        if arch in ("gemma2", "gemma3"):
            self._gemma(config)
        if self.family.plain:
            self._plain(config)
            return config
        if "attention.sliding_window_pattern" in READ[arch]:
            self._windows(config, layers)
        elif config.get("sliding_window") == 0:
            del config["sliding_window"]
        if arch.startswith("qwen35"):
            self._qwen35(config)
        if arch == "qwen3moe":
            config["norm_topk_prob"] = True
        if arch == "gpt-oss":
            config["attention_bias"] = True
            if config.get("rope_scaling", {}).get("rope_type") == "yarn":
                config["rope_scaling"]["truncate"] = False  # as the model was made; GGUF does not say
            elif "rope_scaling" not in config:
                config["rope_parameters"] = {"rope_type": "default"}  # a folder that says nothing is scaled
        if arch in ("llama", "qwen2"):
            first = "blk.0.attn_q.bias" in self.file.tensors
            config["attention_bias"] = first and arch == "llama"
        return config

    def _check_settings(self, config: Mapping[str, Any]) -> None:
        """Refuses settings that change numbers and that rlx has no code for."""
        arch, known = self.family.architecture, dict(config)
        if "head_dim" in known:
            known["turned"] = self.file.value(f"{arch}.rope.dimension_count", int, known["head_dim"])
        metadata = dict(self.file.metadata)
        if "rope_factors_long.weight" in self.file.tensors:  # `_longrope` reads its factor
            metadata.pop(f"{arch}.rope.scaling.attn_factor", None)
        if self.family.plain:
            self._check_plain(metadata)
        wrong = unfollowed(arch, metadata, known, rules(self.family) if self.family.plain else READ[arch])
        if wrong is not None:
            self._refuse(wrong)

    def _latent(self, config: dict[str, Any]) -> None:
        """The sizes of keys in latent attention, and their rotary embedding, whose YaRN has one more factor."""
        turned = config["qk_rope_head_dim"]
        config["qk_nope_head_dim"] = config.pop("qk_head_dim") - turned
        config["num_key_value_heads"] = config["num_attention_heads"]
        config.setdefault("q_lora_rank", None)
        scaling, more = self._scaling(config, turned), config.pop("yarn_log_multiplier", 0.0)
        if scaling is not None:
            if more and scaling["rope_type"] == "yarn":
                scaling |= dict.fromkeys(("mscale", "mscale_all_dim"), round(more * 10, 6))
            config["rope_scaling"] = scaling

    def _check_plain(self, metadata: Mapping[str, Any]) -> None:
        known, arch = rules(self.family), self.family.architecture
        for key in metadata:
            if key.startswith(f"{arch}.") and key.removeprefix(f"{arch}.") not in known:
                self._refuse(f"{key} is {shown(metadata[key])}; rlx has no code for it")

    def _plain(self, config: dict[str, Any]) -> None:
        """Settings of a plain family that follow from its tensors, or that GGUF does not store."""
        f = self.family
        config |= f.fixed
        ends = {name.partition(".")[2].partition(".")[2] for name in self.file.tensors if name.startswith("blk.")}
        for name, tensor in f.present.items():
            config[name] = tensor in self.file.tensors or tensor.removeprefix("blk.0.") in ends
        if f.pairs:
            config["rope_interleaved"] = True
        if f.architecture == "exaone4" and config["num_hidden_layers"] != 64:  # only the largest model has windows
            config |= {"sliding_window": None, "layer_types": None}
        if f.architecture == "dbrx":
            config["attn_config"] = {"clip_qkv": config.pop("clip_qkv", None), "rope_theta": config.pop("rope_theta"),
                                     "kv_n_heads": config["num_key_value_heads"]}  # fmt: skip
            config["ffn_config"] = {"moe_num_experts": config.pop("moe_num_experts"),
                                    "moe_top_k": config.pop("moe_top_k"),
                                    "ffn_hidden_size": config["intermediate_size"]}  # fmt: skip
        if f.architecture == "mpt":
            config["attn_config"] = {"clip_qkv": config.pop("clip_qkv", None)}
        if f.architecture == "falcon":
            kv, second = config["num_key_value_heads"], "blk.0.attn_norm_2.weight" in self.file.tensors
            config |= {"new_decoder_architecture": kv > 1, "num_kv_heads": kv, "num_ln_in_parallel_attn": 1 + second,
                       "ffn_hidden_size": config["intermediate_size"]}  # fmt: skip
        if f.architecture.startswith("granite") and not config.get("attention_multiplier"):
            config["attention_multiplier"] = config["head_dim"] ** -0.5
        if f.mixers:
            self._hybrid(config)
        if f.layered:
            from rlx.formats.gguf.layered import layered  # most families do not need it

            wrong = layered(f, config, self.file.metadata, self.file.tensors)
            if wrong is not None:
                self._refuse(wrong)
            if never := self.file.metadata.get("tokenizer.ggml.suppress_tokens"):
                warn_ignored(self.where, "tokenizer.ggml.suppress_tokens", never, "exclude such tokens by logit_bias")
        if f.model_type == "mamba2":
            inner, heads, width = config.pop("ssm_inner"), config["num_heads"], config["hidden_size"]
            if heads < 1 or inner % heads or inner % width:
                self._refuse(f"mamba2.ssm.inner_size is {inner}, expected a multiple of {heads} heads and of {width}")
            config |= {"head_dim": inner // heads, "expand": inner // width}
        if f.model_type == "olmo3":  # both kinds of layers have one base, and those with windows no scaling
            plain = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
            config["rope_parameters"] = {
                "full_attention": {**plain, **config.pop("rope_scaling", {})}, "sliding_attention": plain,
            }  # fmt: skip
        if f.one_key:
            config[f.one_key] = config.get("num_key_value_heads") == 1

    def _hybrid(self, config: dict[str, Any]) -> None:
        """Which layers have attention, by the list of KV heads per layer."""
        layers, key = config["num_hidden_layers"], f"{self.family.architecture}.attention.head_count_kv"
        heads = self.file.metadata.get(key)
        heads = heads if isinstance(heads, list) else [config["num_key_value_heads"]] * layers
        if len(heads) != layers:
            self._refuse(f"{key} has {len(heads)} numbers, expected {layers}")
        finetuned = f"{self.family.architecture}.rope.scaling.finetuned"
        if finetuned in self.file.metadata:
            config["rope.scaling.finetuned"] = self.file.value(finetuned, bool)
        wrong = hybrid(self.family, config, heads, self.file.tensors)
        if wrong is not None:
            self._refuse(wrong)

    def _windows(self, config: dict[str, Any], layers: int) -> None:
        """Which layers have a window: all but every n-th, or those that a list says."""
        key = f"{self.family.architecture}.attention.sliding_window_pattern"
        flags = self.file.metadata.get(key)
        if flags is None:
            return
        if type(flags) is int and 1 < flags <= MAX_LAYERS:
            flags = [i % flags < flags - 1 for i in range(layers)]
        if not isinstance(flags, list) or len(flags) != layers or not all(type(slides) is bool for slides in flags):
            self._refuse(f"{key} is {shown(flags)}, expected a number from 2 on, or a flag for each of {layers} layers")
        config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in flags]

    def _setting(self, key: str, kind: type, name: str) -> Any:
        if name == "num_key_value_heads" and key not in self.file.metadata:
            key = key.removesuffix("_kv")
        default = 10000.0 if name == "rope_theta" else None
        value = self.file.metadata.get(key)
        if isinstance(value, list) and value and len(set(map(str, value))) == 1:
            value = value[0]  # llama.cpp allows a list with a number for each layer
            if type(value) not in (int, kind):
                self._refuse(f"{key} is a list of {type(value).__name__}, expected {kind.__name__}")
        elif isinstance(value, list) and name == "num_key_value_heads" and self.family.mixers:
            value = self._heads_of_layers(key, value)
        elif isinstance(value, list) and self._each_of_layers(name):
            value = max([n for n in value if type(n) is int], default=0)
        elif isinstance(value, list):
            self._refuse(f"{key} has a number for each layer; rlx has models of equal layers only")
        else:
            value = self.file.value(key, kind, default)
        if type(value) is int and not 0 <= value < 1 << 31:
            self._refuse(f"{key} is {value:,}; expected at most {(1 << 31) - 1:,}")
        if type(value) is float and np.float32(value) == value:
            return float(str(np.float32(value)))  # 1e-06 rather than its f32 rounding
        return value

    def _required_alone(self) -> set[str]:
        """The tensors that other readers require and nothing uses."""
        if not self.family.stacks:
            return set()
        from rlx.formats.gguf.layered import required_alone  # most families do not need it

        return {name for name in self.file.tensors if required_alone(self.config, name)}

    def _each_of_layers(self, name: str) -> bool:
        """Whether each layer's own number is read apart from the setting, or follows from its tensors."""
        if self.family.architecture == "gemma4":
            return name in ("intermediate_size", "num_key_value_heads")
        return name == "intermediate_size" and self.family.mixers == "nemotron_h"

    def _heads_of_layers(self, key: str, value: list[Any]) -> int:
        """The number of KV heads of the layers with attention; the list has 0 for the others."""
        if not all(type(n) is int for n in value) or len(set(value) - {0}) != 1:
            self._refuse(f"{key} is {shown(value)}, expected one number of heads, or 0 where a layer has no attention")
        return int(max(value))

    def _heads(self, config: dict[str, Any]) -> None:
        """The size of a head and the rotary embedding."""
        arch, file = self.family.architecture, self.file
        heads = config["num_attention_heads"]
        if heads < 1:
            self._refuse(f"{arch}.attention.head_count is {heads}; expected 1 or more")
        size = file.value(f"{arch}.attention.key_length", int, config["hidden_size"] // heads)
        if file.value(f"{arch}.attention.value_length", int, size) != size:
            self._refuse(
                f"{arch}.attention.key_length and value_length differ; rlx has heads of one size only"
            )
        config["head_dim"] = size
        turned = file.value(f"{arch}.rope.dimension_count", int, size)
        if turned != size:
            if not 0 < turned < size:
                self._refuse(
                    f"{arch}.rope.dimension_count is {turned}; expected at most the {size} of a head"
                )
            config["partial_rotary_factor"] = turned / size
        scaling = self._scaling(config, turned)
        if scaling is not None:
            config["rope_scaling"] = scaling
            if (original := scaling.get("original_max_position_embeddings")) is not None:
                config["original_max_position_embeddings"] = original  # classes read it here

    def _scaling(self, config: dict[str, Any], turned: int) -> dict[str, Any] | None:
        arch, file = self.family.architecture, self.file
        original = file.value(
            f"{arch}.rope.scaling.original_context_length", int, config["max_position_embeddings"]
        )
        # As in llama.cpp: linear where no type stands there, the old key where no factor does, and 0 for no scaling.
        kind = file.value(f"{arch}.rope.scaling.type", str, "linear")
        old = file.value(f"{arch}.rope.scale_linear", float, 0.0)
        factor = file.value(f"{arch}.rope.scaling.factor", float, old) or 1.0
        tables = [name for name in ("rope_factors_long.weight", "rope_freqs.weight") if name in file.tensors]
        if tables and kind != "none" and factor != 1.0:
            self._refuse(f"{arch}.rope.scaling.factor is {factor} beside {tables[0]}; rlx has no code for both")
        if "rope_factors_long.weight" in file.tensors:
            return self._longrope(turned, original)
        if "rope_freqs.weight" in file.tensors:
            return self._llama3(config, turned)
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return None
        result = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            for name in ("beta_fast", "beta_slow"):
                beta = file.metadata.get(f"{arch}.rope.scaling.yarn_{name}")
                result |= {} if beta is None else {name: beta}
            result["original_max_position_embeddings"] = original
        return result

    def _longrope(self, turned: int, original: int) -> dict[str, Any]:
        """The settings of LongRoPE's scaling, whose factors are tensors, and whose attention factor is a setting."""
        settings: dict[str, Any] = {"rope_type": "longrope", "original_max_position_embeddings": original}
        for name in ("long", "short"):
            tensor = self.file.tensors.get(f"rope_factors_{name}.weight")
            if tensor is None or tensor.shape != (turned // 2,) or tensor.dtype is not f32:
                self._refuse(f"rope_factors_{name}.weight is no factor in f32 for each of {turned // 2} frequencies")
            settings[f"{name}_factor"] = np.asarray(tensor.read(), np.float64).tolist()
        key = f"{self.family.architecture}.rope.scaling.attn_factor"
        return settings | ({"attention_factor": self.file.value(key, float)} if key in self.file.metadata else {})

    def _llama3(self, config: dict[str, Any], turned: int) -> dict[str, Any]:
        """The settings of Llama 3's RoPE scaling, recovered from each frequency's divisor, which the file holds."""
        tensor = self.file.tensors["rope_freqs.weight"]
        fits = (
            tensor.shape == (turned // 2,) and turned > 1 and turned % 2 == 0
            and tensor.dtype is f32 and config["rope_theta"] > 1
        )  # fmt: skip
        held = np.asarray(tensor.read() if fits else np.nan, np.float64)
        if not (np.isfinite(held).all() and held.min() > 0):
            self._refuse(
                f"rope_freqs.weight is no factor above 0 in f32 for each of {turned // 2} frequencies"
            )
        factor = float(np.round(held.max(), 6))
        result: dict[str, Any] = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
        for original in (8192, *(1 << n for n in range(6, 20))):
            result["original_max_position_embeddings"] = original
            if np.allclose(llama3_factors(config["rope_theta"], turned, result), held, rtol=1e-4, atol=0):
                break
        else:
            self._refuse(
                "rope_freqs.weight does not hold the factors of Llama 3's scaling, which alone rlx knows"
            )
        return result

    def _qwen35(self, config: dict[str, Any]) -> None:
        """The heads of the delta rule: here the value heads of a key head are not adjacent. The sections of the rotary
        embedding are for images: in text all three have the same positions, and elements in no section are not rotated.
        """
        key = f"{self.family.architecture}.rope.dimension_sections"
        sections, turned = self.file.metadata.get(key), config["head_dim"] * config.get("partial_rotary_factor", 1)
        half = int(turned) // 2
        if sections is not None:
            parts = sections if isinstance(sections, list) and all(type(n) is int for n in sections) else []
            if len(parts) < 3 or any(i >= 3 * parts[i % 3] for i in range(half)):
                self._refuse(f"{key} is {shown(sections)}; expected three parts, in turn, of all {half} frequencies")
        heads, inner = config["linear_num_value_heads"], config.pop("linear_inner_size")
        if heads < 1 or inner % heads:
            self._refuse(f"{self.family.architecture}.ssm.inner_size is {inner}, which {heads} heads do not divide")
        config |= {"linear_value_head_dim": inner // heads, "linear_heads_tiled": True}

    def _gemma(self, config: dict[str, Any]) -> None:
        """Settings of a Gemma that GGUF does not store: activation, the scale of logits, and which layers have
        windows."""
        part = config["hidden_size"] // config["num_attention_heads"]
        scalar = gemma_scalar(self.family.architecture, config["num_hidden_layers"], part, config["head_dim"])
        config |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}
        if self.family.architecture == "gemma3":
            config["sliding_window_pattern"] = 6
            config["rope_local_base_freq"] = self.file.value("gemma3.rope.freq_base_swa", float, 10000.0)


def times(weight: npt.NDArray[Any], scale: npt.NDArray[np.float32] | None) -> npt.NDArray[Any]:
    """A weight times the factor of its products: a number, or one for each expert."""
    return weight if scale is None else weight * np.reshape(scale, (-1, *[1] * (weight.ndim - 1)))


def gemma_scalar(architecture: str, layers: int, part: int, head: Any) -> Any:
    """The number whose square root divides attention scores: the head size, or in the largest model the width divided
    by the heads."""
    return part if layers == (46 if architecture == "gemma2" else 62) else head


def llama3_factors(base: float, width: int, scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """The divisor of each frequency in Llama 3's RoPE scaling."""
    plain = base ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    with np.errstate(all="ignore"):
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray(1 / ((1 - keep) / scaling["factor"] + keep))


def halves_of_pairs(rows: int, heads: int) -> npt.NDArray[np.int64] | None:
    """The GGUF row for each row of a folder's q or k matrix: a folder rotates the first half of a head with the second,
    GGUF adjacent rows. None if the rows do not form pairs in so many heads."""
    if heads < 1 or rows % (2 * heads):
        return None
    return np.ascontiguousarray(np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2)).reshape(-1)


def taken(value: Value, rows: npt.NDArray[np.int64]) -> Value:
    """The matrix with its rows in the order `rows`."""
    if isinstance(value, PackedArray):
        return PackedArray(value.dtype, value.shape, value.data[rows])
    return value[rows]
