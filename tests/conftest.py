"""Compiling and starting processes dominate the tests' time: programs are compiled plainly, and kept between runs."""

import mmap
import os
from importlib.util import find_spec
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache"
PLAIN = ("xla_cpu_use_fusion_emitters=false", "xla_backend_optimization_level=0")
"""A training compiles in a quarter of the time and runs hardly slower. XLA_FLAGS, empty or not, leave this out."""


def known(flag: str) -> bool:
    """Whether the installed XLA has this flag: one that it does not know ends the process."""
    name = flag.split("=")[0].encode()
    for path in Path(find_spec("jaxlib").origin).parent.glob("*.so"):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(name) >= 0:
                return True
    return False


if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(f"--{flag}" for flag in PLAIN if known(flag))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(CACHE / "bytecode"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
