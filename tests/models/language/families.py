"""Families of language models beside transformers: tiny random folders, compared in float64.

`python -m tests.models.language.families [TYPE …]` makes a folder of each `model_type` with settings off their
defaults, compares logits, prompts in parts, batches and decoding with one run of transformers in float64, and the same
again after `rlx convert` where GGUF has the family. Without types it does all, and writes docs/models.md; `--classes`
writes what the configuration classes of transformers take for granted, which the package reads; `--keys` which settings
rlx reads of each. Exit status 1: a family that differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import ModelFormatError
from rlx.formats import gguf, safetensors
from rlx.formats.gguf.names import BY_MODEL_TYPE
from rlx.formats.gguf.plain import BY_MODEL_TYPE as PLAIN
from rlx.models import load
from rlx.models.language.architectures import _MODULES, ARCHITECTURES, MISSING
from rlx.models.language.architectures.base import CLASSES
from rlx.models.language.architectures.seeing import _TEXTS
from rlx.models.language.config import Fields
from rlx.models.language.written import folder_to_gguf
from tests.formats.gguf.llamacpp import Judge
from tests.models.language.test_beside_transformers import MODELS
from tests.models.tiny import formula
from tests.outside import outside

KEYS = Path(__file__).with_name("families_keys.json")
FOUND = Path(__file__).with_name("families.json")  # what the command found
FROZEN = Path(__file__).with_name("families_logits.json")  # tensors of tiny folders, and logits of transformers
PAGE = Path(__file__).parents[3] / "docs" / "models.md"
IDS_ASKED = [i * 7 % 96 for i in range(1, 34)]
GGUF = {**BY_MODEL_TYPE, **PLAIN}
CPP: list[Any] = []  # llama.cpp's libraries, where the command has their folder
# With parts in f32 whatever the dtype, whose rounding later layers amplify.
DELTA = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid", "zamba2", "gemma3n_text",
         "kimi_linear")
ONES = ("beta", ".D", "layer_scalar", "expert_scale", "router.scale")  # parts whose numbers are around 1
LIMIT = 1e-11  # the most that squared errors beside float64 may be of the sum of squares

BASE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
NO_KV = {k: v for k, v in BASE.items() if k != "num_key_value_heads"}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
N = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, **IDS}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
PART = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {**BASE, "num_key_value_heads": 4,
          "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2,
          "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7}  # fmt: skip
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
INDEX = {"index_topk": 7, "index_head_dim": 12, "index_n_heads": 9}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_expand": 2,
         "mamba_chunk_size": 16}  # fmt: skip
GRANITE = {"embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2}
LAYERED = {"num_hidden_layers": 6, "sliding_window": 7, "hidden_size_per_layer_input": 8,
           "vocab_size_per_layer_input": 96}  # fmt: skip
SHARED = {**NO_KV, "num_hidden_layers": 5, "mamba_d_state": 8, "n_mamba_heads": 8, "chunk_size": 16}
HYBRID = ["linear_attention", "full_attention", "linear_attention"]
# What each folder is made of: settings for the class, one folder each.
FAMILIES: dict[str, tuple[dict[str, Any], ...]] = {
    "mixtral": ({**BASE, **ROPE, "num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 12},),
    "qwen2_moe": ({**BASE, **MOE, **ROPE, "shared_expert_intermediate_size": 20, "norm_topk_prob": True,
                   "mlp_only_layers": [1]}, {**BASE, **MOE, "shared_expert_intermediate_size": 20}),
    "gemma": ({**BASE, **ROPE, "head_dim": 12},),
    "phi": ({**BASE, **PART, "qk_layernorm": True}, {**BASE, "hidden_act": "relu"}, BASE),
    "starcoder2": ({**BASE, **ROPE, "sliding_window": 7}, BASE,
                   {**BASE, "use_bias": False, "tie_word_embeddings": False}),
    "stablelm": ({**BASE, **PART, "use_qkv_bias": True, "qk_layernorm": True}, {**BASE, "use_parallel_residual": True}),
    "gpt_neox": ({**NO_KV, **PART}, {**NO_KV, "use_parallel_residual": False, "attention_bias": False}),
    "gptj": ({**N, "rotary_dim": 4, "n_inner": 40},),
    "gpt_neo": ({**NO_KV, "window_size": 6, "attention_types": [[["global", "local"], 1], [["local"], 1]]},),
    "gpt_bigcode": ({**N, "n_inner": 40}, {**N, "multi_query": False, "scale_attn_weights": False}),
    "falcon": ({**NO_KV, **ROPE, "hidden_size": 32, "num_hidden_layers": 2, "ffn_hidden_size": 40},
               {**NO_KV, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
               {**NO_KV, "new_decoder_architecture": True, "num_kv_heads": 2},
               {**NO_KV, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    "bloom": ({"vocab_size": 96, "hidden_size": 36, "n_layer": 2, "n_head": 6, **IDS},
              {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4, **IDS,
               "apply_residual_connection_post_layernorm": True}),
    "opt": ({**NO_KV, "ffn_dim": 40},
            {**NO_KV, "ffn_dim": 40, "do_layer_norm_before": False, "word_embed_proj_dim": 16},
            {**NO_KV, "ffn_dim": 40, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "mpt": ({"vocab_size": 96, "d_model": 36, "n_heads": 6, "n_layers": 2, "max_seq_len": 128, "expansion_ratio": 2,
             "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.3}, **IDS},
            {"vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, **IDS,
             "attn_config": {"clip_qkv": 0.7}}),
    "cohere": ({**BASE, **ROPE, "logit_scale": 0.3, "use_qk_norm": True, "attention_bias": True}, BASE),
    "cohere2": ({**BASE, **ROPE, "sliding_window": 7, "num_hidden_layers": 5},),
    "olmo": ({**BASE, **ROPE, "clip_qkv": 0.5},),
    "olmoe": ({**BASE, **ROPE, "num_experts": 6, "num_experts_per_tok": 2, "clip_qkv": 1.5, "norm_topk_prob": True},
              {**BASE, "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 2}),
    "granite": ({**BASE, **ROPE, **GRANITE, "attention_bias": True, "mlp_bias": True},),
    "granitemoe": ({**BASE, **ROPE, **GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3},),
    "granitemoeshared": ({**BASE, **GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3,
                          "shared_intermediate_size": 20},),
    "smollm3": ({**BASE, **ROPE, "num_hidden_layers": 5},
                {**BASE, "no_rope_layers": [1, 0, 1], "attention_bias": True}),
    "glm": ({**BASE, **PART, "head_dim": 12}, {**BASE, **PART, "head_dim": 8, "attention_bias": True}),
    "glm4": ({**BASE, **PART, "head_dim": 12},),
    "glm4_moe": ({**ROUTED, **PART, "head_dim": 12, "use_qk_norm": True, "attention_bias": True},),
    "exaone4": ({**BASE, **ROPE, "sliding_window": 7, "num_hidden_layers": 5},
                {**BASE, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "ernie4_5": ({**BASE, **ROPE, "use_bias": True, "head_dim": 12}, {**BASE, "head_dim": 12}),
    "ernie4_5_moe": ({**BASE, **ROPE, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24,
                      "use_bias": True},
                     {**BASE, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24}),
    "seed_oss": ({**BASE, **ROPE, "head_dim": 12, "attention_out_bias": True, "mlp_bias": True},
                 {**BASE, "head_dim": 12}),
    "arcee": ({**BASE, **ROPE, "mlp_bias": True}, BASE),
    "apertus": ({**BASE, "attention_bias": True},),
    "nemotron": ({**BASE, **PART, "mlp_bias": True, "attention_bias": True},),
    "phimoe": ({**BASE, **ROPE, "num_local_experts": 6, "attention_bias": True, "lm_head_bias": True},),
    "deepseek_v2": ({**ROUTED, **LATENT, "topk_method": "group_limited_greedy"}, {**ROUTED, **LATENT, **ROPE},
                    {**ROUTED, **LATENT, "q_lora_rank": None, "norm_topk_prob": True, "rope_parameters": {
                        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.7,
                        "original_max_position_embeddings": 32}}),
    "deepseek_v3": ({**ROUTED, **LATENT, "attention_bias": True}, {**ROUTED, **LATENT, **ROPE},
                    {**ROUTED, **LATENT, "rope_interleave": False, "q_lora_rank": None, "rope_parameters": {
                        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8,
                        "original_max_position_embeddings": 32}},
                    {**ROUTED, **LATENT, "rope_parameters": {
                        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.8,
                        "original_max_position_embeddings": 32}}),
    "deepseek_v32": ({**ROUTED, **LATENT, **INDEX, "attention_bias": True}, {**ROUTED, **LATENT, **INDEX, **ROPE,
                     "mlp_layer_types": ["sparse", "dense", "sparse"], "index_head_dim": 8},
                     {**ROUTED, **LATENT, **INDEX, "index_n_heads": 20, "norm_topk_prob": False, "rope_parameters": {
                         "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.8,
                         "original_max_position_embeddings": 32}}),
    "glm_moe_dsa": ({**ROUTED, **LATENT, **INDEX, **ROPE},
                    {**ROUTED, **LATENT, **INDEX, "num_hidden_layers": 4, "attention_bias": True,
                     "indexer_types": ["full", "shared", "full", "shared"]},
                    {**ROUTED, **LATENT, **INDEX, "num_hidden_layers": 5, "n_group": 1, "topk_group": 1,
                     "index_topk_freq": 2, "index_skip_topk_offset": 3}),
    "lfm2": ({**BASE, **ROPE, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8,
              "conv_bias": True}, {**BASE, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False}),
    "falcon_h1": ({**BASE, **ROPE, **MAMBA, "mamba_d_ssm": 64, "lm_head_multiplier": 0.6, "embedding_multiplier": 1.7,
                   "mlp_multipliers": [0.7, 1.3], "key_multiplier": 0.5, "attention_out_multiplier": 0.8,
                   "attention_in_multiplier": 1.2, "ssm_multipliers": [0.7, 1.1, 0.9, 1.3, 0.8],
                   "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.9, "head_dim": 8},
                  {**BASE, **MAMBA, "mamba_d_ssm": 64, "mamba_rms_norm": True, "mamba_norm_before_gate": True}),
    "bamba": ({**BASE, **PART, **MAMBA, "attn_layer_indices": [1]},),
    "granitemoehybrid": ({**BASE, **ROPE, **MAMBA, **GRANITE, "layer_types": HYBRID, "num_local_experts": 6,
                          "shared_intermediate_size": 40, "position_embedding_type": "rope"},
                         {**BASE, **MAMBA, **GRANITE, "layer_types": HYBRID, "num_local_experts": 0,
                          "shared_intermediate_size": 40}),
    "nemotron_h": ({**BASE, "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"], "head_dim": 12,
                    "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2,
                    "n_routed_experts": 6, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20,
                    "chunk_size": 16,
                    "time_step_min": 0.7, "routed_scaling_factor": 1.3},
                   {**BASE, "layers_block_type": ["linear_attention", "mlp", "full_attention"], "head_dim": 8,
                    "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 16},
                   {**BASE, "layers_block_type": ["linear_attention", "moe", "full_attention"], "ssm_state_size": 8,
                    "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "n_routed_experts": 6, "head_dim": 8,
                    "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20, "chunk_size": 16}),

    "minimax": ({**BASE, **ROPE, "head_dim": 12, "num_local_experts": 6, "full_attn_alpha_factor": 1.3,
                 "full_attn_beta_factor": 0.7, "linear_attn_alpha_factor": 1.2, "linear_attn_beta_factor": 0.8,
                 "mlp_alpha_factor": 1.1, "mlp_beta_factor": 0.9, "block_size": 8},),
    "falcon_mamba": ({**BASE, "state_size": 8, "mixer_rms_eps": 1e-3},),
    "internlm3": ({**BASE, **ROPE, "head_dim": 12, "attention_bias": True, "mlp_bias": True},),
    "iquestcoder": ({**BASE, **ROPE, "head_dim": 12, "attention_bias": True},),
    "exaone": ({**BASE, **ROPE},),
    "hyperclovax": ({**BASE, **ROPE, **GRANITE, "head_dim": 12}, {**BASE, "use_post_norm": False}),
    "granite_swa": ({**BASE, **GRANITE, "sliding_window": 7, "num_hidden_layers": 5,
                     "layer_rope_theta": [500.0, 0.0, 300.0, 500.0, 500.0]}, {**BASE, **ROPE, "sliding_window": 7}),
    "granitemoe_swa": ({**BASE, **GRANITE, **ROPE, "sliding_window": 7, "num_local_experts": 6,
                        "shared_intermediate_size": 20},),
    "cohere2_moe": ({**BASE, "rope_theta": 500.0, "head_dim": 12, "sliding_window": 7, "num_experts": 6,
                     "num_shared_experts": 2, "expert_selection_fn": "sigmoid", "num_hidden_layers": 5,
                     "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 40},
                    {**BASE, "head_dim": 8, "sliding_window": 7, "num_experts": 6, "rms_norm_eps": 1e-5,
                     "num_shared_experts": 1, "shared_expert_combination_strategy": "sum"}),
    "olmo_hybrid": ({**BASE, **ROPE, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                     "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
                     "linear_value_head_dim": 8},
                    {**BASE, "num_hidden_layers": 4, "linear_allow_neg_eigval": False}),
    "olmo3": ({**BASE, "num_hidden_layers": 5, "sliding_window": 7, "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.1386294}},
              {**BASE, "sliding_window": 7, "attention_bias": True, "rope_parameters": {
                  "full_attention": {"rope_type": "default", "rope_theta": 700.0},
                  "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}}}),
    "mamba2": ({"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 8,
                "state_size": 8, "n_groups": 2, "chunk_size": 16, **IDS},),
    "cwm": ({**BASE, **ROPE, "head_dim": 12, "sliding_window": 7},),
    "jais2": ({**BASE, **ROPE, "head_dim": 12}, {**BASE, "attention_bias": False, "mlp_bias": False}),
    "bitnet": ({**BASE, **ROPE}, {**BASE, "hidden_act": "silu", "tie_word_embeddings": True}),
    "solar_open": ({**ROUTED, **ROPE, "head_dim": 12},),
    "exaone_moe": ({**BASE, **ROPE, **MOE, "sliding_window": 7, "num_hidden_layers": 5},
                   {**BASE, **MOE, "layer_types": ["full_attention"] * 3, "num_shared_experts": 2}),
    "glm4_moe_lite": ({**ROUTED, **LATENT, **ROPE}, {**ROUTED, **LATENT, "mlp_layer_types": ["sparse"] * 3}),
    "youtu": ({**BASE, **LATENT, **ROPE, "num_key_value_heads": 4, "pad_token_id": None},),
    "minicpm3": ({**BASE, **LATENT, **ROPE, "num_key_value_heads": 4, "dim_model_base": 20},),
    "mellum": ({**BASE, **MOE, "head_dim": 12, "sliding_window": 7, "mlp_layer_types": ["dense", "sparse", "sparse"],
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": {
                    "full_attention": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                                       "original_max_position_embeddings": 32},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}},),
    "afmoe": ({**BASE, **ROPE, **MOE, "head_dim": 12, "sliding_window": 7, "num_dense_layers": 1, "route_scale": 1.4,
               "global_attn_every_n_layers": 2, "mup_enabled": True},
              {**BASE, **MOE, "num_hidden_layers": 5, "sliding_window": 7, "mup_enabled": True, "route_scale": 1.4}),
    "dbrx": ({"vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 128, **IDS, **ROPE,
              "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 500.0},
              "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 2}},),
    "jamba": ({**BASE, "num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 8,
               "num_experts_per_tok": 2, "use_mamba_kernels": False},),
    "codegen": ({**N, "rotary_dim": 4, "n_ctx": 128},),
    "helium": ({**BASE, **ROPE, "head_dim": 8, "mlp_bias": True},),
    "hunyuan_v1_dense": ({**BASE, **ROPE, "head_dim": 12, "attention_bias": True}, {**BASE, "head_dim": 12}),
    "hunyuan_v1_moe": ({**BASE, **ROPE, "head_dim": 12, "num_experts": 6, "moe_topk": 2},),
    "dots1": ({**ROUTED, **ROPE, "sliding_window": 7, "max_window_layers": 1, "norm_topk_prob": True},
              {**ROUTED, "sliding_window": None, "n_group": 1, "topk_group": 1}),
    "flex_olmo": ({**BASE, **ROPE, "num_experts": 6, "num_experts_per_tok": 2},),
    "persimmon": ({**NO_KV, **PART},),
    "biogpt": (NO_KV,),
    "openai-gpt": (N,),
    "ministral": ({**BASE, **ROPE, "head_dim": 12, "sliding_window": 7,
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},),
    "ministral3": ({**BASE, "head_dim": 12, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0,
        "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.3}},),
    "lfm2_moe": ({**BASE, **ROPE, **MOE, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1,
                  "routed_scaling_factor": 1.4},
                 {**BASE, **MOE, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}),
    "minimax_m2": ({**BASE, **PART, "head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 2},),
    "vaultgemma": ({**BASE, "head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 9},),
    "nanochat": ({**BASE, **ROPE},),
    "sarvam_moe": ({**ROUTED, **ROPE, "head_dim": 12, "use_qk_norm": True, "attention_bias": True},
                   {**ROUTED, "num_key_value_heads": 2, "head_dim": 8, "use_qk_norm": False, "norm_topk_prob": False}),
    "sarvam_mla": ({**ROUTED, **LATENT, **ROPE}, {**ROUTED, **LATENT, "q_lora_rank": None, "n_group": 1,
                                                  "topk_group": 1, "rope_interleave": False}),
    "hy_v3": ({**BASE, **ROPE, **MOE, "head_dim": 12, "num_shared_experts": 2, "attention_bias": True,
               "router_scaling_factor": 1.7},
              {**BASE, **MOE, "head_dim": 8, "mlp_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    "axk1": ({**ROUTED, **LATENT, **ROPE}, {**ROUTED, **LATENT, "attention_bias": True, "rope_interleave": False,
                                            "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    "llama4_text": ({**BASE, **ROPE, "head_dim": 12, "num_hidden_layers": 4, "num_local_experts": 6,
                     "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 40,
                     "floor_scale": 8, "attn_scale": 0.4},
                    {**BASE, "head_dim": 8, "num_local_experts": 4, "use_qk_norm": False, "attention_bias": True,
                     "no_rope_layers": [1, 0, 0], "moe_layers": [1], "intermediate_size_mlp": 40,
                     "attention_chunk_size": 100, "attn_temperature_tuning": False}),
    "gemma4_text": ({**BASE, **LAYERED, "layer_types": ["sliding_attention", "full_attention"] * 3, "head_dim": 8,
                     "global_head_dim": 12, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
                     "final_logit_softcapping": 3.0, "attention_bias": True, "rope_parameters": {
                         "full_attention": {"rope_type": "proportional", "rope_theta": 500.0,
                                            "partial_rotary_factor": 0.5},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}},
                    {**BASE, "num_hidden_layers": 6, "sliding_window": 7, "head_dim": 8, "global_head_dim": 16,
                     "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                     "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24,
                     "use_bidirectional_attention": "vision", "tie_word_embeddings": False},
                    {**BASE, **LAYERED, "head_dim": 12, "global_head_dim": 12, "vocab_size_per_layer_input": 100},
                    {**BASE, **LAYERED, "layer_types": ["sliding_attention", "full_attention"] * 3, "head_dim": 8,
                     "global_head_dim": 12, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                     "final_logit_softcapping": 3.0, "vocab_size_per_layer_input": 100, "rope_parameters": {
                         "full_attention": {"rope_type": "proportional", "rope_theta": 500.0, "factor": 2.0,
                                            "partial_rotary_factor": 0.5},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}}),
    "gemma3n_text": ({**BASE, **LAYERED, "layer_types": ["sliding_attention", "full_attention"] * 3, "head_dim": 12,
                      "num_kv_shared_layers": 3, "altup_num_inputs": 3, "altup_active_idx": 1, "laurel_rank": 5,
                      "intermediate_size": [48, 40, 48, 40, 56, 48], "final_logit_softcapping": 3.0,
                      "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.7, 0.0], "attention_bias": True,
                      "vocab_size_per_layer_input": 90, "rope_parameters": {
                          "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}},
                     {**BASE, **LAYERED, "num_hidden_layers": 11, "head_dim": 8, "num_kv_shared_layers": 0,
                      "intermediate_size": 256, "altup_correct_scale": False, "tie_word_embeddings": False},
                     {**BASE, **LAYERED, "num_hidden_layers": 4, "head_dim": 12, "num_kv_shared_layers": 2},
                     {**BASE, **LAYERED, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 90,
                      "intermediate_size": 512, "head_dim": 12, "num_kv_shared_layers": 0,
                      "activation_sparsity_pattern": [0.95] * 6,
                      "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0},
                                          "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}}),
    "ctrl": ({**N, "dff": 40},),
    "kimi_linear": ({**ROUTED, **LATENT, "n_group": 2, "topk_group": 1, "num_local_experts": 8, "linear_head_dim": 8,
                     "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "attention_bias": True,
                     "layer_types": HYBRID, "rms_norm_eps": 1e-3},
                    {**{k: v for k, v in ROUTED.items() if k != "first_k_dense_replace"}, **LATENT,
                     "num_local_experts": 8, "num_hidden_layers": 5, "q_lora_rank": None, "norm_topk_prob": False,
                     "linear_head_dim": 12, "linear_num_heads": 2},
                    {**ROUTED, **LATENT, "n_group": 1, "topk_group": 1, "num_local_experts": 8, "linear_head_dim": 8,
                     "linear_num_heads": 4, "layer_types": HYBRID, "rms_norm_eps": 1e-6, "q_lora_rank": None}),
    "zamba2": ({**SHARED, "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
                "num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True, **ROPE,
                "add_bias_linear": True, "adapter_rank": 5, "mamba_ngroups": 2, "time_step_min": 0.7},
               {**SHARED, "layers_block_type": ["hybrid", "linear_attention"] * 2 + ["hybrid"], "adapter_rank": 6,
                "use_shared_attention_adapter": True, "num_mem_blocks": 2, "use_long_context": True}),
    "aria_text": ({**BASE, **ROPE, "head_dim": 12, "moe_num_experts": 6, "moe_topk": 3, "moe_num_shared_experts": 1},
                  {**BASE, "moe_num_experts": 6, "attention_bias": True}),
}  # fmt: skip

_OLDER = {"llama3": "llama", "gemma3": "gemma3_text", "phi3_short": "phi3", "phi3_long": "phi3",
          "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}  # fmt: skip
EVERY: dict[str, tuple[dict[str, Any], ...]] = {}
for _name, (_, _settings) in MODELS.items():
    _kind = _OLDER.get(_name, _name)
    EVERY[_kind] = (*EVERY.get(_kind, ()), _settings)
# The same with what GGUF has a place for: no windows, no biases of MLPs, and experts in every layer.
for _kind, _settings in {
    "llama": {**BASE, **ROPE}, "mistral": {**BASE, "sliding_window": None, **ROPE},
    "qwen2": {**BASE, **ROPE}, "qwen3_moe": {**BASE, **MOE, **ROPE, "head_dim": 12, "norm_topk_prob": True},
}.items():
    EVERY[_kind] = (*EVERY[_kind], _settings)
EVERY |= FAMILIES
SEEING = tuple(_MODULES["seeing"].split())  # models that see beside reading (tests/models/language/seeing.py)
TEXTS = sorted({text for texts in _TEXTS.values() for text in texts.split()})  # what such models have within


def random_model(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """A folder of the type with random weights, larger than a new model has, so that tokens differ in their logits."""
    torch, transformers = outside("torch"), outside("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **settings)
    model = class_for(kind).from_config(config).float()
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if "correction" in name or name.endswith("expert_bias"):
                values.copy_(torch.randn_like(values) * 0.1)
            elif name.endswith(("A_log", "inv_freq")) or "act_fn" in name or not values.is_floating_point():
                continue
            elif values.ndim == 1:
                values.add_(torch.randn_like(values) * 0.2)
            elif name in dict(model.named_parameters()):
                values.mul_(2.0 if kind.startswith("mamba") else 4.0)  # whose recurrences amplify rounding
    model.save_pretrained(folder)
    if kind == "dbrx":  # the class asks for a setting that it does not save
        written = json.loads((folder / "config.json").read_text())
        written["attn_config"]["rope_theta"] = settings["attn_config"]["rope_theta"]
        (folder / "config.json").write_text(json.dumps(written))


def class_for(kind: str) -> Any:
    """transformers' automatic class of a type."""
    transformers = outside("transformers")
    return transformers.AutoModelForImageTextToText if kind in SEEING else transformers.AutoModelForCausalLM


def judge(folder: Path, kind: str, **more: Any) -> Any:
    """The model of a folder, in float64."""
    return pretrained(folder, kind, **more)[0]


def pretrained(folder: Path, kind: str, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The model of a folder, in float64, and which weights it lacks. Attention is written out, but in Falcon, where
    that adds ALiBi twice."""
    model = class_for(kind)
    torch = outside("torch")
    more |= {"dtype": torch.float64, "attn_implementation": "sdpa" if kind == "falcon" else "eager"}
    more |= {"output_loading_info": True}
    try:
        made, told = model.from_pretrained(folder, experts_implementation="eager", **more)
    except (TypeError, ValueError):
        made, told = model.from_pretrained(folder, **more)
    if kind == "llama4":  # whose class for images and texts fails for texts alone
        made = made.language_model
    return made.eval(), told


@contextlib.contextmanager
def wholly_float64() -> Iterator[None]:
    """Casts of float64 to f32, as classes have them in norms and recurrences, do nothing meanwhile: where a recurrence
    amplifies rounding, they make a reference no better than what it judges."""
    torch = outside("torch")
    single, to = torch.Tensor.float, torch.Tensor.to

    def kept(x: Any, *args: Any, **more: Any) -> Any:
        narrows = x.dtype == torch.float64 and torch.float32 in (*args, more.get("dtype"))
        return x if narrows else to(x, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else single(x))
        patch.setattr(torch.Tensor, "to", kept)
        yield


def class_facts() -> dict[str, Any]:
    """What the configuration class of each family takes for granted: other names of settings, and defaults."""
    transformers = outside("transformers")
    shared = {f.name for f in dataclasses.fields(transformers.PreTrainedConfig)} - {"tie_word_embeddings"}
    result: dict[str, Any] = {}
    for kind in sorted({*FAMILIES, *SEEING, *TEXTS}):
        cls = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            usual = cls()
        plain = {}
        for field in dataclasses.fields(cls):
            if field.name not in shared and field.name != "rope_parameters":
                plain[field.name] = json.loads(json.dumps(field.default, default=str))
        result[kind] = {"class": cls.__name__.removesuffix("Config"), "names": dict(cls.attribute_map), "usual": plain}
        if (rope := getattr(usual, "rope_parameters", None)) is not None:
            result[kind]["rope"] = rope
    return {"transformers": transformers.__version__, "families": result}


class Seen(dict[str, Any]):
    """Settings that remember which of them were asked for."""

    def __init__(self, content: Any, asked: set[str]) -> None:
        super().__init__(content)
        self.asked = asked

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def read_keys(kind: str) -> set[str]:
    """The settings that rlx reads of a family, in any of its folders."""
    asked: set[str] = set()

    class Asking(Fields):
        def __init__(self, content: Any, where: str) -> None:
            super().__init__(Seen(content, asked), where)

    names = class_names(kind)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in [m for name, m in sys.modules.items() if name.startswith("rlx.models.language.")]:
            if getattr(module, "Fields", None) is Fields:
                patch.setattr(module, "Fields", Asking)
        for settings in FAMILIES[kind]:
            ARCHITECTURES[kind].read(Asking({"model_type": kind, **settings}, "config.json"))
    return asked | {other for one, other in names if one in asked}


def class_names(kind: str) -> set[tuple[str, str]]:
    """Settings of a family that stand for each other."""
    found = json.loads(CLASSES.read_text())["families"][kind]["names"].items()
    return {pair for one, other in found for pair in ((one, other), (other, one))}


def other_values(value: Any) -> list[Any]:
    """Values that a setting could have in place of one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(0, value - 1), value * 2]
    if isinstance(value, float):
        return [value * 2 + 0.125]
    return [True, 1, 0.5] if value is None else []


def idle_keys(kind: str, read: set[str]) -> tuple[list[str], list[str]]:
    """Of the settings in the class's signature that rlx does not read, those that change no logits in transformers, and
    those that do."""
    torch, transformers = outside("torch"), outside("transformers")
    facts = json.loads(CLASSES.read_text())["families"][kind]
    still: set[str] = set(facts["usual"]) - read - {"vocab_size", "use_cache"}
    moved: set[str] = set()
    tokens = torch.arange(3, 40)[None] * 7 % 96
    for settings in FAMILIES[kind]:
        with tempfile.TemporaryDirectory() as base, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            folder = Path(base)
            random_model(folder, kind, settings)
            plain = judge(folder, kind)(tokens).logits
            for name in sorted(still):
                for value in other_values(settings.get(name, facts["usual"][name])):
                    try:
                        config = transformers.AutoConfig.for_model(kind, **{**settings, name: value})
                        config.name_or_path = ""
                        model = judge(folder, kind, config=config)
                        same = error(model(tokens).logits.numpy(), plain.numpy()) <= LIMIT  # not but by rounding
                    except Exception:  # noqa: BLE001 - classes refuse values by many types of exceptions
                        continue
                    if not same:
                        moved.add(name)
    return sorted(still - moved), sorted(moved)


def error(got: Any, want: Any) -> float:
    return float(((got - want) ** 2).sum() / (want**2).sum())


def judged(folder: Path, want: Any, tokens: Any, device: str = "cpu") -> dict[str, Any]:
    """How a model of a folder or of a file computes the logits of tokens: errors, and which greatest ones differ."""
    found: dict[str, Any] = {}
    ids = tokens.astype(np.int32)
    with load(folder, device, context=64, engine="numpy" if device == "cpu" else None) as model:
        got = model.logits(ids)
        found["error"], found["argmax"] = error(got, want), int((got.argmax(1) != want.argmax(1)).sum())
        model.decoder.reset()
        steps = np.concatenate([model.decoder.logits(ids[i : i + 1]) for i in range(12)])
        model.decoder.reset()
        cuts = [ids[:5], ids[5:6], ids[6:23], ids[23:]]
        parts = np.concatenate([model.decoder.logits(part) for part in cuts])
        found["steps"], found["parts"] = error(steps, want[:12]), error(parts, want)
        prompts = [ids[:9].tolist(), ids[:20].tolist(), ids[3:14].tolist()]
        alone = [list(model.tokens(prompt, 6)) for prompt in prompts]
        for name, pages in (("batch", None), *([] if model.config.recurrent else [("pages", 16)])):
            rows: dict[int, list[int]] = {}
            with model.batch(3, pages=pages) as batch:
                place = [batch.begin(prompt, 6) for prompt in prompts]
                while batch.free < 3:
                    batch.fill(16)
                    for sequence, token, *_ in batch.step(2):
                        rows.setdefault(sequence, []).append(token)
            found[name] = int([rows[p] for p in place] != alone)
    return found


def llama_cpp_logits(judge: Any, path: Path, ids: Any) -> Any:
    """The logits of a run of llama.cpp over tokens, with caches of f32 and attention written out, in float64."""
    import ctypes as c

    lib = judge.lib
    params = lib.llama_context_default_params()
    params.raw[0] = 256
    at = next(i for i in range(4, 10) if params.raw[i] == params.raw[i + 1] == 4)
    params.raw[at] = params.raw[at + 1] = 1  # threads
    at = next(i for i in range(20, 40) if params.raw[i] == params.raw[i + 1] == 1)
    params.raw[at] = params.raw[at + 1] = 0  # keys and values in f32
    params.raw[next(i for i in range(9, 16) if list(params.raw[i - 3 : i + 1]) == [-1] * 4)] = 0  # no flash attention
    lib.llama_get_logits_ith.restype = c.POINTER(c.c_float)
    lib.llama_get_logits_ith.argtypes = [c.c_void_p, c.c_int32]
    model = judge.model(path)
    if not model:
        return None
    context, rows = lib.llama_init_from_model(model, params), []
    for token in ids.tolist():
        one = (c.c_int32 * 1)(token)
        assert not lib.llama_decode(context, lib.llama_batch_get_one(one, 1))
        rows.append(list(lib.llama_get_logits_ith(context, -1)[:96]))
    return np.asarray(rows, np.float64)


def as_gguf(folder: Path, kind: str, want: Any, ids: Any) -> dict[str, Any]:
    """The folder as a GGUF file, beside the folder's logits: rlx's error, and llama.cpp's."""
    path, bare = folder.with_suffix(".gguf"), folder.with_suffix(".bare.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        notes = folder_to_gguf(folder, path)
    if left_out := [note for note in notes if "window" in note]:
        return {"unwritten": left_out[0]}
    with load(path, "cpu", context=64, engine="numpy") as model:
        found = {"gguf": error(model.logits(ids), want)}
    if CPP:
        with gguf.read(path) as file:
            held = {name: tensor.read() for name, tensor in file.tensors.items()}
            gguf.write(bare, {**file.metadata, "tokenizer.ggml.model": "no_vocab"}, held)
        got = llama_cpp_logits(CPP[0], bare, ids)
        found["llama.cpp"] = None if got is None else error(got, want)
    return found


def run(kind: str) -> Iterator[dict[str, Any]]:
    torch = outside("torch")
    for settings in EVERY[kind]:
        with tempfile.TemporaryDirectory() as base:
            folder = Path(base) / kind
            try:
                random_model(folder, kind, settings)
                tokens = torch.randint(3, 96, (45,))
                with torch.no_grad(), wholly_float64() if kind in DELTA else contextlib.nullcontext():
                    want = judge(folder, kind)(tokens[None]).logits[0].numpy()
                found = judged(folder, want, tokens.numpy())
                if found["error"] > LIMIT:  # as recurrences have it that amplify rounding
                    with torch.no_grad():
                        own = judge(folder, kind).float()(tokens[None]).logits[0].numpy()
                    found["torch"] = error(own, want)
                if kind in GGUF:
                    try:
                        found |= as_gguf(folder, kind, want, tokens.numpy().astype(np.int32))
                    except ModelFormatError as caught:
                        found["unwritten"] = str(caught).partition(": ")[2][:200]
                yield found
            except Exception as caught:
                if "--raise" in sys.argv:
                    raise
                yield {"failed": f"{type(caught).__name__}: {caught}"[:300]}


def write_keys() -> int:
    held = json.loads(KEYS.read_text()) if KEYS.exists() else {"families": {}}
    wrong = 0
    for kind in [a for a in sys.argv[1:] if not a.startswith("--")] or FAMILIES:
        read = read_keys(kind)
        known = set(json.loads(CLASSES.read_text())["families"][kind]["usual"])
        idle, moved = idle_keys(kind, read)
        held["families"][kind] = {"read": sorted(read & known), "idle": idle}
        wrong += len(moved)
        print(f"{kind:18} reads {len(read & known)}, idle {len(idle)}: {' '.join(idle)}; MOVES {moved}", flush=True)
    held["transformers"] = outside("transformers").__version__
    KEYS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return bool(wrong)


def formula_model(folder: Path, kind: str, settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """A folder whose weights a formula gives, with a config.json of these settings alone (`written`); its tensors'
    shapes."""
    random_model(folder, kind, settings)
    shapes = {name: tuple(array.shape) for name, array in safetensors.load(folder).items()}
    write_formula(folder, kind, written(folder, kind, settings), shapes)
    return shapes


def written(folder: Path, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that a config.json needs: those given, or where rlx knows no defaults of the class all that it
    wrote."""
    if kind in FAMILIES:
        return settings
    held: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return {k: v for k, v in held.items() if k not in ("architectures", "dtype", "transformers_version")}


def write_formula(folder: Path, kind: str, settings: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith(("slope_rate", "_decay")):  # which the class computes of its settings
            continue
        norm = re.search(r"(norm|ln_|layernorm)[^.]*\.weight$", name) or ".norms." in name
        gain = 0.7 if kind == "zamba2" else 2.0  # whose layers amplify rounding
        scale = 0.3 if len(shape) < 2 or norm else gain * shape[-1] ** -0.5
        tensors[name] = formula(name, shape, scale, 1.0 if norm or name.endswith(ONES) else 0.0)
    safetensors.save(folder / "model.safetensors", tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **settings}))


def packed_names(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Names whose numbers alone differ as one, with the shape behind: the numbers, or how many there are of each."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in shapes:
        numbers = tuple(map(int, re.findall(r"(?<=\.)\d+(?=\.)", name)))
        stem = re.sub(r"(?<=\.)\d+(?=\.)", "#", name) + " " + " ".join(map(str, shapes[name]))
        groups.setdefault(stem, []).append(numbers)
    result: dict[str, Any] = {}
    for stem, found in groups.items():
        counts = [len({n[i] for n in found}) for i in range(len(found[0]))]
        every = list(itertools.product(*map(range, counts)))
        result[stem] = counts if sorted(found) == every else sorted(found)
    return result


def unpacked_names(groups: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    result = {}
    for stem, numbers in groups.items():
        name, *shape = stem.split()
        plain = not numbers or isinstance(numbers[0], int)
        for each in itertools.product(*map(range, numbers)) if plain else numbers:
            parts = iter(each)
            result[re.sub("#", lambda _, parts=parts: str(next(parts)), name)] = tuple(map(int, shape))  # type: ignore[misc]
    return result


def nearby_error(folder: Path, kind: str, ids: Any, seed: int) -> float:
    """torch's error in f32 with weights that are the folder's but for a thousandth: where layers amplify rounding, that
    of one set of weights is chance."""
    torch = outside("torch")
    torch.manual_seed(seed)
    model = judge(folder, kind)
    for values in model.parameters():
        values.mul_(1 + 1e-3 * torch.rand_like(values)).copy_(values.to(torch.float32).to(torch.float64))
    with wholly_float64() if kind in DELTA else contextlib.nullcontext():
        want = model(ids).logits[0, -1, :16].numpy()
    return error(model.float()(ids).logits[0, -1, :16].numpy(), want)


def freeze() -> int:
    """Writes what transformers makes of folders whose weights a formula gives, and torch's own error in f32 where that
    is large."""
    torch, asked = outside("torch"), [a for a in sys.argv[1:] if not a.startswith("--")] or list(EVERY)
    made = json.loads(FROZEN.read_text())["cases"] if FROZEN.exists() else {}
    made = {case: row for case, row in made.items() if case.rpartition("-")[0] in {*EVERY} - {*asked}}
    ids = torch.tensor(IDS_ASKED)[None]
    for kind in asked:
        for i, settings in enumerate(EVERY[kind]):
            with tempfile.TemporaryDirectory() as base, torch.no_grad():
                shapes = formula_model(Path(base), kind, settings)
                with wholly_float64() if kind in DELTA else contextlib.nullcontext():
                    logits = judge(Path(base), kind)(ids).logits[0].numpy()
                single = error(judge(Path(base), kind).float()(ids).logits[0, -1, :16].numpy(), logits[-1, :16])
                if kind in DELTA or 4 * single > LIMIT:
                    single = max(single, *(nearby_error(Path(base), kind, ids, seed) for seed in range(8)))
                own = {} if kind in FAMILIES else {"config": written(Path(base), kind, settings)}
            made[f"{kind}-{i}"] = {
                **own, "tensors": packed_names(shapes), "logits": [float(f"{v:.10g}") for v in logits[-1, :16]],
                "likeliest": logits.argmax(1).tolist(),
            }  # fmt: skip
            if 4 * single > LIMIT:  # as recurrences have it that amplify rounding
                made[f"{kind}-{i}"]["torch"] = float(f"{single:.2g}")
            print(kind, i, flush=True)
    version = outside("transformers").__version__
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(made.items()))
    FROZEN.write_text(f'{{"transformers": "{version}", "cases": {{\n{rows}\n}}}}\n', encoding="utf-8")
    return 0


def main() -> int:
    if "--freeze" in sys.argv:
        return freeze()
    if "--classes" in sys.argv:
        CLASSES.write_text(json.dumps(class_facts(), indent=1) + "\n", encoding="utf-8")
        return 0
    if "--keys" in sys.argv:
        return write_keys()
    if folder := next((a for a in sys.argv[1:] if a.startswith("--llamacpp=")), None):
        CPP.append(Judge(Path(folder.partition("=")[2]).resolve()))
    held = json.loads(FOUND.read_text()) if FOUND.exists() else {"families": {}}
    wrong = 0
    for kind in [a for a in sys.argv[1:] if not a.startswith("--")] or EVERY:
        held["families"][kind] = []
        for i, found in enumerate(run(kind)):
            good = right(found)
            wrong += not good
            told = " ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
            print(f"{kind:18} {i} {'ok ' if good else 'BAD'} {told}", flush=True)
            rounded = {k: float(f"{v:.1e}") if isinstance(v, float) else v for k, v in found.items()}
            held["families"][kind].append(rounded)
    held |= {"transformers": outside("transformers").__version__, "date": datetime.date.today().isoformat()}
    FOUND.write_text(json.dumps(held, sort_keys=True).replace('], "', '],\n "') + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return bool(wrong)


def right(found: dict[str, Any]) -> bool:
    """Whether all that was computed of a folder is as it should be: where it is not within the limit, within four times
    the error of torch in f32."""
    errors = [found.get(k, 0.0) for k in ("error", "steps", "parts", "gguf")]
    limit = max(LIMIT, 4 * found.get("torch", 0.0))
    return "failed" not in found and max(errors) <= limit and not any(
        found.get(k) for k in ("argmax", "batch", "pages")
    )


def page() -> str:
    """The table of families, from what the command found."""
    held = json.loads(FOUND.read_text())
    rows = []
    for kind, cases in sorted(held["families"].items()):
        largest = max(case["error"] for case in cases)
        ours = GGUF.get(kind)
        beside = [case["llama.cpp"] for case in cases if case.get("llama.cpp") is not None]
        writes = any("gguf" in case for case in cases)
        kinds = "-" if ours is None else f"`{ours.architecture}`, read{' and written' if writes else ''}"
        how = "batches, pages" if all("pages" in case for case in cases) else "batches"
        rows.append(
            f"| `{kind}` | {len(cases)} | {largest:.0e} | {how} | {kinds} | "
            f"{f'{min(beside):.0e}' if beside else '-'} |"
        )
    missing = ", ".join(f"`{kind}` ({near}: {what})" for kind, (near, what) in sorted(MISSING.items()))
    text = _PAGE.format(rows="\n".join(rows), transformers=held["transformers"], date=held["date"], missing="MISSING")
    text = text.replace("MISSING", textwrap.fill(missing, 120, initial_indent="x" * 76)[76:])
    from tests.models.encoders.families import part_of_page  # which takes functions from here
    from tests.models.language import seeing, uses

    return text + seeing.part_of_page() + uses.part_of_page() + part_of_page()


_PAGE = """# Families of language models

A command makes this table: `python -m tests.models.language.families`. Of each `model_type` it makes tiny random
folders with settings off their defaults, by transformers {transformers}, and compares with its logits in float64 what
rlx computes in f32 on the CPU: one run over the text, a run a token, a prompt in parts, sequences of a batch, and the
same of the GGUF file that `rlx convert` makes of it. Made on {date}; each case has NMSE of at most 1e-11, or
of four times torch's own in f32, and the same likeliest token everywhere. The last column is the NMSE of the logits of
llama.cpp v0.5.0 of that file, with caches of f32 and without flash attention, whose sums there are halves. Other
devices run the same graphs, of the same ops: `python -m tests.models.language.on_devices cuda vulkan` compares all
families there, encoders too, with stored logits, and needs no transformers.

Settings that the class of a family reads and that change numbers are followed or refused by name, which a list of each
family's settings says (`tests/models/language/families_keys.json`). A tensor that the family does not have is refused
by name; layers behind the last, which guess further tokens (DeepSeek-V3, GLM-4.5), are left aside with a warning.
`qwen3_5` and `qwen3_5_moe` are read as the text part of a folder that sees too.

Classes of transformers {transformers} that do not do what a setting says, which rlx does as they do: MPT takes 8 for
`alibi_bias_max` (another number is refused, since other programs follow it), four times the width for
`expansion_ratio`, and no biases; BioGPT takes 1e-5 for `layer_norm_eps`; DeepSeek-V2 passes over `norm_topk_prob`;
OLMo 3 takes `rope_theta` and `rope_scaling` of a whole file for the layers without windows alone, and 500,000 for the
others (`rope_parameters` for all layers are refused, since releases differ in what they mean). In Falcon with ALiBi
attention written out (`eager`) adds it twice, `sdpa`, the default, once: so does rlx. Where rlx does not follow them:
DBRX's class passes over `rope_theta` of `attn_config`, which the published models have and rlx takes; Youtu's makes the
embedding of `pad_token_id` 0 as it loads, Falcon-Mamba's makes weights anew where `rescale_prenorm_residual`, and rlx
keeps what the file has, with a warning. Llama 4's layers with ropes attend within chunks of `attention_chunk_size`
tokens (8,192): rlx takes texts of one chunk, and refuses longer ones. Gemma 3n's class clips coefficients of AltUp at
`altup_coef_clip` while it trains, rlx does not; it takes row 0 of the table for inputs of layers where a token is not
in it, Gemma 4's fails, and rlx refuses such a table. Zamba2's does not share blocks where `tie_word_embeddings` is
false, which rlx refuses; with Nemotron-H's it passes over `time_step_min` in steps of one token, which rlx computes as
in whole texts. llama.cpp leaves the windows of Phi-3 out, computes Phi-3.5-MoE otherwise, and in Gemma 3n divides the
squares of n gates by n - 1 for their deviation, which shows where tiny folders have few. In Kimi Linear it takes
`rms_norm_eps` for the norms of latents and of keys too, where the class takes 1e-6; and as many heads of delta
attention as of the other. The indexers of DeepSeek-V3.2 and GLM-5 compute scores in f32, as the classes do, where the
published code has them in FP8; of equal scores the earlier token is taken, which torch leaves open.

| `model_type` | folders | NMSE | served in | GGUF | llama.cpp |
|---|---|---|---|---|---|
{rows}

Not there, with the nearest family that is and what it lacks: {missing}.

Any other `model_type` is refused too, with the name that is most alike.
"""


if __name__ == "__main__":
    sys.exit(main())
