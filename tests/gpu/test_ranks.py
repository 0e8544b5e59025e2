"""Two ranks against one: on two GPUs over NCCL, or on one over gloo. Ranks on CPU are tested in
tests/integration_parallel."""

import shutil
import tempfile
from pathlib import Path

import numpy
import pytest
import torch

from model_runner.runner import ModelRunner
from protocol.sampling import SamplingParameters
from runtime.server_args import ServerArgs
from tests.gpu.conftest import Place, llama_config
from tests.gpu.test_steps import spread, started
from tests.integration_parallel.conftest import Replica


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_two_ranks_are_one() -> None:
    place = Place(torch.device("cuda", 0), None, None)
    sampling = SamplingParameters(temperature=0.0, logprobs=-1)
    one = started(ModelRunner(llama_config(place, attention_backend="flashinfer")), sampling)
    folder = Path(tempfile.mkdtemp(prefix="c"))
    replica = Replica(llama_config(place, attention_backend="flashinfer", args=ServerArgs(tp_size=2)), folder)
    try:
        two = started(replica.executor, sampling)  # type: ignore[arg-type]
        for _ in range(8):
            found, wanted = two.step(), one.step()
            assert found.logprobs is not None and wanted.logprobs is not None
            for mine, its in zip(found.logprobs, wanted.logprobs, strict=True):
                assert mine is not None and its is not None
                numpy.testing.assert_allclose(spread(mine), spread(its), rtol=0, atol=0.15)
            for slot, row in one.rows.items():
                row.outputs[:] = two.rows[slot].outputs
    finally:
        replica.close()
        shutil.rmtree(folder)
