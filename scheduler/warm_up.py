"""Steps that nobody asked for, before the first request: whatever loads, allocates or is touched for the first time in a
step (weights in memory, libraries, buffers of the draw) costs tenths of a second once, and no client should wait for it."""

from protocol.ids import pack_ids
from protocol.plan import LAST_SAMPLED, BatchPlan, Executor, PageDelta, RowStart
from protocol.sampling import SamplingParameters

_SLOT = 0
_PAGE = 1  # 0 is the scratch page


def warm_up(executor: Executor) -> None:
    """A prompt and a decode step of one row on a page that is free yet; the row and what it drew are forgotten."""
    capacity = executor.capacity
    if capacity.pages <= _PAGE or capacity.page_size < 2:
        return
    prompt = pack_ids([0] * (capacity.page_size - 1))
    sampling = SamplingParameters(temperature=1.0, top_p=0.9, top_k=20, logprobs=1)
    start = RowStart(_SLOT, sampling, 0, prompt)
    one, none = pack_ids([1]), pack_ids(())
    _step(
        executor,
        BatchPlan(
            step=0,
            slots=pack_ids([_SLOT]),
            new_tokens=pack_ids([capacity.page_size - 1]),
            context=pack_ids([0]),
            draws=one,
            ids=prompt,
            starts=[start],
            page_deltas=[PageDelta(_SLOT, 0, pack_ids([_PAGE]))],
        ),
    )
    context = pack_ids([capacity.page_size - 1])
    _step(
        executor,
        BatchPlan(0, slots=pack_ids([_SLOT]), new_tokens=one, context=context, draws=one, ids=pack_ids([LAST_SAMPLED])),
    )
    _step(executor, BatchPlan(0, slots=none, new_tokens=none, context=none, draws=none, ids=none, released=[_SLOT]))


def _step(executor: Executor, plan: BatchPlan) -> None:
    executor.launch(plan)
    executor.sample(None)
    executor.collect()
