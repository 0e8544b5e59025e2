"""Requests under suspicion: each was here at several deaths in a row of one role. They are sent one at a time, so that the
next death of a process tells which of them it comes from."""

from http_frontend.exchange import Flight

SUSPICIOUS_LOSSES = 2


class Quarantine:
    """At most one suspect is out; the others wait for it to end, or to get so far that it is beyond suspicion."""

    def __init__(self) -> None:
        self._waiting: dict[str, Flight] = {}
        self._out: Flight | None = None

    def __contains__(self, flight: Flight) -> bool:
        """True while it waits."""
        return flight.request.request_id in self._waiting

    def admits(self, flight: Flight) -> bool:
        """Whether the request may be sent now; a suspect that may not has to wait from now on."""
        if flight.losses < SUSPICIOUS_LOSSES:
            return True
        if self._out is None:
            self._out = flight
        elif self._out is not flight:
            self._waiting[flight.request.request_id] = flight
            return False
        return True

    def leave(self, flight: Flight) -> Flight | None:
        """The request has ended or is no suspect any more; whose turn it is now."""
        self._waiting.pop(flight.request.request_id, None)
        if self._out is not flight:
            return None
        self._out = self._waiting.pop(next(iter(self._waiting))) if self._waiting else None
        return self._out
