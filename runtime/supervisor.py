"""The supervisor's loop: starts the processes, introduces them to each other, watches, restarts and stops them.

It computes nothing and never waits for a single process: one loop sleeps until a message, a signal or a deadline.
"""

import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from protocol.control import Drain, Drained, Failed, PeerDown, PeerUp, Progress, Ready, Role, Shutdown
from runtime.announcements import Announcer
from runtime.channels import SupervisorLinks
from runtime.children import Child, start_child
from runtime.crash_evidence import keep_evidence
from runtime.engine_config import EngineConfig
from runtime.restarts import RestartBudget
from runtime.signals import Signals
from runtime.start_error import StartError
from runtime.status_board import SUPERVISOR_SLOT, StatusBoard
from runtime.topology import MODULES, Seat, hears_of, seats_of, supervisor_endpoint

Phase = Literal["starting", "serving", "draining", "stopping"]

TICK_S = 1.0
_LAST_WORDS_S = 0.3
_SHUTDOWN_GRACE_S = 3.0
_FAILED_START_GRACE_S = 1.0
_DRAIN_REST_S = 1.0
_DUMP_GRACE_S = 5.0
_RETRY_S = 1.0

logger = logging.getLogger(__name__)


class Supervisor:
    """Lives from the first process to the end of the last. `run` returns the exit status."""

    def __init__(
        self,
        config: EngineConfig,
        board: StatusBoard,
        listen_fd: int,
        announcer: Announcer,
        signals: Signals,
        modules: Mapping[Role, str] = MODULES,
    ) -> None:
        self._config = config
        self._board = board
        self._own_slot = board.slot(SUPERVISOR_SLOT)
        self._listen_fd = listen_fd
        self._announcer = announcer
        self._signals = signals
        self._modules = modules
        self._links = SupervisorLinks(supervisor_endpoint(Path(config.run_dir)), self._on_garbage)
        self._seats = seats_of(config)
        self._children: dict[tuple[Role, int], Child] = {}
        self._incarnations: dict[str, int] = {}
        self._restart_at_s: dict[str, float] = {}
        self._budget = RestartBudget(config.args.max_restarts, config.args.restart_window_s)
        self._phase: Phase = "starting"
        self._began_s = time.monotonic()
        self._drain_until_s = 0.0
        self._rest_draining = False
        self._exit_status = 0

    def run(self) -> int:
        """Until a signal ends it (0), or what can't be mended does (StartError, with no process left behind)."""
        grace_s = _FAILED_START_GRACE_S
        try:
            self._announcer.decisions()
            for group in dict.fromkeys(seat.group for seat in self._seats):
                try:
                    self._start_group(group)
                except OSError as error:
                    raise StartError(f"{group} can't be started: {error}") from None
            while self._phase != "stopping":
                self._turn()
            grace_s = 0.0 if self._exit_status else _SHUTDOWN_GRACE_S
            return self._exit_status
        finally:
            self._end_all(grace_s)

    def _turn(self) -> None:
        self._links.wait(self._patience_s(), self._signals.fd)
        self._own_slot.beat()
        for number in self._signals.take():
            self._on_signal(number)
        self._read_messages()
        self._reap()
        self._watch()
        self._restart_what_is_due()
        self._advance()

    def _patience_s(self) -> float:
        now = time.monotonic()
        deadlines = [
            *self._restart_at_s.values(),
            *(child.kill_at_s for child in self._children.values() if child.kill_at_s),
        ]
        if self._phase == "draining":
            deadlines.append(self._drain_until_s)
        return max(0.0, min([TICK_S, *(deadline - now for deadline in deadlines)]))

    # Starting and introducing

    def _start_group(self, group: str) -> None:
        """Starts every seat of the group with a new incarnation."""
        incarnation = self._incarnations.get(group, 0) + 1
        self._incarnations[group] = incarnation
        for seat in self._group_seats(group):
            child = start_child(self._config, seat, incarnation, self._modules[seat.role], self._board, self._listen_fd)
            self._children[seat.role, seat.index] = child
            self._links.control.peer_up(child.control_peer)

    def _group_seats(self, group: str) -> list[Seat]:
        return [seat for seat in self._seats if seat.group == group]

    def _group_children(self, group: str) -> list[Child]:
        return [child for child in self._children.values() if child.seat.group == group]

    def _group_is_ready(self, group: str) -> bool:
        children = self._group_children(group)
        return len(children) == len(self._group_seats(group)) and all(child.ready for child in children)

    def _all_ready(self) -> bool:
        return len(self._children) == len(self._seats) and all(child.ready for child in self._children.values())

    def _introduce(self, newcomers: list[Child]) -> None:
        """Tells the newcomers of everybody who is there, and everybody of the newcomers."""
        fresh = {child.seat for child in newcomers}
        present = [child for child in self._fronts_last() if self._group_is_ready(child.seat.group)]
        # A newcomer should know everybody before anybody writes to it.
        for listener in sorted(present, key=lambda child: child.seat not in fresh):
            for other in present:
                if (listener.seat in fresh or other.seat in fresh) and hears_of(listener.seat, other.seat):
                    self._tell(listener, PeerUp(other.peer, other.info))

    def _fronts_last(self) -> list[Child]:
        return sorted(self._children.values(), key=lambda child: child.seat.role == "http")

    def _tell(self, child: Child, message: msgspec.Struct) -> None:
        self._links.control.send(child.seat.role, child.seat.index, message)

    # Messages

    def _read_messages(self) -> None:
        for message in self._links.inbox.drain():
            child = self._children.get((message.peer.role, message.peer.index))
            if child is None or child.spec.incarnation != message.peer.incarnation:
                continue
            child.progressed_s = time.monotonic()
            if isinstance(message, Ready):
                self._on_ready(child, message)
            elif isinstance(message, Progress):
                self._announcer.progress(message)
            elif isinstance(message, Failed):
                child.failure = message.message
            elif isinstance(message, Drained):
                child.drained = True

    def _on_ready(self, child: Child, message: Ready) -> None:
        child.ready = True
        child.info = message.info
        if self._phase == "starting":
            if self._all_ready():
                self._on_started()
        elif self._group_is_ready(child.seat.group):
            self._introduce(self._group_children(child.seat.group))
            logger.info("%s is back (incarnation %d)", child.seat.group, child.spec.incarnation)
            if self._phase == "draining":
                self._tell_drain(child)

    def _on_started(self) -> None:
        self._introduce(list(self._children.values()))
        self._phase = "serving"
        self._announcer.end_progress()
        for role, announce in (("scheduler", self._announcer.scheduler_ready), ("tokenizer", self._announcer.template)):
            first = next((child for child in self._children.values() if child.seat.role == role), None)
            if first is not None:
                announce(first.info)
        self._announcer.ready(time.monotonic() - self._began_s)

    def _on_garbage(self, reason: str) -> None:
        logger.warning("a message to the supervisor could not be read: %s", reason)

    # Deaths

    def _reap(self) -> None:
        for child in list(self._children.values()):
            if not child.ended() or self._children.get((child.seat.role, child.seat.index)) is not child:
                continue
            if child.process.returncode > 0 and child.failure is None:
                # It may have said why; that is on its way still.
                self._links.wait(_LAST_WORDS_S, self._signals.fd)
            self._read_messages()
            self._on_death(child)

    def _on_death(self, child: Child) -> None:
        reason = child.how_it_ended()
        if stacks := child.stacks(self._config.run_dir):
            logger.error("stacks of %s when it died:\n%s", child.seat.name, stacks)
        evidence = keep_evidence(self._config, self._board, child, reason)
        if self._phase == "starting":
            raise StartError(reason)
        self._take_down(child.seat.group, reason, evidence)
        if self._phase == "draining" and child.seat.role == "http":
            return  # its connections are gone with it: nothing is left to drain there
        pause_s = self._budget.spend(child.seat.group, time.monotonic())
        if pause_s is None:
            args = self._config.args
            raise StartError(
                f"{reason}; that is more than {args.max_restarts} restarts within {args.restart_window_s:g} s, so the server ends"
            )
        logger.error("%s; it is started again %s", reason, f"in {pause_s:.1f} s" if pause_s else "now")
        self._restart_at_s[child.seat.group] = time.monotonic() + pause_s

    def _take_down(self, group: str, reason: str, evidence: str) -> None:
        """Ends what is left of the group and tells everybody else: those who submit again last, so that whoever gets a
        new attempt has most likely heard of the death before."""
        at_s = time.time()
        fallen = self._group_children(group)
        for child in fallen:
            child.signal(signal.SIGKILL)
            del self._children[child.seat.role, child.seat.index]
            self._links.control.peer_down(child.control_peer)
            self._board.slot(child.seat.board_slot).update(state="stopped")
        for child in fallen:
            child.process.wait()
            child.remove_sockets()
            for listener in self._fronts_last():
                if listener.ready and child.ready and hears_of(listener.seat, child.seat):
                    self._tell(listener, PeerDown(child.peer, reason, at_s, evidence))

    def _restart_what_is_due(self) -> None:
        now = time.monotonic()
        for group in [group for group, due_s in self._restart_at_s.items() if due_s <= now]:
            try:
                self._start_group(group)
            except OSError as error:  # a full disk, no more processes: that may pass
                logger.error("%s can't be started, it is tried again: %s", group, error)
                self._take_down(group, str(error), "")
                self._restart_at_s[group] = now + _RETRY_S
            else:
                del self._restart_at_s[group]

    # Watching

    def _watch(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.kill_at_s is not None:
                if now >= child.kill_at_s:
                    child.signal(signal.SIGKILL)
            elif not child.ready:
                self._watch_start(child, now)
            else:
                self._watch_heartbeat(child, now)

    def _watch_start(self, child: Child, now: float) -> None:
        limit_s = self._config.args.start_timeout_s
        if limit_s and now - child.progressed_s > limit_s:
            self._end_stuck(child, f"{child.seat.name} made no progress for {limit_s:g} s while starting", now)

    def _watch_heartbeat(self, child: Child, now: float) -> None:
        limit_s = self._config.args.stall_timeout_s
        if not limit_s:
            return
        status = self._board.read(child.seat.board_slot)
        still_s = max(status.heartbeat_age_s, status.stalled_s)
        if still_s > limit_s:
            what = (
                "its loop did not turn"
                if status.heartbeat_age_s >= status.stalled_s
                else "work was pending without a step"
            )
            self._end_stuck(child, f"{child.seat.name} was stuck ({what} for {still_s:.0f} s)", now)

    def _end_stuck(self, child: Child, reason: str, now: float) -> None:
        """SIGABRT has faulthandler write the stacks; SIGKILL follows if that does not end it."""
        child.failure = reason
        child.signal(signal.SIGABRT)
        child.kill_at_s = now + _DUMP_GRACE_S

    # The end

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD or self._phase == "stopping":
            return
        if self._phase == "draining":
            logger.warning("second signal: ending at once")
            self._exit_status = 128 + number
            self._phase = "stopping"
        elif self._phase == "starting":
            self._exit_status = 128 + number
            self._phase = "stopping"
        else:
            logger.info(
                "%s: draining, for at most %g s", signal.Signals(number).name, self._config.args.drain_timeout_s
            )
            self._phase = "draining"
            self._drain_until_s = time.monotonic() + self._config.args.drain_timeout_s
            for child in self._children.values():
                if child.seat.role == "http":
                    self._tell_drain(child)

    def _tell_drain(self, child: Child) -> None:
        remaining_s = max(0.0, self._drain_until_s - time.monotonic())
        self._tell(child, Drain(time.time() + remaining_s))

    def _advance(self) -> None:
        """Shows the server's state on the board, and carries a drain on: the HTTP workers first, for they own the
        requests; once they have none left, the others have nothing that anybody waits for."""
        now = time.monotonic()
        if self._phase == "starting":
            self._own_slot.update(state="starting")
        elif self._phase == "serving":
            self._own_slot.update(state="ready" if self._all_ready() else "recovering")
        elif self._phase == "draining":
            self._own_slot.update(state="draining")
            fronts = [child for child in self._children.values() if child.seat.role == "http"]
            others = [
                child
                for child in self._children.values()
                if child.seat.role in ("tokenizer", "scheduler", "detokenizer")
            ]
            if not self._rest_draining and (all(child.drained for child in fronts) or now >= self._drain_until_s):
                self._rest_draining = True
                self._drain_until_s = now + _DRAIN_REST_S
                for child in others:
                    self._tell_drain(child)
            elif self._rest_draining and (all(child.drained for child in others) or now >= self._drain_until_s):
                self._phase = "stopping"

    def _end_all(self, grace_s: float) -> None:
        """Shutdown to everybody, SIGKILL to whoever is there after the grace; returns when no child is left."""
        self._own_slot.update(state="stopped")
        self._announcer.end_progress()
        for child in self._children.values():
            self._tell(child, Shutdown())
        until_s = time.monotonic() + grace_s
        while (
            left := [child for child in self._children.values() if not child.ended()]
        ) and time.monotonic() < until_s:
            self._links.wait(min(TICK_S, until_s - time.monotonic()), self._signals.fd)
            for _ in self._links.inbox.drain():
                pass
            if any(number != signal.SIGCHLD for number in self._signals.take()):
                break
        for child in left:
            if grace_s == _SHUTDOWN_GRACE_S:
                logger.warning("%s did not end within %g s; it is killed", child.seat.name, grace_s)
            child.signal(signal.SIGKILL)
        for child in self._children.values():
            child.process.wait()
        self._links.close()
