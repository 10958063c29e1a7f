"""The command that makes the page."""

import numpy as np
import pytest
from matplotlib.image import imread

from qcrl.theory.__main__ import main


@pytest.mark.filterwarnings("error")
def test_one_figure_is_drawn_and_its_table_replaced(tmp_path, capsys):
    page = tmp_path / "theory.md"
    page.write_text("before\n<!-- weight -->\nold\n<!-- end -->\nafter\n<!-- rate -->\nkept\n<!-- end -->\n")
    main(["weight", "--docs", str(tmp_path)])
    text = page.read_text()
    assert text.startswith("before\n<!-- weight -->\n| action | policy |")
    assert text.endswith("after\n<!-- rate -->\nkept\n<!-- end -->\n")
    assert "old" not in text
    pixels = imread(tmp_path / "images" / "theory_weight.png")
    assert min(pixels.shape[:2]) > 200
    assert np.ptp(pixels) > 0.5
    assert "weight:" in capsys.readouterr().out


def test_an_unknown_figure_ends_with_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["nonsense", "--docs", str(tmp_path)])
    assert stop.value.code == 2
    assert "known ones are distribution" in capsys.readouterr().err
