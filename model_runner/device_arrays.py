"""Host arrays to the device and back without waiting for it.

A plain copy from pageable memory, and any `.cpu()`, waits for everything launched before: with lookahead that would be
the whole next step. So arrays go up through pinned memory, and come down into pinned memory behind an event.
"""

from typing import Any

import numpy
import torch
from numpy.typing import NDArray


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on the device. On CPU it shares the array's memory, which must be writable."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def ids_to_device(ids: bytes, device: torch.device) -> torch.Tensor:
    """Packed int32 ids as int64: [ids]."""
    return to_device(numpy.frombuffer(ids, "<i4").astype(numpy.int64), device)


class HostCopy:
    """Tensors on their way to the host; what is launched after its construction does not delay them."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors[0].device.type == "cpu":
            self._tensors = tensors
            return
        self._tensors = tuple(
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for tensor in tensors
        )
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The tensors on the host, in the order given."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
