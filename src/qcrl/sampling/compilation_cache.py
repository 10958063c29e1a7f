"""XLA's compilation cache: a program that was compiled once starts at once the next time."""

import contextlib
import os
from pathlib import Path

import jax


def use_cache() -> None:
    """Keep compiled programs in QCRL_CACHE (default ~/.cache/qcrl; empty: nowhere), unless JAX has a cache already."""
    if getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    with contextlib.suppress(OSError, RuntimeError):  # no cache, or no home, is slower, not wrong
        folder = os.environ.get("QCRL_CACHE")
        folder = str(Path.home() / ".cache" / "qcrl") if folder is None else folder
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
