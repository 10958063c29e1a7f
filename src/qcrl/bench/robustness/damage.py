"""Damage to the files of a run, and to the options of a training, drawn by Hypothesis."""

import csv
import io
import json
from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import strategies as st

from qcrl.algos import hyperparameters
from qcrl.algos.find import find
from qcrl.kinds import Json, Tree

ODD: tuple[Tree, ...] = (None, True, -1, 0, 3, 1e300, 10**30, "", "x", "os:abort", [], [1], [[]], {}, {"a": 1}, -0.5)
"""What stands where something else should."""
WHOLE = (b"", b"{}", b"[]", b"null", b"0", b'"x"', b"\xff\xfe\x00", b"[" * 3000, b"{" * 3000, b"NaN", b"\x00" * 100)
"""What stands in place of a whole file."""
COUNTS = ("-1", "0", "1", "3", "4294967296", "1000000000", "9" * 400, "nan", "inf", "x", "")
SHARES = ("-1", "0", "1", "0.5", "1e300", "1e-300", "nan", "inf", "-inf", "x", "", "9" * 400)
TEXTS = (
    *("", "é", "\udcff", "9" * 400, "../..", "/", ".", "/dev/null", "/dev/full", "$x^", "a" * 5000, "it.html"),
    *("nowhere/it.png", "it.gif", "it.onnx", "it.safetensors", "nan", "os:abort", "[", "-"),
)
NUMBERS = (
    *("-1", "0", "0.5", "1", "7", "1e9", "1e18", "1e300", "-1e300", "inf", "-inf", "nan", "1e-300", ""),
    *("x", "none", "true", "1,2", "[]"),
)
GENERAL = (
    "limit",
    "outage",
    "steps",
    "seeds",
    "first-seed",
    "checkpoint-interval",
    "preset",
    "workers",
    "step-timeout",
)


class Damage(NamedTuple):
    """A file as it is now, and whether nothing that needs it may go on as if nothing had happened."""

    content: bytes
    breaks: bool
    what: str


@st.composite
def damaged(draw: st.DrawFn, name: str, content: bytes) -> Damage:
    """A file of a run, damaged in one place, or as a whole."""
    kinds = ["cut", "flip", "insert", "whole"]
    own = {".json": ["value", "remove"], ".csv": ["cell", "row", "header"]}
    kinds += 4 * own.get(name[name.rfind(".") :], [])
    kind = draw(st.sampled_from(kinds))
    arrays = name.endswith(".safetensors")
    match kind:
        case "cut":
            end = draw(st.integers(0, len(content) - 3))
            return Damage(content[:end], arrays or name.endswith(".json"), f"cut after {end} bytes")
        case "flip":
            place, bit = draw(st.integers(0, len(content) - 1)), draw(st.integers(0, 7))
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            return Damage(bytes(flipped), arrays, f"bit {bit} of byte {place} flipped")
        case "insert":
            place, more = draw(st.integers(0, len(content) - 1)), draw(st.binary(min_size=1, max_size=4))
            return Damage(content[:place] + more + content[place:], arrays, f"{more!r} at byte {place}")
        case "whole":
            other = draw(st.sampled_from(WHOLE))
            return Damage(other, True, f"only {other[:10]!r}")
        case "value" | "remove":
            return _changed_json(draw, json.loads(content), kind == "remove")
        case _:
            return _changed_table(draw, content.decode(), kind)


def _changed_json(draw: st.DrawFn, content: Json, remove: bool) -> Damage:
    place, key = draw(st.sampled_from(list(_places(content))))
    if remove:
        del place[key]
        return Damage(json.dumps(content).encode(), False, f"without {key}")
    other = draw(st.sampled_from(ODD))
    before, place[key] = place[key], other
    return Damage(json.dumps(content).encode(), False, f"{key} is {other!r}, not {str(before)[:40]}")


def _places(content: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Every value inside, as the container and the key."""
    for key, value in list(content.items() if isinstance(content, dict) else enumerate(content)):
        yield content, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _changed_table(draw: st.DrawFn, text: str, kind: str) -> Damage:
    rows = list(csv.reader(io.StringIO(text)))
    line = 0 if kind == "header" else draw(st.integers(1, len(rows) - 1))
    column = draw(st.integers(0, len(rows[line]) - 1))
    breaks = False
    if kind == "row":
        rows[line] = rows[line][:column] + ["0"] * draw(st.integers(0, 2))
        breaks = 0 < line < len(rows) - 1 and len(rows[line]) not in (0, len(rows[0]))
    else:
        other = draw(st.sampled_from(["", "x", "nan", "1e400", "-1", "é", "0.5", '"', "None", "1,2"]))
        rows[line][column] = other
        breaks = kind == "cell" and 0 < line < len(rows) and other in ("", "x", "é", "None", '"', "1,2")
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return Damage(out.getvalue().encode(), breaks, f"line {line + 1}, column {column + 1} changed")


@st.composite
def options(draw: st.DrawFn, algorithm: str) -> list[str]:
    """One or two options of `qcrl train` with values that may be anything."""
    fields = [name.replace("_", "-") for name in hyperparameters.field_names(find(algorithm))]
    names = draw(st.lists(st.sampled_from([*fields, *GENERAL]), min_size=1, max_size=2, unique=True))
    return [f"--{name}={draw(st.sampled_from(NUMBERS))}" for name in names]
