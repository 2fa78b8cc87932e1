"""Tests of the installed package on the host device: `make test-torch`."""

import pytest
import torch
from torch._inductor import cpu_vec_isa

torch.set_num_threads(2)

# Inductor compiles a program for each vector instruction set of the CPU to see which the compiler knows. Tests need
# none, and this halves what a first compile takes.
cpu_vec_isa.valid_vec_isa_list = list


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
