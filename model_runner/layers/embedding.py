"""Vocabulary-parallel embedding and output head, which may share one weight."""

import torch
from torch.nn import functional

from model_runner.layers.parallel import Communicator
from model_runner.loading.weights import RowBlock, Weights
from model_runner.quantization.forms import WeightForm


def vocabulary_share(vocab_size: int, communicator: Communicator) -> slice:
    """This rank's rows; the last ranks may hold fewer, since vocabularies are seldom divisible."""
    size = -(-vocab_size // communicator.world)
    start = min(vocab_size, communicator.rank * size)
    return slice(start, min(vocab_size, start + size))


class Embedding:
    """Ids to vectors. Each rank looks up the ids that it holds; the others' rows are zero before the sum."""

    def __init__(self, weights: Weights, name: str, vocab_size: int, hidden_size: int) -> None:
        self.communicator = weights.communicator
        self.held = vocabulary_share(vocab_size, self.communicator)
        self.weight = weights.rows([RowBlock(f"{name}.weight", vocab_size, self.held)], hidden_size)
        weights.state.weight_bytes += self.weight.numel() * self.weight.element_size()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        if self.communicator.world == 1:
            return functional.embedding(ids, self.weight)
        absent = (ids < self.held.start) | (ids >= self.held.stop)
        vectors = functional.embedding((ids - self.held.start).masked_fill(absent, 0), self.weight)
        return self.communicator.all_reduce(vectors.masked_fill(absent[:, None], 0.0))


class Head:
    """Hidden states to logits of the whole vocabulary, in float32 on every rank."""

    def __init__(
        self, form: WeightForm, bias: torch.Tensor | None, vocab_size: int, communicator: Communicator
    ) -> None:
        self.form = form
        self.bias = bias
        self.vocab_size = vocab_size
        self.communicator = communicator

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.form.apply(hidden, self.bias)
        if self.communicator.world > 1:
            share_size = -(-self.vocab_size // self.communicator.world)
            logits = functional.pad(logits, (0, share_size - logits.shape[-1]))
            logits = self.communicator.all_gather_last(logits)[:, : self.vocab_size]
        return logits.to(torch.float32)


def load_head(
    weights: Weights, name: str, vocab_size: int, hidden_size: int, tied_to: Embedding | None, bias: bool = False
) -> Head:
    """The head of its own tensor, or of the embedding's weight (which stays one tensor while the form is dense)."""
    held = vocabulary_share(vocab_size, weights.communicator)
    if tied_to is not None:
        form = weights.state.make_form(tied_to.weight)
        if getattr(form, "weight", None) is not tied_to.weight:
            weights.state.weight_bytes += form.nbytes
    else:
        form = weights.form(weights.rows([RowBlock(f"{name}.weight", vocab_size, held)], hidden_size))
    added = weights.tensor(f"{name}.bias", (vocab_size,), (held,)) if bias else None
    return Head(form, added, vocab_size, weights.communicator)
