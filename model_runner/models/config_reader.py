"""Reads a checkpoint's configuration loudly: a missing, mistyped or unsupported value is an error naming key and value.

Families read what they implement. What is left is checked at the end: a key known to change outputs must then have its
neutral value, keys known to change nothing pass, and an unknown key is named in a warning.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from runtime.start_error import StartError

logger = logging.getLogger(__name__)
Chosen = TypeVar("Chosen")


class ConfigError(StartError, ValueError):
    """The configuration asks for something that the model's declaration can't do."""


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_multiplier": (),
    "attention_out_bias": (False,),
    "attn_logit_softcapping": (None, 0),
    "clip_qkv": (None,),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (None, 0),
    "is_decoder": (False, True),
    "lm_head_bias": (False,),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "no_rope_layers": (),
    "partial_rotary_factor": (1, 1.0),
    "qk_layernorm": (False,),
    "qkv_bias": (False,),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "topk_method": (),
    "use_bidirectional_attention": (False, None),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
"""Keys that change outputs in some family, with the values at which they don't. None (JSON null) is always neutral."""

INERT = frozenset(
    [
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "add_cross_attention",
        "architectures",
        "attention_dropout",
        "attn_pdrop",
        "auto_map",
        "bad_words_ids",
        "bos_token_id",
        "boi_token_index",
        "cache_implementation",
        "chunk_size_feed_forward",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "ep_size",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "head_dim",
        "hidden_activation",
        "id2label",
        "initial_context_length",
        "initializer_range",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "layer_types",
        "max_length",
        "max_position_embeddings",
        "max_window_layers",
        "min_length",
        "mlp_only_layers",
        "model_type",
        "num_key_value_heads",
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "output_router_logits",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "pruned_heads",
        "quantization_config",
        "qk_head_dim",
        "resid_pdrop",
        "residual_dropout",
        "return_dict",
        "return_dict_in_generate",
        "rope_parameters",
        "rope_theta",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sep_token_id",
        "seq_aux",
        "aux_loss_alpha",
        "sliding_window_pattern",
        "_sliding_window_pattern",
        "suppress_tokens",
        "task_specific_params",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "use_bfloat16",
        "use_cache",
        "attention_probs_dropout_prob",
        "hidden_dropout_prob",
        "begin_suppress_tokens",
        "remove_invalid_values",
        "default_theta",
        "unsloth_fixed",
        "unsloth_version",
    ]
)
"""Keys that no text generation depends on, or that other keys decide."""


class ConfigReader:
    """One model's configuration with a record of what has been read."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self._values = values
        self.architecture = architecture
        self._read: set[str] = set()

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it is; a JSON null counts as absent."""
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "a number")
        return float(value)

    def nullable_integer(self, key: str, default: int | None) -> int | None:
        """As `integer`, for keys where null means none and only absence means the default."""
        if key in self._values and self.raw(key) is None:
            return None
        return default if self.raw(key, default) is None else self.integer(key, default)

    def nullable_number(self, key: str, default: float | None) -> float | None:
        """As `number`, for keys where null means none and only absence means the default."""
        if key in self._values and self.raw(key) is None:
            return None
        return default if self.raw(key, default) is None else self.number(key, default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def choice(self, key: str, choices: Mapping[str, Chosen] | Sequence[str], default: str | None = None) -> str:
        """One of the named values."""
        value = self.raw(key, default)
        if value not in choices:
            raise self.error(key, "one of " + ", ".join(sorted(choices)))
        return str(value)

    def strings(self, key: str, length: int) -> list[str] | None:
        """A list of `length` (or more: a shortened model keeps the longer list) strings, or None if absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"a list of {length} strings")
        return value[:length]

    def error(self, key: str, wanted: str) -> ConfigError:
        """The error of a value that can't be served."""
        return ConfigError(f"{self.architecture}: config key {key!r} is {self._values.get(key)!r}; supported: {wanted}")

    def finish(self) -> None:
        """Refuses what nothing has read and yet would change outputs."""
        for key in sorted(self._values.keys() - self._read):
            value = self._values[key]
            if value is None or key in INERT:
                continue
            if key not in NEUTRAL:
                logger.warning("%s: config key %r (%r) is not known and ignored", self.architecture, key, value)
            elif value not in NEUTRAL[key]:
                neutral = " or ".join(repr(item) for item in NEUTRAL[key]) or "absent"
                raise self.error(key, f"{neutral} in this family; --model-impl transformers may serve it")
