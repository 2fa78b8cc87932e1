"""FP8 quantisers, GEMMs and linear layers in JAX programs: on the host where XLA's backend is "cpu", and on GPUs.

docs/jax.md has an example. Arguments are checked while JAX traces: ValueError, TypeError and NotImplementedError name
the argument, its value and what is allowed. Errors of a device become jax.errors.JaxRuntimeError, with the library's
sentence.
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("octile.jax needs JAX: pip install 'jax>=0.10'") from error

from octile.jax.functional import Quantized, gemm, quantize
from octile.jax.layers import experts, linear

__all__ = ["Quantized", "experts", "gemm", "linear", "quantize"]
