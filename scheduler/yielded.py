"""What a client is told of fields that gave way to the grammar: a row must always have a token that it may draw."""

from protocol.ids import pack_ids
from protocol.outputs import Finish
from protocol.requests import Adjustment
from scheduler.sequence import Sequence


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
    if sampling.banned_sequences:
        text = pack_ids(output)
        if any(_holds(text, pack_ids(banned)) for banned in sampling.banned_sequences):
            found.append(Adjustment("bad_words", "changed", reason))
    return tuple(found)


def _holds(ids: bytes, sought: bytes) -> bool:
    """Whether the packed ids stand somewhere in the others, at a border of ids."""
    at = ids.find(sought)
    while at > 0 and at % 4:
        at = ids.find(sought, at + 1)
    return at >= 0
