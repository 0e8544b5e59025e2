"""What it costs to pass one step's plan on to another rank: encode, ZeroMQ, decode, and build the step's tensors.

    python benchmarks/plan_cost.py [--rows 256] [--context 8192] [--steps 300]

A decode step of `rows` sequences with `context` tokens each; every row gets a page when its last one is full, so a
sixteenth of them do in each step.
"""

import argparse
import statistics
import tempfile
import time

import torch
import zmq

from model_runner.inputs import InputBuilder, PlanRows
from protocol.control import Peer
from protocol.ids import pack_ids
from protocol.links import INBOXES, decoder, encode
from protocol.plan import LAST_SAMPLED, BatchPlan, PageDelta
from runtime.channels import Inbox, Outbox

PAGE_SIZE = 16


def make_plan(step: int, rows: int, context: int) -> BatchPlan:
    lengths = [context + step + row % PAGE_SIZE for row in range(rows)]
    growing = [row for row, length in enumerate(lengths) if length % PAGE_SIZE == 0]
    ones = pack_ids([1] * rows)
    return BatchPlan(
        step=step,
        slots=pack_ids(range(rows)),
        new_tokens=ones,
        context=pack_ids(lengths),
        draws=ones,
        ids=pack_ids([LAST_SAMPLED] * rows),
        page_deltas=[PageDelta(row, lengths[row] // PAGE_SIZE, pack_ids([row + 1])) for row in growing],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    inputs = InputBuilder(options.rows, PAGE_SIZE, device)
    pages = -(-options.context // PAGE_SIZE) + 1
    inputs.apply([PageDelta(row, 0, pack_ids(range(1, pages + 1))) for row in range(options.rows)])
    last_ids = torch.zeros(options.rows, dtype=torch.int64)
    plan_decoder = decoder(INBOXES["rank"])
    parts: dict[str, list[float]] = {"encode": [], "send and receive": [], "decode": [], "step's tensors": []}
    frame = b""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        inbox = Inbox(context, f"ipc://{folder}/plans", INBOXES["rank"])
        outbox = Outbox(context)
        outbox.peer_up(Peer("rank", 1, 1, inbox.endpoint))
        for step in range(options.steps):
            plan = make_plan(step, options.rows, options.context)
            marks = [time.perf_counter()]
            frame = encode(plan)
            marks.append(time.perf_counter())
            outbox.send_frame("rank", 1, frame)
            received = inbox.socket.recv()
            marks.append(time.perf_counter())
            decoded = plan_decoder.decode(received)
            marks.append(time.perf_counter())
            inputs.apply(decoded.page_deltas)
            inputs.build(PlanRows.parse(decoded), last_ids)
            marks.append(time.perf_counter())
            for name, begin, end in zip(parts, marks, marks[1:], strict=False):
                parts[name].append(1e6 * (end - begin))
        outbox.close()
        inbox.close()
    print(f"{options.rows} rows of {options.context} tokens, {len(frame)} bytes a plan; median (p95) microseconds")
    for name, times in parts.items():
        ordered = sorted(times)
        print(f"  {name:18}{statistics.median(times):8.0f} ({ordered[len(ordered) * 95 // 100]:.0f})")


if __name__ == "__main__":
    main()
