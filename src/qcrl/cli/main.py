"""The command line, a thin layer over the public names. A command is a file in cli/ and a line in COMMANDS."""

import _thread
import argparse
import contextlib
import difflib
import errno
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NoReturn

from qcrl.errors import UserError
from qcrl.named import trust
from qcrl.output import unbreakable
from qcrl.version import __version__

COMMANDS = {
    "train": "train policies under an outage constraint",
    "evaluate": "measure outage, costs and return of trained policies",
    "certify": "certify the outage of a trained policy, or verify a certificate",
    "export": "write a trained policy as ONNX, or as a file that needs no JAX",
    "plot": "draw learning curves, the multiplier, or the distribution of costs",
    "render": "film an episode of a trained policy",
    "report": "make one page of curves, costs, certificates and replays",
    "sweep": "train and evaluate a grid of algorithms, environments and constraints",
    "reproduce": "repeat a figure of the paper, and judge its claims",
    "check-env": "check an environment of your own, and its costs",
    "envs": "list the environments",
    "algos": "list the algorithms",
    "bench": "measure speed and agreement of the engines",
}
"""Name and meaning; the file of the same name beside this one has `command(parser, arguments) -> Handler`."""

ALSO_CALLED = {
    "--lr": "--learning-rate",
    "--seed": "--first-seed",
    "--cost-limit": "--limit",
    "--probability": "--outage",
    "--timesteps": "--steps",
    "--total-timesteps": "--steps",
    "--total-steps": "--steps",
    "--gamma": "--discount",
}
"""What options are called elsewhere: suggested where a command has no option of that name."""

Handler = Callable[[argparse.Namespace], int]
"""Runs a command with its parsed options, and returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Mistakes are one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        other, _, typed = message.partition("unrecognized arguments: ")
        option, known = re.split("[ =]", typed)[0], [] if other else list(self._option_string_actions)
        usual = ALSO_CALLED.get(option)
        near = [usual] if usual in known else difflib.get_close_matches(option, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{message}; {hint}see {self.prog} --help")


def main(argv: list[str] | None = None) -> int:
    """Run a command. The exit code is 0 on success, 2 on a user's mistake, 1 where a training broke down."""
    _see_modules_here()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA comments on its cache; its errors are exceptions anyway
    with unbreakable() as out, _insisting():
        code = _guarded(sys.argv[1:] if argv is None else argv)
        out.flush()
        if isinstance(out.error, OSError) and out.error.errno == errno.ENOSPC:
            print("qcrl: what was to be printed could not be written: the disk is full", file=sys.stderr)
            return code or 2
        return code


@contextlib.contextmanager
def _insisting() -> Iterator[None]:
    """What Python drops, as in a finalizer: Ctrl-C stops the command all the same, anything else is one line."""
    before = sys.unraisablehook

    def once_more(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:  # one line: nothing ends by it
            what = f"{getattr(lost.exc_type, '__name__', lost.exc_type)}: {lost.exc_value}"
            print(f"warning: {what} was raised in {lost.object!r}, and is ignored", file=sys.stderr)

    sys.unraisablehook = once_more
    try:
        yield
    finally:
        sys.unraisablehook = before


def _see_modules_here() -> None:
    """`python script.py` sees the modules beside it, and so shall `module:function`."""
    with contextlib.suppress(OSError):  # the working folder may have been removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


def _guarded(arguments: list[str]) -> int:
    """The exit code, whatever happens."""
    try:
        return _run(arguments)
    except UserError as error:
        print(f"qcrl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        print(f"qcrl: {str(interrupt) or 'stopped; what was saved before is kept'}", file=sys.stderr)
        return getattr(interrupt, "exit_code", 130)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"qcrl: cannot read or write{where}: {error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print("qcrl: there is not enough memory for that; give fewer lanes, environments or units", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name.startswith("-"):
        _general_options().parse_args(arguments or [name])
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no command {name!r}; {hint}the commands are {', '.join(COMMANDS)}")
    parser, handler = parser_of(name, arguments[1:])
    args = parser.parse_args(arguments[1:])
    del args.trust
    return handler(args)


def parser_of(name: str, arguments: list[str]) -> tuple[Parser, Handler]:
    """The parser of a command, which may depend on what is parsed, and what runs the command."""
    parser = Parser(prog=f"qcrl {name}", description=_sentence(COMMANDS[name]), allow_abbrev=False)
    early = Parser(add_help=False, allow_abbrev=False)
    for each in (early, parser):
        each.add_argument(
            "--trust",
            action="append",
            default=[],
            metavar="MODULE",
            help="let a run name an environment, cost, algorithm or constraint of this module of yours (default: none)",
        )
    trust(*early.parse_known_args(arguments)[0].trust)
    return parser, import_module(f"qcrl.cli.{name.replace('-', '_')}").command(parser, arguments)


def _general_options() -> Parser:
    parser = Parser(
        prog="qcrl",
        description="Reinforcement learning under an outage constraint: Pr(episode cost > limit) <= probability.",
        epilog="commands:\n" + "\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qcrl {__version__}")
    parser.add_argument(
        "command", nargs="?", help="one of the commands below; qcrl COMMAND --help explains its options"
    )
    return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())
