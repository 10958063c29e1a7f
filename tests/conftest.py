"""Compiled programs and bytecode are kept between test runs: compiling and starting processes dominate their time."""

import os
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(CACHE / "bytecode"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
