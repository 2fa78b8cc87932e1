"""Tests of the installed package on the host device: `make test-torch`."""

import gc

import inductor_settings  # noqa: F401
import pytest
import torch
import torch.distributed as dist

torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def one_rank(device, tmp_path):
    """Makes this process the only one of a group."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pytest_runtest_setup(item):
    """Skips a test marked gpu, or gpu(2), without so many GPUs."""
    if mark := item.get_closest_marker("gpu"):
        wanted, found = mark.args[0] if mark.args else 1, torch.cuda.device_count()
        if found < wanted:
            pytest.skip(f"needs {wanted} GPU{'s' * (wanted > 1)}, PyTorch finds {found}")
        # A weight's comparisons on a device count as long as it is kept, and cycles keep those of earlier tests.
        gc.collect()
