"""The rooms of the house: who may import whom, no cycles, sizes, and that what is declared is imported."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qcrl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAYERS = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]


def modules():
    """Module names and their files; a package is called by its own name."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


FILES = dict(modules())


def imported(path):
    """All modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in FILES else node.module


GRAPH = {name: {each for each in imported(path) if each in FILES and each != name} for name, path in FILES.items()}


def rank(module):
    return next(i for i, layer in enumerate(LAYERS) if any(_within(module, room) for room in layer.split(" | ")))


def _within(module, room):
    return module == f"qcrl.{room}" or module.startswith(f"qcrl.{room}.")


@pytest.mark.parametrize("module", [name for name in FILES if name not in ("qcrl", "qcrl.version")])
def test_a_room_imports_only_from_rooms_below_it(module):
    above = [other for other in GRAPH[module] if other not in ("qcrl", "qcrl.version") and rank(other) < rank(module)]
    assert not above


def test_there_are_no_cycles_lazy_imports_included():
    left = {name: set(edges) for name, edges in GRAPH.items() if name != "qcrl"}
    for edges in left.values():
        edges.discard("qcrl")
    while free := [name for name, edges in left.items() if not edges & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_nothing_above_sampling_asks_where_an_environment_runs():
    above = [name for name in FILES if name not in ("qcrl", "qcrl.version") and rank(name) < rank("qcrl.sampling")]
    assert [name for name in above if re.search(r"isinstance\([^)]*HostEnv", FILES[name].read_text())] == []


def test_no_module_is_too_long_and_no_line():
    assert [name for name, path in FILES.items() if len(path.read_text().splitlines()) > 350] == []
    lines = [line for path in FILES.values() for line in path.read_text().splitlines()]
    assert [line for line in lines if len(line) > 120] == []


def test_any_is_the_exception():
    mentions = [
        line for path in FILES.values() for line in path.read_text().splitlines() if re.search(r"\bAny\b", line)
    ]
    assert len(mentions) <= 150


def test_what_is_declared_is_imported_and_the_other_way_round():
    declared = {re.split(r"[\[<>=~! ]", each)[0].lower() for each in PROJECT["project"]["dependencies"]}
    extras = {
        re.split(r"[\[<>=~! ]", each)[0].lower()
        for group in PROJECT["project"]["optional-dependencies"].values()
        for each in group
    }
    names = {name.split(".")[0] for path in FILES.values() for name in imported(path)}
    names -= {"qcrl", *sys.stdlib_module_names}
    known = packages_distributions()
    homes = {name: {home.lower() for home in known.get(name, [name])} for name in names}
    optional = {"torch", "cloudpickle", *extras, *(each.replace("-", "_") for each in extras)}
    assert [name for name, own in homes.items() if not own & (declared | optional)] == []
    assert declared - set().union(*homes.values()) == set()


def test_the_diffs_in_the_page_on_the_house_apply():
    diffs = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.S)
    assert len(diffs) == 5
    for diff in diffs:
        applied = subprocess.run(["git", "apply", "--check", "-"], input=diff, cwd=ROOT, capture_output=True, text=True)
        assert applied.returncode == 0, applied.stderr
