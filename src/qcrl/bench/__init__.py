"""Measurements: speed of the environments, agreement of the engines, speed of training."""

import argparse
import importlib
import os
import platform
from collections.abc import Callable, Sequence

from qcrl.errors import UserError
from qcrl.kinds import Settings


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


def add_changes(parser: argparse.ArgumentParser) -> None:
    """The option that `changes` reads."""
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="other hyper-parameters (default: none)"
    )


def changes(args: argparse.Namespace) -> Settings:
    """Hyper-parameters that were given by name."""
    from qcrl.algos.hyperparameters import parse  # not above: --help need not wait for JAX

    pairs = [text.partition("=") for text in args.set]
    for name, equals, _ in pairs:
        if not equals:
            raise UserError(f"--set {name} has no value; write it like --set num_envs=64")
    return {name: parse(value) for name, _, value in pairs}


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
