"""What a GPU is asked before it serves: how much memory a step takes, and which graphs its decode steps replay."""

import torch

from model_runner.attention.interface import AttentionBackend
from model_runner.attention.registry import build_attention
from model_runner.decode_graphs import DecodeGraphs, GraphAttention, cuda_capture, dummy_step
from model_runner.layers.experts import MixtureOfExperts
from model_runner.models.decoder import Decoder
from model_runner.step import CausalModel
from runtime.engine_config import EngineConfig

LOGITS_COPIES = 6
"""Of float32 logits that the sampler may hold at once: masked, sorted with their ids (8 bytes), noise, probabilities."""


@torch.inference_mode()
def measure_step_bytes(config: EngineConfig, model: CausalModel) -> int:
    """Memory that the largest step needs beside weights and KV pool; 0 on CPU, where the pool is sized beforehand.

    Runs a step of `max_batch_tokens` prompt tokens on a pool of one page, which also has libraries compile and load
    what they need before the pool takes the memory they would have used.
    """
    device = model.device
    if device.type != "cuda":
        return 0
    attention = build_attention(config.attention_backend, device, model.dtype)
    attention.bytes_per_page(model.layer_specs, config.page_size)
    attention.make_pool(model.layer_specs, 1, config.page_size)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    tokens_per_row = min(config.max_batch_tokens, config.model.context_length)
    rows = max(1, config.max_batch_tokens // tokens_per_row)
    for inputs in (dummy_step(rows, config.page_size, device, tokens_per_row), dummy_step(1, config.page_size, device)):
        attention.prepare(inputs)
        hidden = model.forward(inputs, attention)
        model.logits(hidden[inputs.logits_indices])
    torch.cuda.synchronize(device)
    step_bytes = torch.cuda.max_memory_allocated(device) - before
    del attention, hidden, inputs
    torch.cuda.empty_cache()
    return step_bytes + LOGITS_COPIES * 4 * model.vocab_size * config.max_running_requests


@torch.inference_mode()
def capture_graphs(
    config: EngineConfig, model: CausalModel, attention: AttentionBackend, rows: int
) -> DecodeGraphs | None:
    """Graphs of the decode steps of up to `rows` rows; None where there can be none."""
    wanted = model.device.type == "cuda" and not config.args.disable_cuda_graph
    if not wanted or not isinstance(attention, GraphAttention) or not can_be_captured(model):
        return None
    inputs = dummy_step(1, config.page_size, model.device)
    attention.prepare(inputs)
    model.forward(inputs, attention)
    graphs = DecodeGraphs(model, attention, rows, cuda_capture())
    graphs.capture_all(config.page_size, config.model.context_length)
    return graphs


def can_be_captured(model: CausalModel) -> bool:
    """Native models whose steps never wait for the device. Those do with experts of which the host must know how many
    tokens each gets, and where ranks share a GPU."""
    if not isinstance(model, Decoder) or model.communicator.waits:
        return False
    mixtures = [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, MixtureOfExperts)]
    return not any(mixture.experts.waits for mixture in mixtures)
