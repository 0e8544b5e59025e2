"""The choice of a scheduler replica for a request, from what replicas publish and what this process sent them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from protocol.ids import count_ids
from tokenizer_manager.prefix_affinity import PrefixAffinity, prefix_blocks

LoadBalance = Literal["cache_aware", "round_robin", "least_loaded"]

# One more request at a replica delays a newcomer about as much as computing this many prompt tokens.
_TOKENS_PER_REQUEST = 256


@dataclass(frozen=True)
class ReplicaLoad:
    """What a replica says of itself on the status board."""

    waiting: int = 0
    running: int = 0
    steps: int = 0


class Router:
    """Chooses among live replicas. `read_loads` gives the newest snapshot of each replica that has one."""

    def __init__(self, policy: LoadBalance, read_loads: Callable[[], dict[int, ReplicaLoad]]) -> None:
        self._policy = policy
        self._read_loads = read_loads
        self._affinity = PrefixAffinity()
        self._live: list[int] = []
        self._turn = 0
        # Requests sent since the snapshot last moved: they are in no snapshot yet.
        self._unseen: dict[int, tuple[ReplicaLoad, int]] = {}

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(self._live)

    def up(self, replica: int) -> None:
        """The replica takes requests, with an empty cache if it was known before."""
        self.down(replica)
        self._live = sorted([*self._live, replica])

    def down(self, replica: int) -> None:
        if replica in self._live:
            self._live.remove(replica)
            self._affinity.forget(replica)
            self._unseen.pop(replica, None)

    def choose(self, prompt_ids: bytes, namespace: str, forced: int | None = None) -> int | None:
        """The replica for a request that is about to be sent; None if none can take it."""
        replica = self.favourite(prompt_ids, namespace) if forced is None else forced
        if replica is None or replica not in self._live:
            return None
        self._turn += 1
        if self._policy != "round_robin":
            load = self._read_loads().get(replica, ReplicaLoad())
            before, unseen = self._unseen.get(replica, (load, 0))
            self._unseen[replica] = (load, unseen + 1 if before == load else 1)
            if self._policy == "cache_aware":
                self._affinity.record(prefix_blocks(prompt_ids, namespace), replica)
        return replica

    def favourite(self, prompt_ids: bytes, namespace: str) -> int | None:
        """The replica that `choose` would take now, without counting anything as sent."""
        count = len(self._live)
        if count == 0:
            return None
        # Ties go round, so that equals share.
        order = [self._live[(self._turn + offset) % count] for offset in range(count)]
        if self._policy == "round_robin" or count == 1:
            return order[0]
        loads = self._read_loads()
        matched: dict[int, int] = {}
        if self._policy == "cache_aware":
            matched = self._affinity.matched_tokens(prefix_blocks(prompt_ids, namespace))
        tokens = count_ids(prompt_ids)

        def cost(replica: int) -> int:
            to_compute = tokens - matched.get(replica, 0) if self._policy == "cache_aware" else 0
            return to_compute + _TOKENS_PER_REQUEST * self._load(replica, loads)

        return min(order, key=cost)

    def shortest_queue(self) -> ReplicaLoad | None:
        """The load of the live replica with the fewest waiting requests; None if nothing is known of one."""
        loads = self._read_loads()
        if not self._live or any(replica not in loads for replica in self._live):
            return None
        return min((loads[replica] for replica in self._live), key=lambda load: load.waiting)

    def _load(self, replica: int, loads: dict[int, ReplicaLoad]) -> int:
        load = loads.get(replica, ReplicaLoad())
        before, unseen = self._unseen.get(replica, (load, 0))
        return load.waiting + load.running + (unseen if before == load else 0)
