"""The plan of one step and its result: plain data between scheduler and executors, on every rank alike."""

from typing import Protocol

import msgspec

from protocol.outputs import IdLogprobs
from protocol.sampling import SamplingParameters

LAST_SAMPLED = -1
"""In `BatchPlan.ids`: the id that the row's slot drew last, which may still be on the device (lookahead 1)."""


NOTHING_DRAWN = -1
"""In `StepResult.ids`: the row's grammar mask allowed no token."""


class RowStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sequence takes a row slot (again, after a retraction). `seed` is the choice's own.

    `prompt_ids` and `output_ids` (int32 bytes) are the history that penalties and banned sequences look at; the row
    keeps it up to date with what it draws. `end_ids` may not be drawn before `min_tokens` output tokens.
    """

    slot: int
    sampling: SamplingParameters
    seed: int
    prompt_ids: bytes
    output_ids: bytes = b""
    end_ids: tuple[int, ...] = ()


class PageDelta(msgspec.Struct, frozen=True, array_like=True):
    """The row's page table from entry `first` on is `pages` (int32 bytes); earlier entries stay."""

    slot: int
    first: int
    pages: bytes


class ForcedTokens(msgspec.Struct, frozen=True, array_like=True):
    """Output ids that the scheduler decided itself (jump-forward, end of reasoning): history learns them, none is drawn."""

    slot: int
    ids: bytes


class BatchPlan(msgspec.Struct, frozen=True, omit_defaults=True, tag="plan"):
    """One step. Rows are in order; all arrays are int32 bytes with one entry per row unless said otherwise.

    Order of effect: `released` slots are forgotten, `starts` take theirs, `forced` and `page_deltas` are applied, then
    row r (slot `slots[r]`) feeds `new_tokens[r]` ids from `ids` at positions `context[r]...`, and draws after the last
    `draws[r]` of them (0: none, a prompt chunk; 1: the usual; more: speculation). The draw after the token at position p
    is keyed by (seed, p + 1). `masked` names the rows (indices into rows) that wait for a grammar mask in `sample`.
    `prompt_logprobs` names the rows whose fed positions report logprobs of the next prompt token.
    """

    step: int
    slots: bytes
    new_tokens: bytes
    context: bytes
    draws: bytes
    ids: bytes
    starts: list[RowStart] = []
    released: list[int] = []
    forced: list[ForcedTokens] = []
    page_deltas: list[PageDelta] = []
    masked: list[int] = []
    prompt_logprobs: list[int] = []


class PlanEvidence(msgspec.Struct, frozen=True):
    """What the status board keeps of the step about to run, as MessagePack: after a crash, whose rows it computed.

    `incarnation` is the scheduler's: one that dies before its first step leaves its predecessor's plan on the board.
    """

    step: int
    requests: list[str]
    prompt_tokens: int
    decode_rows: int
    incarnation: int = 0


class GrammarMasks(msgspec.Struct, frozen=True, tag="masks"):
    """Allowed tokens of the rows in `BatchPlan.masked`, in that order: int32 words, [rows, ceil(vocabulary / 32)], bit set = allowed.

    A row whose mask allows nothing draws nothing: its id in the result is NOTHING_DRAWN, its history does not change, and the
    scheduler plans the same token again (that is how a mask that is not ready yet costs its own row a step, and nobody else).
    """

    step: int
    words: bytes


class RowFailure(msgspec.Struct, frozen=True, array_like=True):
    """A row whose step could not be computed (NaN logits, out of memory with this row alone): its request alone fails."""

    row: int
    message: str


class StepResult(msgspec.Struct, frozen=True, omit_defaults=True, tag="result"):
    """Drawn ids (int32 bytes, sum of `draws` entries, row order) and what was asked beside them.

    `logprobs` has one entry per drawn id where the row asked for them, else None. `prompt_logprobs[k]` belongs to row
    `BatchPlan.prompt_logprobs[k]`: one entry per fed position whose next token is a prompt token.
    """

    step: int
    ids: bytes
    logprobs: list[IdLogprobs | None] | None = None
    prompt_logprobs: list[list[IdLogprobs]] = []
    failures: list[RowFailure] = []
    forward_us: int = 0


class Capacity(msgspec.Struct, frozen=True):
    """What an executor can hold, known once weights are loaded. Page 0 is a scratch page that no row is ever given."""

    pages: int
    page_size: int
    max_rows: int
    vocab_size: int
    kv_bytes: int
    weight_bytes: int
    kernels: dict[str, str] = {}
    """Which library computes what, for people."""


class Executor(Protocol):
    """What the scheduler drives. `launch` and `sample` return at once where the device allows; `collect` waits.

    Steps are collected in the order of their launch. With lookahead L at most L + 1 launched steps are uncollected.
    """

    capacity: Capacity

    def launch(self, plan: BatchPlan) -> None: ...

    def sample(self, masks: GrammarMasks | None) -> None:
        """Draw for the step launched last; `masks` belongs to it. Called exactly once per launch."""

    def collect(self) -> StepResult:
        """The result of the oldest uncollected step."""

    def statistics(self) -> dict[str, float]:
        """Figures for metrics, among them `logit_bias_bytes`."""

    def close(self) -> None: ...
