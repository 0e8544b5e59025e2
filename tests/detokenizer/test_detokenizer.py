from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detokenizer.detokenizer import Detokenizer
from detokenizer.pieces import Pieces
from protocol.errors import ErrorInfo
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Admitted, Finish, IdLogprobs, SequenceOutput, StopFound, TextOutput
from protocol.requests import Adjustment, ChoiceProgress
from protocol.sampling import DetokenizeOptions, ReasoningSpan

ID = "3-abc"
LENGTH = Finish("length")
NAMES = ["byte_level", "llama", "gemma", "fallback_metaspace", "metaspace", "wordpiece", "word_ends", "words"]


class Link:
    """A scheduler's side of one request: sends ids, keeps what comes out."""

    def __init__(self, pieces: Pieces, **admitted: Any) -> None:
        self.pieces = pieces
        self.detokenizer = Detokenizer(pieces)
        self.outputs: list[TextOutput] = []
        self.stops: list[tuple[int, StopFound]] = []
        options = DetokenizeOptions(**admitted.pop("options", {}))
        self.detokenizer.open(Admitted(ID, admitted.pop("attempt", 0), 5, detokenize=options, replica=1, **admitted))
        self.take()

    def ids(self, *tokens: str) -> list[int]:
        found = {token: self.pieces.vocabulary.id_of(token) for token in tokens}
        return [id for token in tokens if (id := found[token]) is not None]

    def take(self) -> list[TextOutput]:
        texts, stops = self.detokenizer.take()
        assert set(texts) <= {3}
        self.outputs += texts.get(3, [])
        self.stops += stops
        return texts.get(3, [])

    def send(self, ids: list[int], finish: Finish | None = None, index: int = 0, **more: Any) -> list[TextOutput]:
        self.detokenizer.add(SequenceOutput(ID, more.pop("attempt", 0), index, pack_ids(ids), finish, **more))
        return self.take()

    def say(self, *tokens: str, finish: Finish | None = None) -> list[TextOutput]:
        return self.send(self.ids(*tokens), finish)

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def sent_ids(self) -> list[int]:
        return [id for output in self.outputs for id in unpack_ids(output.ids)]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_whole_tokens_and_add_up(all_pieces: dict[str, Pieces], name: str) -> None:
    pieces = all_pieces[name]

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.lists(st.integers(0, 600), max_size=5), max_size=12), st.integers(1, 4), st.booleans())
    def check(numbers: list[list[int]], interval: int, stops: bool) -> None:
        options = {"stream_interval": interval, "stop": ("no such text", "Hello world!") if stops else ()}
        link = Link(pieces, options=options)
        chunks = [[number % pieces.vocabulary.size for number in chunk] for chunk in numbers]
        for chunk in chunks:
            link.send(chunk)
        link.send([], LENGTH)
        ids = [id for chunk in chunks for id in chunk]
        assert link.text == pieces.tokenizer.decode(ids)
        assert link.sent_ids == ids
        assert [output.finish for output in link.outputs] == [None] * (len(link.outputs) - 1) + [LENGTH]
        assert all(len(output.ids) >= 4 * interval for output in link.outputs[:-1])
        assert len(link.detokenizer) == 0
        text, count = "", 0
        for output in link.outputs[:-1]:
            text, count = text + output.text, count + len(output.ids) // 4
            assert output.completion_tokens == count
            if pieces.kind == "bytes":
                assert text == pieces.tokenizer.decode(ids[:count])

    check()


@pytest.mark.parametrize(("include", "text"), [(False, "Hello"), (True, "Hello STOP")])
def test_a_stop_string_cuts_the_text_and_tells_the_scheduler(
    all_pieces: dict[str, Pieces], include: bool, text: str
) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": (" STOP",), "include_stop": include})
    assert [output.text for output in link.say("Hello")] == ["Hello"]
    assert link.say("Ġ", "STO") == []
    final = link.say("P", "Ġworld")
    assert link.text == text
    assert [output.finish for output in final] == [Finish("stop", " STOP")]
    assert link.sent_ids == link.ids("Hello", "Ġ", "STO", "P")
    assert link.outputs[-1].completion_tokens == 4
    assert link.stops == [(1, StopFound(ID, 0, 0, 4))]
    assert len(link.detokenizer) == 0
    assert link.say("Ġworld", finish=LENGTH) == []


def test_held_tokens_leave_when_they_begin_no_stop_after_all(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": (" STOP",)})
    assert link.say("Ġ", "STO") == []
    assert [output.text for output in link.say("Ġworld")] == [" STO world"]


def test_a_stop_match_beats_the_length_of_the_same_moment(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": ("STOP",)})
    link.say("Hello", "STO", "P", finish=LENGTH)
    assert link.outputs[-1].finish == Finish("stop", "STOP")
    assert link.stops == []


def test_a_stop_string_spelled_in_bytes_is_found_at_the_end(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["llama"], options={"stop": ("END",)})
    link.say("Hello", "<0x45>", "<0x4E>", "<0x44>", finish=LENGTH)
    assert (link.text, link.outputs[-1].finish) == ("Hello", Finish("stop", "END"))


@pytest.mark.parametrize(
    ("include", "skip", "text"), [(False, True, "Hello"), (False, False, "Hello"), (True, False, "Hello<|end|>")]
)
@pytest.mark.parametrize("by_id", [False, True])
def test_the_end_token_is_no_text_unless_asked_for(
    all_pieces: dict[str, Pieces], include: bool, skip: bool, text: str, by_id: bool
) -> None:
    pieces = all_pieces["byte_level"]
    end = pieces.vocabulary.id_of("<|end|>")
    assert end is not None
    options = {"include_stop": include, "skip_special_tokens": skip}
    link = Link(pieces, options=options, eos_token_ids=() if by_id else (end,))
    link.say("Hello", "<|end|>", finish=Finish("stop", end if by_id else None))
    assert link.text == text
    assert link.sent_ids == link.ids("Hello", "<|end|>")
    assert link.outputs[-1].completion_tokens == 2


def test_an_end_token_at_the_length_is_text(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"skip_special_tokens": False}, eos_token_ids=(1,))
    link.say("Hello", "<|end|>", finish=LENGTH)
    assert link.text == "Hello<|end|>"


def span(link_pieces: Pieces, opened: bool) -> ReasoningSpan:
    open_id, close_id = (link_pieces.vocabulary.id_of(token) for token in ("<think>", "</think>"))
    assert open_id is not None and close_id is not None
    return ReasoningSpan((open_id,), (close_id,), opened)


@pytest.mark.parametrize("opened", [True, False])
def test_stop_strings_spare_reasoning(all_pieces: dict[str, Pieces], opened: bool) -> None:
    pieces = all_pieces["byte_level"]
    link = Link(pieces, options={"stop": ("STOP",)}, reasoning_span=span(pieces, opened))
    if not opened:
        link.say("<think>")
    link.say("STO", "P", "Ġworld", "STO", "</think>", "P", "Hello")
    assert link.text == "STOP worldSTOPHello"
    link.say("STO", "P")
    assert link.text == "STOP worldSTOPHello"
    assert link.outputs[-1].finish == Finish("stop", "STOP")


def test_stop_strings_in_reasoning_when_asked(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["byte_level"]
    link = Link(pieces, options={"stop": ("STOP",), "stop_in_reasoning": True}, reasoning_span=span(pieces, True))
    link.say("Hello", "STO", "P")
    assert link.text == "Hello" and link.outputs[-1].finish is not None


def test_stop_strings_wait_for_min_tokens(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": ("STOP",), "min_tokens": 3})
    link.say("STO", "P", "STO", "P", "STO", "P")
    assert link.text == "STOPSTOP"
    assert link.outputs[-1].completion_tokens == 6


@pytest.mark.parametrize("delivered", range(6))
def test_a_resumed_choice_continues_exactly(all_pieces: dict[str, Pieces], delivered: int) -> None:
    pieces = all_pieces["byte_level"]
    tokens = ("Hello", "Ġ", "STO", "Ġworld", "STO", "P")
    first = Link(pieces, options={"stop": ("STOP",)})
    for token in tokens[:delivered]:
        first.say(token)
    resume = (ChoiceProgress(0, pack_ids(first.sent_ids)),)
    second = Link(pieces, options={"stop": ("STOP",)}, attempt=1, resume=resume)
    for id in second.ids(*tokens)[len(first.sent_ids) :]:
        second.send([id], attempt=1)
    assert first.text + second.text == "Hello STO world"
    assert second.outputs[-1].completion_tokens == 6
    assert second.stops == [(1, StopFound(ID, 1, 0, 6))]


def test_finished_choices_are_not_resumed(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], n=2, attempt=1, resume=(ChoiceProgress(0, finished=True),))
    assert link.send([1], LENGTH, 0, attempt=1) == []
    assert len(link.send([1], LENGTH, 1, attempt=1)) == 1
    assert len(link.detokenizer) == 0
    done = Link(all_pieces["byte_level"], attempt=1, resume=(ChoiceProgress(0, finished=True),))
    assert len(done.detokenizer) == 0


def test_attempts(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], attempt=1)
    assert link.send([1], attempt=0) == []
    assert link.send([1], attempt=2) == []
    link.detokenizer.open(Admitted(ID, 0, 5))
    assert len(link.send([1], attempt=1)) == 1
    link.detokenizer.open(Admitted(ID, 2, 5))
    assert link.send([1], attempt=1) == []
    assert len(link.send([1], attempt=2)) == 1


@pytest.mark.parametrize("finish", [Finish("abort"), Finish("error", error=ErrorInfo("broken", 500, "server_error"))])
def test_other_ends_give_what_was_held(all_pieces: dict[str, Pieces], finish: Finish) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": ("STOP",)})
    link.say("STO")
    link.send([], finish)
    assert (link.text, link.outputs[-1].finish, len(link.detokenizer)) == ("STO", finish, 0)


def test_a_broken_character_is_shown_at_the_very_end_alone(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"])
    broken = link.pieces.byte_pieces.index(b"\xf0\x9f")
    link.say("Hello")
    assert link.send([broken]) == []
    link.send([], LENGTH)
    assert link.text == "Hello\ufffd"


def test_a_regex_over_its_time_ends_its_choice_alone(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"stop_regex": (r"(?:[Helo]+)+(?:[Helo]+)+(?:[Helo]+)+\d",)})
    link.send(link.ids("Hello") * 400)
    finish = link.outputs[-1].finish
    assert finish is not None and finish.reason == "error" and finish.error is not None
    assert finish.error.code == "stop_regex_timeout"
    assert [stop.error for _, stop in link.stops] == [True]
    assert len(link.detokenizer) == 0


def test_an_invalid_regex_ends_its_request(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], n=2, options={"stop_regex": ("(",)})
    assert [output.finish.reason for output in link.outputs if output.finish] == ["error", "error"]
    assert [stop.index for _, stop in link.stops] == [0, 1]
    assert len(link.detokenizer) == 0


def test_reasoning_behind_a_stop_match_is_not_counted(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": ("Hello",)})
    link.send(link.ids("Ġworld"), reasoning_tokens=1)
    link.send(link.ids("Hello", "Ġworld", "ing"), reasoning_tokens=4)
    assert (link.outputs[-1].completion_tokens, link.outputs[-1].reasoning_tokens) == (2, 2)


def test_counts_of_a_prediction_are_the_newest(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], options={"stop": ("no such text",)})
    link.send(link.ids("Hello"), prediction=(0, 0))
    link.send(link.ids("Ġworld", "ing"), prediction=(2, 1))
    link.send([], LENGTH, prediction=(2, 4))
    assert [output.prediction for output in link.outputs] == [(0, 0), (2, 1), (2, 4)]
    plain = Link(all_pieces["byte_level"])
    plain.send(plain.ids("Hello"), prediction=(3, 0))
    assert plain.outputs[0].prediction == (3, 0)


def test_logprobs_stay_with_their_tokens(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["byte_level"]
    link = Link(pieces, options={"stop": ("STOP",)})
    ids = link.ids("Hello", "STO", "P", "Ġworld")

    def entry(id: int) -> IdLogprobs:
        return IdLogprobs(id, -1.0, 1, pack_ids([id, 5]), array("f", [-1.0, -2.0]).tobytes())

    link.send(ids[:2], logprobs=[entry(id) for id in ids[:2]], prompt_logprobs=[None, entry(7)], cached_tokens=4)
    link.send(ids[2:], logprobs=[entry(id) for id in ids[2:]], adjustments=(Adjustment("f", "changed", "why"),))
    assert [[logprob.token for logprob in output.logprobs or ()] for output in link.outputs] == [
        ["Hello"],
        ["STO", "P"],
    ]
    assert [output.prompt_logprobs is not None for output in link.outputs] == [True, False]
    assert [output.cached_tokens for output in link.outputs] == [4, 4]
    first = link.outputs[0].logprobs
    assert first is not None
    assert [(top.id, top.logprob, top.bytes_) for top in first[0].top] == [
        (ids[0], -1.0, b"Hello"),
        (5, -2.0, pieces.vocabulary.token_bytes(5)),
    ]
    assert link.outputs[-1].adjustments == (Adjustment("f", "changed", "why"),)


def test_a_token_inside_a_character_keeps_its_bytes(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"])
    ids = [link.pieces.byte_pieces.index(data) for data in (b"\xf0\x9f", b"\x98\x80")]
    link.send(ids, logprobs=[IdLogprobs(id, 0.0) for id in ids])
    logprobs = link.outputs[0].logprobs or []
    assert b"".join(logprob.bytes_ for logprob in logprobs).decode() == link.text == "😀"
    assert logprobs[0].token == "\ufffd"


def test_the_prompt_tail_decodes_across_the_border(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["byte_level"]
    first, last = (pieces.byte_pieces.index(data) for data in (b"\xf0\x9f", b"\x98\x80"))
    link = Link(pieces, prompt_tail=pack_ids([first]))
    link.send([last])
    assert link.text == "😀"


def test_what_is_dropped_stays_dropped(all_pieces: dict[str, Pieces]) -> None:
    for drop in ("worker", "replica"):
        link = Link(all_pieces["byte_level"])
        link.detokenizer.drop_worker(2)
        link.detokenizer.drop_replica(0)
        assert len(link.detokenizer) == 1
        link.detokenizer.drop_worker(3) if drop == "worker" else link.detokenizer.drop_replica(1)
        assert len(link.detokenizer) == 0
        assert link.say("Hello") == []


def test_a_refused_attempt_takes_what_it_superseded_with_it(all_pieces: dict[str, Pieces]) -> None:
    link = Link(all_pieces["byte_level"], attempt=2)
    link.detokenizer.refused(ID, 1)
    assert len(link.detokenizer) == 1, "an older refusal"
    link.detokenizer.refused(ID, 3)
    assert len(link.detokenizer) == 0
