"""`python -m qcrl.theory` draws the figures of docs/theory.md and writes its tables."""

import argparse
import re
import textwrap
import time
from pathlib import Path

from qcrl.theory.figures import FIGURES


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m qcrl.theory", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"which: {', '.join(FIGURES)} (default: all)")
    parser.add_argument(
        "--docs", type=Path, default=Path("docs"), help="folder of theory.md and images/ (default: docs)"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.figures) - set(FIGURES)
    if unknown:
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; the known ones are {', '.join(FIGURES)}")
    for name in options.figures or FIGURES:
        begin = time.perf_counter()
        write(name, options.docs)
        print(f"{name}: {time.perf_counter() - begin:.1f} s")


def write(name: str, docs: Path) -> None:
    """Draw one figure, and put its table between the page's markers of the same name."""
    figure, table = FIGURES[name]()
    table = "\n".join(line if line.startswith("|") else textwrap.fill(line, 130) for line in table.splitlines())
    (docs / "images").mkdir(parents=True, exist_ok=True)
    figure.savefig(docs / "images" / f"theory_{name}.png", metadata={"Software": None})
    page = docs / "theory.md"
    if not page.exists():
        print(table)
        return
    block = f"<!-- {name} -->\n{table}\n<!-- end -->"
    text, count = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _: block, page.read_text(), flags=re.DOTALL)
    if count == 0:
        print(table)
    page.write_text(text)


if __name__ == "__main__":
    main()
