"""Hold torch, random generators and output still while private records are computed on."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__, {"rng_isolation": ("isolated_rng",), "torch_settings": ("certified",)}
)
