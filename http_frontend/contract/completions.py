"""The body of POST /v1/completions."""

from http_frontend.contract.field import EXTENSION, Field, Record, Ruling
from http_frontend.contract.kinds import Anything, Either, Flag, Integer, ListOf, Text, TokenIds
from http_frontend.contract.sampling import (
    MAX_CHOICES,
    MAX_COUNT,
    MAX_TOP_LOGPROBS,
    SHAPE,
    SHARED,
    TEMPLATE,
    max_tokens_ruling,
    rejected,
)
from runtime.engine_config import EngineConfig

MAX_PROMPTS = 1024


def suffix_ruling(config: EngineConfig) -> Ruling:
    if config.model.infill is None:
        return Ruling("rejected", "the model's vocabulary has no fill-in-the-middle tokens")
    return Ruling("honoured", f"the prompt is written with {' '.join(config.model.infill.marks)}")


COMPLETIONS = Record(
    (
        Field(
            "prompt",
            Either((Text(), TokenIds(low=1), ListOf(Either((Text(), TokenIds(low=1))), low=1, high=MAX_PROMPTS))),
            TEMPLATE,
            required=True,
            probe=("Once upon", "The end of"),
        ),
        Field("model", Text(0, 512), "tokenizer manager: routing"),
        Field("max_tokens", Integer(0, MAX_COUNT), "tokenizer manager: length", max_tokens_ruling, probe=(2, 5)),
        Field(
            "logprobs",
            Integer(-1, MAX_TOP_LOGPROBS),
            "model runner: logprobs",
            Ruling(
                "honoured", "0 is the drawn token alone; -1 the whole vocabulary, in short answers without a stream"
            ),
            probe=(None, 2),
        ),
        Field("echo", Flag(), SHAPE, probe=(False, True)),
        Field("best_of", Integer(1, MAX_CHOICES), "http front end: the most likely of several", probe=(1, 4)),
        Field("suffix", Text(), TEMPLATE, suffix_ruling, neutral=("",)),
        Field("add_special_tokens", Flag(), TEMPLATE, EXTENSION),
        Field("prompt_embeds", Anything(), "nowhere", rejected("prompts are text or token ids")),
        *SHARED,
    )
)
