"""What a client is told of fields that gave way to the grammar: a row must always have a token that it may draw."""

from collections.abc import Mapping

from protocol.ids import pack_ids
from protocol.outputs import Finish
from protocol.requests import Adjustment
from scheduler.sequence import Sequence

EXCLUSIVE_BIAS = 100.0
"""As far as a bias may go: OpenAI's word for a ban, or for nothing else."""


def yielded(sequence: Sequence, finish: Finish) -> tuple[Adjustment, ...]:
    """Looks at the whole answer of a choice with a grammar, once, when it ends."""
    sampling = sequence.request.message.sampling
    output = sequence.tokens[sequence.prompt_length :]
    found = []
    if finish.reason == "stop":
        reason = "the grammar was complete, and only the end of the answer was left"
        if sampling.ignore_eos:
            found.append(Adjustment("ignore_eos", "changed", reason))
        if len(output) <= sampling.min_tokens and output and output[-1] in sequence.request.end_ids:
            found.append(Adjustment("min_tokens", "changed", reason))
    reason = "the grammar allowed nothing else"
    if sampling.allowed_token_ids is not None and not set(output) <= {*sampling.allowed_token_ids}:
        found.append(Adjustment("allowed_token_ids", "changed", reason))
    if sampling.logit_bias is not None and _overruled(sampling.logit_bias, set(output), sequence.request.end_ids):
        found.append(Adjustment("logit_bias", "changed", reason))
    if sampling.banned_sequences:
        text = pack_ids(output)
        if any(_holds(text, pack_ids(banned)) for banned in sampling.banned_sequences):
            found.append(Adjustment("bad_words", "changed", reason))
    return tuple(found)


def _overruled(bias: Mapping[int, float], drawn: set[int], end_ids: tuple[int, ...]) -> bool:
    """Whether a token was drawn that was as good as banned, or one beside those that were to be drawn always. Lesser
    biases weigh, and what they weighed nobody can see."""
    wanted = {id for id, value in bias.items() if value >= EXCLUSIVE_BIAS}
    against = any(bias.get(id, 0.0) <= -EXCLUSIVE_BIAS for id in drawn)
    return against or bool(wanted and not drawn <= {*wanted, *end_ids})


def _holds(ids: bytes, sought: bytes) -> bool:
    """Whether the packed ids stand somewhere in the others, at a border of ids."""
    at = ids.find(sought)
    while at > 0 and at % 4:
        at = ids.find(sought, at + 1)
    return at >= 0
