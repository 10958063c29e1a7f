"""Tables of numbers in CSV files, column by column."""

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qcrl.errors import UserError
from qcrl.runs.files import plain

WHOLE = ("seed", "iteration", "env_steps", "episode")
"""Columns of whole numbers."""


def read_columns(path: Path, required: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of a CSV file of numbers. Its last row may be torn: a training may be writing it."""
    advice = "give the folder of a run that has trained, or a file like its metrics.csv"
    try:
        with open(plain(path), newline="", encoding="utf-8") as file:
            names = next(csv.reader(file), [])
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); {advice}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a table ({error}); {advice}") from None
    missing = [name for name in required if name not in names]
    if not names or missing or len(set(names)) < len(names):
        what = f"has no column {', '.join(missing)}" if missing else "has no header, or a column twice"
        raise UserError(f"{path} {what}; {advice}")
    numbers = _numbers(path, names)
    return _cells(path, names, advice) if numbers is None else numbers


def _numbers(path: Path, names: list[str]) -> dict[str, np.ndarray] | None:
    """All columns, read as fast as can be; None where something in them needs a closer look."""
    try:
        with open(path, encoding="utf-8") as file, warnings.catch_warnings(action="error"):
            rows = np.loadtxt(file, delimiter=",", skiprows=1, comments=None, ndmin=2)
    except (ValueError, UserWarning):
        return None
    whole = [name in WHOLE for name in names]
    if rows.shape[1] != len(names) or not _is_whole(rows[:, whole]).all():
        return None
    return {name: rows[:, i].astype(int if name in WHOLE else float) for i, name in enumerate(names)}


def _cells(path: Path, names: list[str], advice: str) -> dict[str, np.ndarray]:
    """All columns, read cell by cell: says which of them is wrong."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [(rows.line_num, row) for rows in [csv.reader(file)] for row in rows][1:]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a table ({error}); {advice}") from None
    body = rows[:-1] + [row for row in rows[-1:] if len(row[1]) == len(names)]
    for line, row in body:
        if len(row) != len(names):
            raise UserError(f"{path}, line {line}: {len(row)} values, but there are {len(names)} columns; {advice}")
    return {name: _column(path, name, [(line, row[i]) for line, row in body]) for i, name in enumerate(names)}


def _column(path: Path, name: str, cells: list[tuple[int, str]]) -> np.ndarray:
    try:
        column = np.array([text for _, text in cells], dtype=float)
    except ValueError:
        line, text = next(cell for cell in cells if not _is_number(cell[1]))
        raise UserError(f"{path}, line {line}: {name} is {text!r}, but must be a number; mend that line") from None
    if name not in WHOLE:
        return column
    whole = _is_whole(column)
    if not whole.all():
        line, text = cells[int(np.argmin(whole))]
        raise UserError(f"{path}, line {line}: {name} is {text!r}, but must be a whole number; mend that line")
    return column.astype(int)


def _is_whole(values: np.ndarray) -> np.ndarray:
    return (np.abs(values) < 2**53) & (values == np.round(values))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
