"""Small sizes by their names in a config, and what the rules of shrinking do not know, family by family.

An entry of ``EDITS`` replaces or adds an argument of the config; under the name of a config within, it edits
that one; under ``with`` it is given before the defaults are read, so that the rules apply to what follows.
"""

from __future__ import annotations

from typing import Any

_SIZES: tuple[tuple[Any, str], ...] = (
    (64, "vocab_size decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input mamba_d_ssm"),
    (0, "pad_token_id"),
    (
        1,
        "bos_token_id decoder_start_token_id cls_token_id n_shared_experts num_shared_experts "
        "moe_num_shared_experts n_group num_expert_group topk_group first_k_dense_replace "
        "num_dense_layers mamba_n_groups mamba_ngroups num_mem_blocks",
    ),
    (
        2,
        "eos_token_id sep_token_id num_key_value_heads swa_num_key_value_heads num_kv_heads o_groups "
        "num_experts_per_tok num_experts_per_token moe_topk moe_k zero_expert_num n_groups "
        "linear_num_key_heads num_codebooks type_vocab_size",
    ),
    (None, "forced_eos_token_id"),
    (True, "is_decoder"),
    (
        32,
        "hidden_size d_model n_embd emb_dim embedding_dim embedding_size input_embedding_size "
        "output_embedding_size word_embed_proj_dim lru_width attention_hidden_size adapter_in_dim "
        "adapter_input_size adapter_out_dim",
    ),
    (
        48,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size dff dim_ff d_inner "
        "feed_forward_size expert_ffn_hidden_size intermediate_size_mlp dense_intermediate_size",
    ),
    (
        16,
        "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size "
        "shared_intermediate_size shared_experts_intermediate_size index_n_heads router_hidden_size "
        "max_source_positions rel_extent image_size",
    ),
    (
        4,
        "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
        "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
        "swa_num_attention_heads rotary_dim qk_rope_head_dim qk_nope_head_dim index_topk num_experts "
        "num_local_experts n_routed_experts moe_num_experts mamba_dt_rank time_step_rank "
        "linear_num_value_heads linear_num_heads adapter_rank laurel_rank",
    ),
    (
        8,
        "head_dim swa_head_dim dim_head kv_channels d_head attention_head_dim attention_head_size "
        "query_pre_attn_scalar qk_head_dim v_head_dim q_lora_rank kv_lora_rank o_lora_rank "
        "index_head_dim state_size mamba_d_state ssm_state_size mamba_n_heads mamba_d_head "
        "mamba_num_heads mamba_head_dim mamba_headdim n_mamba_heads chunk_size mamba_chunk_size "
        "block_size linear_key_head_dim linear_value_head_dim linear_head_dim sliding_window "
        "sliding_window_size window_size attention_window_size local_attention attention_chunk_size "
        "local_attention_window_len d_rel patch_size hidden_size_per_layer_input",
    ),
    (0.0, "router_jitter_noise input_jitter_noise"),
    (
        256,
        "max_position_embeddings n_positions max_seq_len context_length max_target_positions "
        "model_max_length original_max_position_embeddings n_ctx",
    ),
)
SMALL: dict[str, Any] = {name: value for value, names in _SIZES for name in names.split()}
"""A small value for each size, by its name in a config: windows of 8, lengths of 256, and so on.

``is_decoder`` is among them: what of the causal mapping can also be an encoder is built as a decoder.
"""

_TWO_KINDS = ["linear_attention", "full_attention"]
_CONV = ["conv", "full_attention"]
_QSA = {
    "hc_lowrank": 8, "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}  # fmt: skip
_DOTS_3 = {
    "with": {
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 8,
        "swa_kv_lora_rank": 8, "swa_head_dim": 8, "swa_qk_nope_head_dim": 4, "swa_v_head_dim": 8,
    },
    "head_dim": 8,
}  # fmt: skip
_GEMMA_3N = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "intermediate_size": [48] * 4,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
EDITS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "global_config": {"hidden_size": 64, "head_dim": 16},
            "encoder_config": {"hidden_size_global": 64}, "decoder_config": {"hidden_size_global": 64}},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
            for kind in ("full_attention", "sliding_attention")
        },
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
             "ffn_config": {"ffn_hidden_size": 48}},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "dory": {"num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1,
             "layer_types": ["sliding_attention", "full_attention"] * 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"text_config": _DOTS_3},
    "dots3_note_text": _DOTS_3,
    "gemma3n_text": _GEMMA_3N,
    "granitemoehybrid": {"layer_types": _TWO_KINDS},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "jamba": {"num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1},
    "lfm2": {"layer_types": _CONV, "block_multiple_of": 16},
    "lfm2_moe": {"layer_types": _CONV, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 8},
    "musicgen": {"decoder": {"num_codebooks": 1}},
    "musicgen_melody": {"decoder": {"num_codebooks": 1}},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "qwen4_exp": {"text_config": _QSA},
    "qwen4_exp_text": _QSA,
    "recurrent_gemma": {"num_hidden_layers": 3, "num_key_value_heads": 1},
    "reformer": {"is_decoder": True, "axial_pos_shape": [16, 16], "axial_pos_embds_dim": [16, 16],
                 "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
                 "num_buckets": 8, "hash_seed": 0},
    "roc_bert": {"pronunciation_vocab_size": 64, "shape_vocab_size": 64, "pronunciation_embed_dim": 8,
                 "shape_embed_dim": 8},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "attention_head_dim": 16, "attention_hidden_size": 64,
              "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "zamba2": {"attention_hidden_size": 64, "num_key_value_heads": 4, "attention_head_dim": 16,
               "num_hidden_layers": 3,
               "layers_block_type": ["linear_attention", "hybrid", "linear_attention"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
