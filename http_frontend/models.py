"""The models that clients may name, and what is said of them."""

import hashlib
from typing import Any

from http_frontend.contract.review import Review
from protocol.errors import RequestError
from runtime.engine_config import EngineConfig


class ServedModels:
    """Exact served names first; what remains is unknown, with or without a colon in it."""

    def __init__(self, config: EngineConfig, started_s: int) -> None:
        self.names = config.model.served_names
        self.fingerprint = _fingerprint(config)
        self._config = config
        self._started_s = started_s

    def resolve(self, name: str | None, review: Review) -> tuple[str, str]:
        """(name that the answer carries, name that is served); 404 for an unknown one unless --unknown-model accept."""
        if name is None or name == "":
            return self.names[0], self.names[0]
        if name in self.names:
            return name, name
        if self._config.args.unknown_model == "accept":
            review.tell("model", "changed", "unknown name; answered by the served model", self.names[0])
            return name, self.names[0]
        raise self.unknown(name)

    def unknown(self, name: str) -> RequestError:
        served = ", ".join(self.names)
        return RequestError(
            f"model: {name[:256]!r} does not exist; this server has: {served}",
            param="model",
            code="model_not_found",
            status=404,
            type="not_found_error",
        )

    def card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started_s,
            "owned_by": "candor",
            "root": self._config.model.name,
            "parent": None,
            "max_model_len": self._config.model.context_length,
        }


def _fingerprint(config: EngineConfig) -> str:
    """Changes with whatever could change an answer: version, weights, arithmetic."""
    model = config.model
    parts = (config.version, model.path, model.architecture, config.dtype, config.quantization, config.device,
             config.attention_backend, str(config.args.tp_size))  # fmt: skip
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
