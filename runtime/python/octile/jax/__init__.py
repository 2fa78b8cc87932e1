"""FP8 quantisers, GEMMs and linear layers in JAX programs, on GPUs, or on the host if XLA's backend is "cpu".

docs/jax.md has an example. Arguments are checked during tracing: ValueError, TypeError and NotImplementedError name the
argument, its value and the allowed ones. Device errors become jax.errors.JaxRuntimeError, with the library's message.
"""

try:
    import jax as _jax
except ImportError as error:
    raise ImportError("octile.jax needs JAX: pip install 'jax>=0.10'") from error
if _jax.__version_info__ < (0, 10):
    raise ImportError(f"octile.jax needs jax 0.10 or newer, and this is {_jax.__version__}: pip install 'jax>=0.10'")

from octile.jax.functional import Quantized, gemm, quantize
from octile.jax.layers import experts, linear

__all__ = ["Quantized", "experts", "gemm", "linear", "quantize"]
