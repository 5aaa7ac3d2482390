"""Small decoders of the main families, from configs of the transformers library with shrunken numbers."""

import warnings

import torch

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "head_dim": 8}
FAMILIES = {
    "llama": COMMON,
    "qwen2": COMMON,
    "qwen3": COMMON | {"head_dim": 8},
    "mistral": COMMON | {"sliding_window": 8, "head_dim": 8},
    "gemma2": COMMON | MIXED,
    "gpt2": GPT2 | {"bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": COMMON,
    "phi": COMMON,
    "olmo2": COMMON,
    "falcon": COMMON | {"new_decoder_architecture": False, "multi_query": True},
    "bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "opt": COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "starcoder2": COMMON,
    "gpt_oss": COMMON | MIXED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neo": {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
        "max_position_embeddings": 128,
    },
}
HYBRID = COMMON | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "attention_head_dim": 16,
    "mamba_d_state": 8,
    "n_mamba_heads": 2,
}
RARE = {
    "doge": COMMON,
    "zamba": HYBRID | {"attention_hidden_size": 64, "use_mamba_kernels": False},
    "zamba2": HYBRID
    | {"n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1, "chunk_size": 16, "num_mem_blocks": 1},
    "gemma3_text": COMMON | MIXED,
    "gemma3n_text": COMMON
    | {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": 8, "num_kv_shared_layers": 1}
    | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    | {"vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
    | {"intermediate_size": [48] * 3, "activation_sparsity_pattern": [0.0] * 3},
}
"""Models that few tests need: shared attention, norms beside the last one, masks reckoned with."""
FUSED = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gpt_neox", "phi", "olmo2", "opt", "starcoder2")
"""Those whose own kernel is torch's fused one."""


def decoder(family: str, seed: int = 0, **changes):
    """A model in eval mode; its matrices are scaled up, so that its patterns are far from uniform."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **(FAMILIES | RARE)[family] | changes)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(3.0)
    return model.float().eval()
