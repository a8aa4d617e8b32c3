"""A tiny Llama: a config and a byte-level tokenizer, made on the spot; weights are vLLM's random ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

END = 257


def make(folder: Path, **changes: Any) -> Path:
    """Write ``config.json`` and a byte-level BPE tokenizer (256 bytes and two marks) to ``folder``.

    ``changes`` replace fields of the LlamaConfig. About 4 layers of width 256: its graphs compile in a minute.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"<s>": END - 1, "</s>": END}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**marks, "model_max_length": 512}))
    (folder / "config.json").write_text(json.dumps({**_CONFIG, **changes}))
    return folder


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": END - 1,
    "eos_token_id": END,
}
