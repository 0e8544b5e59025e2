"""How many pages the KV pool gets."""

import torch

from runtime.engine_config import EngineConfig

SCRATCH_PAGES = 1


class TooLittleMemory(Exception):
    """The pool can't hold one sequence of useful length; the message says what was there and what to change."""


def count_pages(config: EngineConfig, bytes_per_page: int, device: torch.device, activation_bytes: int = 0) -> int:
    """Pages of the pool, the scratch page included.

    `config.kv_tokens` decides where it is set. On CUDA it may be None: then the pool takes what `mem_fraction_static`
    leaves beside the weights (already loaded) and `activation_bytes`.
    """
    if config.kv_tokens is not None:
        pages = -(-config.kv_tokens // config.page_size)
    else:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        budget = int(total_bytes * config.args.mem_fraction_static) - (total_bytes - free_bytes) - activation_bytes
        pages = budget // bytes_per_page - SCRATCH_PAGES
    if pages < 1:
        raise TooLittleMemory(
            f"no memory is left for the KV cache: one page of {config.page_size} tokens takes {bytes_per_page} bytes; "
            "raise --mem-fraction-static or choose a smaller model"
        )
    return pages + SCRATCH_PAGES
