"""qcrl envs: which environments there are."""

import argparse

from rich.console import Console
from rich.table import Table

from qcrl.cli.main import Handler, Parser
from qcrl.envs import ENVIRONMENT_IDS, TASKS, make


def command(parser: Parser, arguments: list[str]) -> Handler:
    return run


def run(_: argparse.Namespace) -> int:
    table = Table("id", "observation", "action", "objects", "costs", "description", box=None)
    for id in ENVIRONMENT_IDS:
        env = make(id)
        costs = ", ".join(TASKS[id].costs if id in TASKS else env.costs)
        table.add_row(id, str(env.observation_size), str(env.action_size), objects(id), costs, env.description)
    print_table(table)
    return 0


def objects(id: str) -> str:
    if id not in TASKS:
        return "2 routes"
    counts = {kind: getattr(TASKS[id], kind) for kind in ("hazards", "buttons", "gremlins")}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def print_table(table: Table) -> None:
    """A table as wide as the terminal, or as wide as it needs to be where there is none."""
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)
