"""qcrl algos: which algorithms there are."""

import argparse

from rich.markup import escape
from rich.table import Table

from qcrl.algos.find import algorithms
from qcrl.cli.envs import print_table
from qcrl.cli.main import Handler, Parser


def command(parser: Parser, arguments: list[str]) -> Handler:
    return run


def run(_: argparse.Namespace) -> int:
    table = Table("id", "trains under", "presets", "description", box=None)
    for name, kind in algorithms().items():
        description = escape((kind.__doc__ or "").partition("\n")[0])
        under = " & ".join(each.__name__ for each in (kind.trains_under, *kind.also_under))
        table.add_row(name, f"{under}{', several' if kind.several else ''}", ", ".join(kind.presets), description)
    print_table(table)
    return 0
