"""qcrl algos: which algorithms there are."""

import argparse

from rich.markup import escape
from rich.table import Table

from qcrl.algos import ALGORITHMS, PRESETS
from qcrl.cli import Handler, Parser
from qcrl.commands.envs import print_table
from qcrl.constraints import Outage
from qcrl.setup import TRAINED_UNDER


def command(parser: Parser, arguments: list[str]) -> Handler:
    return run


def run(_: argparse.Namespace) -> int:
    table = Table("id", "trains under", "presets", "description", box=None)
    for name, kind in ALGORITHMS.items():
        trained_under = TRAINED_UNDER.get(name, Outage)
        description = escape((kind.__doc__ or "").partition("\n")[0])
        table.add_row(name, trained_under.__name__, ", ".join(PRESETS[name]), description)
    print_table(table)
    return 0
