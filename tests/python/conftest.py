"""Tests of the installed package on the host device: `make test-torch`."""

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
