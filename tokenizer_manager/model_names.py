"""Which model a request means: served names, exact match first (they may hold colons), then `base:adapter`."""

from dataclasses import dataclass

from protocol.errors import RequestError
from protocol.requests import Adjustment


@dataclass(frozen=True)
class ModelChoice:
    """The adapter to use (None: the base model), and what was done about an unknown name."""

    adapter: str | None = None
    adjustments: tuple[Adjustment, ...] = ()


class ModelNames:
    """The names that this server answers to."""

    def __init__(
        self, served: tuple[str, ...], *, accept_unknown: bool, adapters: frozenset[str] = frozenset()
    ) -> None:
        self._served = served
        self._accept_unknown = accept_unknown
        self._adapters = adapters

    def choose(self, model: str, adapter: str | None = None) -> ModelChoice:
        """The choice for a request's model name and adapter field; RequestError 404 that lists what exists.

        An empty name means the model that there is.
        """
        if adapter is not None:
            if adapter not in self._adapters:
                raise self._not_found(f"There is no adapter {adapter!r}", "adapter")
            return ModelChoice(adapter)
        if not model or model in self._served:
            return ModelChoice()
        if model in self._adapters:
            return ModelChoice(model)
        base, colon, name = model.rpartition(":")
        if colon and base in self._served:
            if name in self._adapters:
                return ModelChoice(name)
            raise self._not_found(f"The model {base!r} has no adapter {name!r}", "model")
        if self._accept_unknown:
            reason = "no such model; answered by the served one (--unknown-model accept)"
            return ModelChoice(None, (Adjustment("model", "changed", reason, value=self._served[0]),))
        raise self._not_found(f"There is no model {model!r}", "model")

    def _not_found(self, what: str, param: str) -> RequestError:
        names = [*self._served, *(f"{self._served[0]}:{adapter}" for adapter in sorted(self._adapters))]
        return RequestError(
            f"{what}. This server has: {', '.join(names)}.",
            param=param,
            code="model_not_found",
            status=404,
            type="not_found_error",
        )
