"""Prints every numbered equation of a LaTeX paper: section, number as LaTeX counts it, label, and its first words.

python tools/equations.py PAPER.tex
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ONE, ROWS = {"equation", "multline"}, {"align", "gather", "eqnarray"}
"""Environments with one number, and those with a number for each row. Starred ones have none."""
SECTIONS = ("section", "subsection", "subsubsection")
PART = re.compile(
    r"\\appendix\b|\\(?P<heading>(?:sub){0,2}section)(?P<star>\*?)\s*\{(?:[^{}]|\{[^{}]*\})*\}"
    r"|\\begin\{(?P<kind>equation|multline|align|gather|eqnarray)\}(?P<body>.*?)\\end\{(?P=kind)\}",
    re.DOTALL,
)


def equations(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Section, number or tag, label and first words of each equation, in the order of the paper."""
    text = re.sub(r"(?<!\\)%.*", "", text)
    text = re.sub(r"\\begin\{comment\}.*?\\end\{comment\}", "", text, flags=re.DOTALL)
    counts, appendix, place, number = [0, 0, 0], False, "", 0
    for found in PART.finditer(text):
        if found["heading"]:
            level = SECTIONS.index(found["heading"])
            if not found["star"]:
                counts = [*counts[:level], counts[level] + 1, *[0] * (2 - level)]
                first = chr(ord("A") + counts[0] - 1) if appendix else str(counts[0])
                place = ".".join([first, *map(str, counts[1 : level + 1])])
            continue
        if not found["kind"]:
            counts, appendix = [0, 0, 0], True
            continue
        for row in rows(found["body"]) if found["kind"] in ROWS else [found["body"]]:
            tag, label = re.search(r"\\tag\{([^}]*)\}", row), re.search(r"\\label\{([^}]*)\}", row)
            if not tag and re.search(r"\\(?:nonumber|notag)\b", row):
                continue
            number += not tag
            yield place, tag[1] if tag else str(number), label[1] if label else "", words(row)


def rows(body: str) -> list[str]:
    r"""The rows of an environment. A \\ in an array or such ends none; one at the end begins a last."""
    parts, depth, start = [], 0, 0
    for mark in re.finditer(r"\\begin\{|\\end\{|\\\\", body):
        if mark[0] == r"\\":
            if depth == 0:
                parts.append(body[start : mark.start()])
                start = mark.end()
        else:
            depth += 1 if mark[0] == r"\begin{" else -1
    return [*parts, body[start:]]


def words(row: str) -> str:
    """The beginning of an equation on one line."""
    plain = re.sub(r"\\(?:label|tag|begin|end)\{[^}]*\}(?:\{[^}]*\})?|&|\\(?:left|right)\b", " ", row)
    return " ".join(plain.split())[:70]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python tools/equations.py PAPER.tex")
    for place, number, label, beginning in equations(Path(sys.argv[1]).read_text()):
        print(f"{place:6}  ({number})".ljust(20) + f"{label:42}  {beginning}")
