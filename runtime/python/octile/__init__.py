"""FP8 quantisers and GEMMs for NVIDIA Hopper GPUs, generated, compiled and cached at run time.

``octile.torch`` trains and serves PyTorch models in FP8, ``octile.jax`` has layers for JAX programs, ``octile.numpy``
runs the same operations on the host, and ``python -m octile`` is the command ``octile``.
"""

from octile._paths import command, include_directory, library

__all__ = ["__version__", "command", "include_directory", "library"]


def __getattr__(name: str) -> str:
    # The version is that of the library in use, which is opened only if somebody asks.
    if name == "__version__":
        from octile import _c

        return _c.version()
    raise AttributeError(f"module 'octile' has no attribute {name!r}")
