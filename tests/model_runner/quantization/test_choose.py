"""Forms of weights that the plain decoder computes with."""

import pytest
import torch

from model_runner.quantization.choose import choose_form
from model_runner.quantization.forms import DenseForm


def test_dense() -> None:
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    form = choose_form("none", "cpu")(weight)
    assert isinstance(form, DenseForm) and form.nbytes == 6 * 4 * 4
    inputs, bias = torch.ones(3, 4), torch.arange(6.0)
    torch.testing.assert_close(form.apply(inputs, bias), weight.sum(1) + bias.expand(3, 6))
    torch.testing.assert_close(form.apply(inputs, None), weight.sum(1).expand(3, 6))


@pytest.mark.parametrize(("device", "hint"), [("cpu", "--attention-backend cpu"), ("cuda", "with this backend")])
def test_forms_that_are_not_there_are_named(device: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"--quantization w8a8 has no kernels on device '{device}'.*{hint}"):
        choose_form("w8a8", device)
