"""Frames are plain MessagePack: any library can read them, and each inbox takes exactly its own messages."""

from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.control import ControlRequest, Peer, PeerUp
from protocol.ids import count_ids, pack_ids, unpack_ids
from protocol.links import INBOXES, ProcessControl, SupervisorInbox, decoder, encode, request_owner
from protocol.outputs import Finish, SequenceOutput, StepOutput
from protocol.plan import BatchPlan, RowStart
from protocol.requests import AbortRequest
from protocol.sampling import SamplingParameters


def test_a_captured_frame_decodes_with_the_plain_msgpack_package() -> None:
    plan = BatchPlan(
        step=3,
        slots=pack_ids([0, 1]),
        new_tokens=pack_ids([1, 2]),
        context=pack_ids([5, 0]),
        draws=pack_ids([1, 0]),
        ids=pack_ids([-1, 7, 8]),
        starts=[RowStart(1, SamplingParameters(temperature=0.5, logit_bias={3: -1.5}), 42, pack_ids([7, 8]))],
    )
    plain = msgpack.unpackb(encode(plan), strict_map_key=False)
    assert (plain["type"], plain["step"], plain["slots"]) == ("plan", 3, pack_ids([0, 1]))
    assert plain["starts"][0]["sampling"] == {"temperature": 0.5, "logit_bias": {3: -1.5}}
    step = StepOutput(1, [SequenceOutput("0-a", 1, 0, pack_ids([9]), Finish("stop", "END"))])
    plain = msgpack.unpackb(encode(step))
    assert plain["type"] == "step"
    assert plain["outputs"][0][:5] == ["0-a", 1, 0, pack_ids([9]), ["stop", "END", None]]


def test_control_messages_carry_their_correlation_id() -> None:
    frame = encode(ControlRequest("c-17", 2, "flush_cache"))
    assert msgpack.unpackb(frame)["correlation_id"] == "c-17"
    assert decoder(INBOXES["tokenizer"]).decode(frame) == ControlRequest("c-17", 2, "flush_cache")


@pytest.mark.parametrize("union", [*INBOXES.values(), ProcessControl, SupervisorInbox])
def test_the_messages_of_a_union_have_tags_of_their_own(union: Any) -> None:
    tags = [member.__struct_config__.tag for member in get_args(union)]
    assert len(set(tags)) == len(tags) > 1


def test_an_inbox_takes_no_message_of_another_link() -> None:
    frame = encode(PeerUp(Peer("http", 0, 1, "ipc://x")))
    for union in INBOXES.values():
        with pytest.raises(msgspec.DecodeError):
            decoder(union).decode(frame)
    assert decoder(INBOXES["scheduler"]).decode(encode(AbortRequest("0-a"))) == AbortRequest("0-a")


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_travel_whole(ids: list[int]) -> None:
    data = pack_ids(ids)
    assert unpack_ids(data) == ids
    assert count_ids(data) == len(ids)


def test_ids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack_ids([2**31])
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"12345")


def test_a_request_s_owner_is_in_its_id() -> None:
    assert request_owner("3-abc-def") == 3
    with pytest.raises(ValueError, match="invalid literal"):
        request_owner("abc")
