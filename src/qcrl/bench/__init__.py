"""Measurements: speed of the environments, agreement of the engines, speed of training."""

import argparse
import importlib
import os
import platform
from collections.abc import Callable, Sequence


def main(
    what: str,
    *options: str,
    parser: type[argparse.ArgumentParser] = argparse.ArgumentParser,
    command: Callable[[list[str]], int] | None = None,
) -> int:
    """Runs `qcrl bench WHAT OPTIONS`. `parser` says what happens to mistakes in them; `command` is qcrl itself."""
    module = importlib.import_module(f"qcrl.bench.{what}")
    made = parser(prog=f"qcrl bench {what}", description=module.__doc__)
    module.add_options(made)
    made.set_defaults(main=command)
    return module.run(made.parse_args(list(options))) or 0


def count(text: str) -> int:
    """The type of options that say how many."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def hardware() -> str:
    """One line on what the numbers were measured on."""
    import jax

    device = jax.devices()[0]
    return (
        f"{device.device_kind if device.platform != 'cpu' else 'CPU only'}, {os.cpu_count()} cores, "
        f"jax {jax.__version__}, Python {platform.python_version()}"
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows as a Markdown table: what the docs show is what the command prints."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print_row(row)


def print_row(row: Sequence[object]) -> None:
    print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
