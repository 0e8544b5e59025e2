"""Rotary position embedding in all its scalings, each a rule for the frequencies, fixed once at load.

Frequencies depend on the position alone, never on how long a sequence happens to be: keys in the pool are shared by
sequences of any length. Where a rule asks for the length (dynamic, longrope), it is the served context length.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RotaryTable:
    """Cosines and then sines of each token of a step, and the tokens' numbers, by which kernels find their row."""

    values: torch.Tensor  # [tokens, dim] float32
    numbers: torch.Tensor  # [tokens] int64: 0, 1, ...


@dataclass(frozen=True, eq=False)
class Rotary:
    """Frequencies of the rotated dimensions; `scale` multiplies cosines and sines. Layers that share one object share
    its table in each step."""

    inverse_frequencies: torch.Tensor  # [dim / 2] float32
    scale: float = 1.0
    interleaved: bool = False

    @property
    def dim(self) -> int:
        return 2 * self.inverse_frequencies.numel()

    def table(self, positions: torch.Tensor) -> RotaryTable:
        angles = positions.to(torch.float32)[:, None] * self.inverse_frequencies
        values = torch.cat((angles.cos(), angles.sin()), dim=-1) * self.scale
        return RotaryTable(values, torch.arange(positions.shape[0], device=positions.device))

    def to(self, device: torch.device) -> "Rotary":
        return Rotary(self.inverse_frequencies.to(device), self.scale, self.interleaved)


def rotate(heads: torch.Tensor, table: RotaryTable, interleaved: bool = False) -> torch.Tensor:
    """Rotates the leading dimensions of each head [tokens, heads, head_dim]; pairs are (i, i + dim / 2), or neighbours."""
    cosine, sine = table.values[:, None].chunk(2, dim=-1)
    rotated_dim = table.values.shape[-1]
    rotated, rest = heads[..., :rotated_dim].to(torch.float32), heads[..., rotated_dim:]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated.chunk(2, dim=-1)
    halves = (first * cosine - second * sine, second * cosine + first * sine)
    # An interleaved head leaves with its pairs apart: queries and keys are permuted alike, and only their products count.
    turned = torch.cat(halves, dim=-1).to(heads.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


@dataclass(frozen=True)
class RotarySettings:
    """What a scaling rule may read. `values` is the configuration's own block of scaling parameters."""

    dim: int
    theta: float
    context_tokens: int
    """The served context length."""
    max_position_embeddings: int
    values: Mapping[str, Any]

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"rope scaling needs a number for {key!r}, not {self.values.get(key)!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def exponents(self) -> torch.Tensor:
        return torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim


def _default(settings: RotarySettings) -> Rotary:
    return Rotary(1.0 / settings.theta ** settings.exponents())


def _linear(settings: RotarySettings) -> Rotary:
    return Rotary(1.0 / settings.theta ** settings.exponents() / settings.number("factor"))


def _dynamic(settings: RotarySettings) -> Rotary:
    """NTK-aware scaling of the base, for the served context length where that exceeds the trained one."""
    factor = settings.number("factor")
    ratio = max(1.0, settings.context_tokens / settings.max_position_embeddings)
    theta = settings.theta * (factor * ratio - (factor - 1)) ** (settings.dim / (settings.dim - 2))
    return Rotary(1.0 / theta ** settings.exponents())


def _llama3(settings: RotarySettings) -> Rotary:
    """Long wavelengths are divided by the factor, short ones left, the band between blended (Llama 3.1)."""
    plain = 1.0 / settings.theta ** settings.exponents()
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    trained = settings.number("original_max_position_embeddings", settings.max_position_embeddings)
    turns = trained * plain / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return Rotary((1 - blend) * plain / factor + blend * plain)


def _yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn(settings: RotarySettings) -> Rotary:
    """YaRN (arXiv 2309.00071): interpolation for slow dimensions, none for fast ones, a ramp between."""
    trained = settings.number("original_max_position_embeddings", settings.max_position_embeddings)
    factor = settings.number("factor", settings.max_position_embeddings / trained)
    scale = settings.optional_number("attention_factor")
    if scale is None:
        weight, whole = settings.optional_number("mscale"), settings.optional_number("mscale_all_dim")
        if weight and whole:
            scale = _yarn_magnitude(factor, weight) / _yarn_magnitude(factor, whole)
        else:
            scale = _yarn_magnitude(factor)

    def dimension(turns: float) -> float:
        return settings.dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(settings.theta))

    low = dimension(settings.number("beta_fast", 32.0))
    high = dimension(settings.number("beta_slow", 1.0))
    if settings.values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, settings.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(settings.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    plain = 1.0 / settings.theta ** settings.exponents()
    return Rotary(plain / factor * ramp + plain * (1 - ramp), scale)


def _longrope(settings: RotarySettings) -> Rotary:
    """LongRoPE: one divisor per dimension, the long set if the server admits sequences longer than the trained context."""
    trained = settings.number("original_max_position_embeddings", settings.max_position_embeddings)
    factor = settings.number("factor", settings.max_position_embeddings / trained)
    scale = settings.optional_number("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    key = "long_factor" if settings.context_tokens > trained else "short_factor"
    divisors = settings.values.get(key)
    if not isinstance(divisors, list | tuple) or len(divisors) != settings.dim // 2:
        raise ValueError(f"rope scaling needs {settings.dim // 2} numbers in {key!r}")
    return Rotary(1.0 / (torch.tensor(divisors, dtype=torch.float32) * settings.theta ** settings.exponents()), scale)


def _divided(settings: RotarySettings) -> Rotary:
    """One divisor per dimension, worked out beforehand (GGUF files hold Llama 3's scaling so)."""
    divisors = settings.values.get("divisors")
    if not isinstance(divisors, list | tuple) or len(divisors) != settings.dim // 2:
        raise ValueError(f"rope scaling needs {settings.dim // 2} numbers in 'divisors'")
    return Rotary(1.0 / settings.theta ** settings.exponents() / torch.tensor(divisors, dtype=torch.float32))


ROPE_TYPES: dict[str, Callable[[RotarySettings], Rotary]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "divided": _divided,
}
