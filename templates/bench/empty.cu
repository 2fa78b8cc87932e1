// A kernel that only waits. Its time is the cost of one node of a CUDA graph.
#ifndef OCTILE_EMITTED
#include "lib/launch.cuh"
#define OCTILE_KERNEL_NAME octile_bench_empty
#endif

extern "C" __global__ void OCTILE_KERNEL_NAME() { wait_for_previous_kernel(); }
