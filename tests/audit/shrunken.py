"""Families of transformers, shrunken by plain edits of their configs, with weights large enough to matter."""

import torch
import transformers

from whyformer.subjects.checkpoints import Checkpoint
from whyformer.subjects.huggingface import HuggingFace

VOCABULARY = 64
_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_STATES = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
FAMILIES = {
    "llama": _SIZES,
    "mistral": _SIZES | {"sliding_window": 8, "head_dim": 8},
    "mixtral": _SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "gemma2": _SIZES | {"head_dim": 8, "sliding_window": 8,
                        "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": _GPT,
    "openai-gpt": _GPT,
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "opt": _SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bamba": _SIZES | _STATES | {"num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_chunk_size": 8,
                                 "mamba_expand": 2},
    "mamba2": _SIZES | {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "rwkv": {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32,
             "num_hidden_layers": 2, "context_length": 256},
    "recurrent_gemma": _SIZES | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8,
                                 "head_dim": 8, "block_types": ["recurrent", "recurrent", "attention"]},
    "xlnet": {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "bert": _SIZES,
}  # fmt: skip


def built(family: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A model of the family, its weight matrices five times as large as they are drawn."""
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    made = transformers.AutoModel if family == "bert" else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = made.from_config(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 and "A_log" not in name:
                p.mul_(5)
    return model


def subject(family: str) -> HuggingFace:
    """The family as a subject."""
    model = built(family)
    return HuggingFace(Checkpoint(model, torch.float32, type(model).__name__, family != "bert"), name=family)
