"""What Inductor does in every process of tests.

It compiles a program for each vector instruction set of the CPU to see which the compiler knows. Tests need none, and
this halves what a first compile takes. The width is part of a graph's key in Inductor's cache, so graphs of processes
with vectors are not taken.
"""

from torch._inductor import config, cpu_vec_isa

cpu_vec_isa.valid_vec_isa_list = list
config.cpp.simdlen = 1
