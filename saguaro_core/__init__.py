"""Saguaro: speculative speculative decoding (Kumar, Dao, May, ICLR 2026) on two devices.

`SaguaroSSD` is the Python entry. Importing this package, `.events`, `.trace` or `.summary` imports neither torch nor
transformers: a recorded trace can be replayed where neither is installed.
"""

__all__ = ["SaguaroSSD"]


def __getattr__(name: str):
    if name == "SaguaroSSD":
        from .engine import SaguaroSSD

        return SaguaroSSD
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
