"""More architectures of torchvision, timm and transformers: those whose layers the other networks do not have."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.onnx.sweep.networks import Calls, Last, Network, _ids, _image

# timm's name, and the side of its image
TIMM = {
    "test_byobnet": 64, "test_coatnet": 160, "test_convnext2": 64, "test_convnext3": 64, "test_efficientnet_evos": 64,
    "test_efficientnet_gn": 64, "test_efficientnet_ln": 64, "test_mambaout": 64, "test_maxvit": 160, "test_nfnet": 64,
    "test_vit2": 160, "test_vit3": 160, "test_vit4": 160, "test_vit_relpos": 160, "ghostnet_050": 64,
    "lcnet_035": 64, "tinynet_e": 64, "mobilevit_xxs": 64, "mobilevitv2_050": 64, "edgenext_xx_small": 64,
    "efficientvit_b0": 64, "efficientvit_m0": 224, "fastvit_t8": 64, "repvit_m0_9": 64, "mobileone_s0": 64,
    "levit_128s": 224, "pit_ti_224": 224, "pvt_v2_b0": 64, "xcit_nano_12_p16_224": 64, "coat_tiny": 224,
    "crossvit_tiny_240": 240, "resmlp_12_224": 224, "gmlp_ti16_224": 224, "poolformerv2_s12": 64,
    "hrnet_w18_small": 64, "dla46_c": 64, "ese_vovnet19b_slim": 64, "mobilenetv4_conv_small": 64, "starnet_s1": 64,
    "convnextv2_atto": 64, "skresnet18": 64, "resnest14d": 64, "halonet26t": 128, "botnet26t_256": 256,
    "volo_d1_224": 224, "swinv2_cr_tiny_ns_224": 224, "nest_tiny_jx": 224, "visformer_tiny": 224,
    "efficientformer_l1": 224, "efficientformerv2_s0": 224, "inception_next_atto": 64, "hgnetv2_b0": 64,
    "res2net50_14w_8s": 64, "selecsls42b": 64, "tf_efficientnet_lite0": 64, "lambda_resnet26t": 128,
    "cs3darknet_s": 64, "rexnetr_100": 64, "davit_tiny": 64, "focalnet_tiny_srf": 64, "tiny_vit_5m_224": 224,
}  # fmt: skip
# torchvision's name (after `detection.` and the like) and the shape of its input
TORCHVISION = {
    "densenet121": (1, 3, 64, 64), "googlenet": (1, 3, 64, 64), "inception_v3": (1, 3, 96, 96),
    "efficientnet_v2_s": (1, 3, 64, 64), "regnet_x_400mf": (1, 3, 64, 64), "mobilenet_v3_large": (1, 3, 64, 64),
    "convnext_tiny": (1, 3, 64, 64), "swin_t": (1, 3, 64, 64), "swin_v2_t": (1, 3, 64, 64), "resnext50_32x4d": (1,
        3, 64, 64),
    "maxvit_t": (1, 3, 224, 224), "segmentation.lraspp_mobilenet_v3_large": (1, 3, 64, 64),
    "segmentation.deeplabv3_mobilenet_v3_large": (1, 3, 64, 64), "video.r3d_18": (1, 3, 8, 32, 32),
    "video.s3d": (1, 3, 16, 64, 64), "detection.fasterrcnn_mobilenet_v3_large_320_fpn": (3, 320, 320),
    "detection.ssdlite320_mobilenet_v3_large": (3, 320, 320), "detection.keypointrcnn_resnet50_fpn": (3, 224, 224),
}  # fmt: skip


def torchvision() -> dict[str, Callable[[], Network]]:
    """Networks of torchvision."""
    models = importlib.import_module("torchvision.models")

    def build(name: str, shape: tuple[int, ...]) -> Network:
        where, _, last = name.rpartition(".")
        made = getattr(getattr(models, where) if where else models, last)
        if where == "detection":
            model = made(weights=None, weights_backbone=None).eval()
            return Calls(lambda m, x: tuple(m.inner([x])[0].values()), inner=model), (torch.rand(*shape),)
        more = {"weights_backbone": None} if where == "segmentation" else {}
        more |= {"init_weights": False, "aux_logits": False} if last in ("googlenet", "inception_v3") else {}
        model = made(weights=None, **more)
        if where == "segmentation":
            model = Calls(lambda m, x: m.inner(x)["out"], inner=model)
        return model, (_image(*shape),)

    return {
        f"torchvision {n.rpartition('.')[2]}": lambda n=n, shape=shape: build(n, shape)
        for n, shape in TORCHVISION.items()
    }


def timm() -> dict[str, Callable[[], Network]]:
    """Networks of timm, with few weights and ten classes."""
    timm = importlib.import_module("timm")

    def build(name: str, side: int) -> Network:
        return timm.create_model(name, pretrained=False, num_classes=10), (_image(1, 3, side, side),)

    return {f"timm {name}": lambda name=name, side=side: build(name, side) for name, side in TIMM.items()}


_TEXT = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_KV = {**_TEXT, "num_key_value_heads": 2, "use_cache": False, "head_dim": 8, "pad_token_id": 0}
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_PAIR = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
    "pad_token_id": 1, "use_cache": False,
}  # fmt: skip
_SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
# model, its config, and what it is given: ids, two of these, an image of a side, or sound
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "DebertaV2": ("Model", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "ids"),
    "ConvBert": ("Model", {**_TEXT, "embedding_size": 32, "head_ratio": 2, "num_groups": 1}, "ids"),
    "SqueezeBert": ("Model", {**_TEXT, "embedding_size": 32, "q_groups": 1, "k_groups": 1, "v_groups": 1,
        "post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1}, "ids"),
    "FNet": ("Model", _TEXT, "ids"),
    "Funnel": ("Model", {"vocab_size": 50, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8,
        "d_inner": 48}, "ids"),
    "XLNet": ("Model", {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "ids"),
    "ModernBert": ("Model", {**_TEXT, "pad_token_id": 0}, "ids"),
    "RoFormer": ("Model", {**_TEXT, "embedding_size": 32}, "ids"),
    "Phi": ("ForCausalLM", _KV, "ids"), "Phi3": ("ForCausalLM", _KV, "ids"), "Gemma2": ("ForCausalLM", _KV, "ids"),
    "Gemma3Text": ("ForCausalLM", _KV, "ids"), "Qwen3": ("ForCausalLM", _KV, "ids"), "Olmo2": ("ForCausalLM", _KV,
        "ids"),
    "Granite": ("ForCausalLM", _KV, "ids"), "StableLm": ("ForCausalLM", _KV, "ids"), "Cohere": ("ForCausalLM", _KV,
        "ids"),
    "Starcoder2": ("ForCausalLM", _KV, "ids"), "Nemotron": ("ForCausalLM", _KV, "ids"), "Glm": ("ForCausalLM", _KV,
        "ids"),
    "Mixtral": ("ForCausalLM", {**_KV, "num_local_experts": 4, "num_experts_per_tok": 2}, "ids"),
    "Qwen3Moe": ("ForCausalLM", {**_KV, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        "ids"),
    "Falcon": ("ForCausalLM", {**_TEXT, "use_cache": False}, "ids"),
    "Bloom": ("ForCausalLM", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
        "ids"),
    "GPTJ": ("ForCausalLM", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
        "n_positions": 32, "use_cache": False}, "ids"),
    "CodeGen": ("ForCausalLM", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
        "n_positions": 32, "use_cache": False}, "ids"),
    "Mamba": ("ForCausalLM", {"vocab_size": 50, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1,
        "use_cache": False}, "ids"),
    "Bart": ("Model", _PAIR, "pair"), "Marian": ("Model", _PAIR, "pair"), "Pegasus": ("Model", _PAIR, "pair"),
    "MBart": ("Model", _PAIR, "pair"),
    "T5": ("Model", {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4,
        "use_cache": False}, "pair"),
    "Beit": ("Model", {**_VISION, "use_relative_position_bias": True}, "32"),
    "ViTMAE": ("Model", {**_VISION, "mask_ratio": 0.0}, "32"), "YolosModel": ("", {**_VISION, "image_size": [32,
        32]}, "32"),
    "Swinv2": ("Model", {"depths": [1, 1], "embed_dim": 16, "num_heads": [2, 4], "image_size": 32,
        "window_size": 4}, "32"),
    "PoolFormer": ("Model", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}, "64"),
    "MobileViT": ("Model", {"hidden_sizes": [16, 16, 32], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
        "num_attention_heads": 4, "image_size": 64}, "64"),
    "RegNet": ("Model", {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "groups_width": 4}, "32"),
    "Cvt": ("Model", {"embed_dim": [8, 8, 16], "num_heads": [1, 1, 2], "depth": [1, 1, 1]}, "64"),
    "Pvt": ("Model", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
        "image_size": 64}, "64"),
    "DPT": ("ForDepthEstimation", {**_VISION, "backbone_out_indices": [0, 1, 0, 1], "neck_hidden_sizes": [8, 8, 8,
        8], "fusion_hidden_size": 8, "is_hybrid": False}, "32"),
    "ConvNextV2": ("Model", {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}, "32"),
    "Wav2Vec2": ("Model", _SOUND, "sound"), "Hubert": ("Model", _SOUND, "sound"), "SEW": ("Model", {**_SOUND,
        "squeeze_factor": 2}, "sound"),
}  # fmt: skip


def transformers() -> dict[str, Callable[[], Network]]:
    """Small models of transformers."""
    t = importlib.import_module("transformers")

    def build(name: str) -> Network:
        tail, options, given = TRANSFORMERS[name]
        bare = name.removesuffix("Model")
        config = getattr(t, f"{name}Config", None) or getattr(t, f"{bare}Config")
        kind = getattr(t, {"Gemma3Text": "Gemma3ForCausalLM"}.get(name, f"{bare}{tail or 'Model'}"))
        try:
            model = kind(config(**options, attn_implementation="eager"))
        except ValueError:
            model = kind(config(**options))
        if given == "ids":  # causal models without a mask look for packed sequences by torch.diff, not exported
            return Last(model), (_ids(), *([torch.ones(2, 9, dtype=torch.int64)] if tail == "ForCausalLM" else []))
        if given == "pair":
            call = Calls(
                lambda m, a, b: m.inner(input_ids=a, decoder_input_ids=b, return_dict=False)[0], inner=model
            )
            return call, (_ids(), _ids(2, 5))
        if given == "sound":
            return Last(model), (torch.randn(1, 800),)
        return Last(model), (_image(1, 3, int(given), int(given)),)

    return {f"transformers {name}": lambda name=name: build(name) for name in TRANSFORMERS}


LARGE = {f"torchvision {n.rpartition('.')[2]}" for n in TORCHVISION} | {
    f"timm {n}" for n in TIMM if not n.startswith("test_")
}


def families() -> Iterator[tuple[str, Callable[[], Network]]]:
    """All of these whose package is installed."""
    for family in (torchvision, timm, transformers):
        try:
            yield from family().items()
        except ImportError as error:
            print(f"left out: {family.__name__} ({error})", flush=True)
