"""Figures: all drawn from a complete tree, none from nothing, readable, headless and byte for byte again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_results import Dial, write_run, write_tree
from matplotlib.figure import Figure
from matplotlib.text import Text

from pangu_hif8 import plots
from pangu_hif8.comparisons import compare_heldout
from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT
from pangu_hif8.plot_style import FONT_PT, WIDTH_IN, rate_text
from pangu_hif8.results import ProfileResults, load_profile_results


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> ProfileResults:
    base = tmp_path_factory.mktemp("plots")
    write_tree(base, "laptop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(base))
        return load_profile_results("laptop")


def check(figure: Figure) -> None:
    """Readable at its width, nothing empty, every panel with a title or a label, text inside the page."""
    assert figure.get_figwidth() == WIDTH_IN
    figure.draw_without_rendering()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert all(axes.has_data() for axes in shown)
    page = figure.bbox.padded(2)
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            assert text.get_fontsize() >= FONT_PT
    for axes in shown:
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            if text.get_text():
                box = text.get_window_extent()
                assert page.contains(box.x0, box.y0), text
                assert page.contains(box.x1, box.y1), text


def labels_apart(figure: Figure) -> None:
    boxes = [a.xaxis.label.get_window_extent() for a in figure.axes if a.get_visible() and a.get_xlabel()]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


@pytest.mark.parametrize("spec", plots.FIGURES, ids=lambda spec: spec.name)
def test_every_figure_is_drawn_and_readable(complete: ProfileResults, spec: plots.FigureSpec) -> None:
    figure = spec.draw(complete)
    assert figure is not None
    check(figure)
    labels_apart(figure)
    sentence = spec.caption(complete)
    assert sentence.endswith(".")
    assert any(character.isdigit() for character in sentence)
    assert "nan" not in sentence


@pytest.mark.parametrize("spec", plots.FIGURES, ids=lambda spec: spec.name)
def test_nothing_is_drawn_from_nothing(results: Path, spec: plots.FigureSpec) -> None:
    (results / "smoke").mkdir(parents=True)
    assert spec.draw(load_profile_results("smoke")) is None


def test_a_missing_run_is_in_no_figure(results: Path) -> None:
    tree = write_tree(results)
    shutil.rmtree(tree / "E5")
    found = load_profile_results("smoke")
    for spec in plots.FIGURES:
        figure = spec.draw(found)
        assert figure is not None
        assert not any("E5" in text.get_text() for text in figure.findobj(Text)), spec.name
        assert "E5" not in spec.caption(found)


@pytest.mark.parametrize("kept", ["E0", "E1", "E4", "E8"])
def test_one_run_alone_draws_what_it_can(results: Path, kept: str) -> None:
    write_run(results, kept, "smoke", 0, Dial())
    found = load_profile_results("smoke")
    for spec in plots.FIGURES:
        figure = spec.draw(found)
        if figure is not None:
            check(figure)
            assert spec.caption(found).endswith(".")


def test_several_seeds_are_drawn(results: Path) -> None:
    write_tree(results, seeds=(0, 1))
    figure = plots.plot_training_loss(load_profile_results("smoke"))
    assert figure is not None
    assert figure.axes[0].collections  # the band over seeds


@pytest.mark.parametrize("draw", [plots.plot_heldout, plots.plot_answer_nll, plots.plot_late_ape])
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_dot_plots_have_a_tick_for_each_of_several_seeds(
    results: Path, draw: Callable[[ProfileResults], Figure | None], seeds: tuple[int, ...]
) -> None:
    write_tree(results, seeds=seeds)
    figure = draw(load_profile_results("smoke"))
    assert figure is not None
    check(figure)
    for axes in figure.axes:
        ticks = [line for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata()) == 3]
        assert len(ticks) == (len(axes.get_yticks()) if len(seeds) == 3 else 0)


def test_the_seeds_own_values_are_drawn(results: Path) -> None:
    write_tree(results, seeds=(0, 1, 2))
    found = load_profile_results("smoke")
    figure = plots.plot_heldout(found)
    assert figure is not None
    drawn = [line.get_xdata() for line in figure.axes[1].lines if line.get_marker() == "|"]
    expected = compare_heldout(found, "E1", "E0", "second_domain").by_seed
    assert any(list(values) == pytest.approx(list(expected)) for values in drawn if len(values) == 3)


def test_saving_is_deterministic(complete: ProfileResults, tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        figure = plots.plot_heldout(complete)
        assert figure is not None
        contents.append([path.read_bytes() for path in plots.save_figure(figure, tmp_path / name, "heldout")])
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG")
    assert ElementTree.fromstring(contents[0][1]).tag.endswith("svg")
    assert b"<dc:date>" not in contents[0][1]


def test_run_figures(results: Path) -> None:
    directory = write_run(results, "E8", "smoke", 0, Dial())
    for draw in (plots.plot_run_loss, plots.plot_run_saturation):
        figure = draw(str(directory))
        check(figure)
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
        assert "E8 max-window + warm-up, seed 0" in figure.get_suptitle()


def test_run_figures_refuse_what_is_not_there(results: Path) -> None:
    with pytest.raises(UserError, match="not trained"):
        plots.plot_run_loss(write_run(results, "E0", "smoke", 0, Dial()))
    with pytest.raises(UserError, match="does not quantize"):
        plots.plot_run_saturation(write_run(results, "E1", "smoke", 0, Dial()))
    with pytest.raises(UserError, match=r"run\.json is missing"):
        plots.plot_run_loss(results / "nothing")


def test_learning_rates_read_as_people_write_them() -> None:
    assert [rate_text(lr) for lr in (1e-4, 1e-5, 6e-4, 2.5e-3)] == [
        "lr 1e-4",
        "lr 1e-5",
        "lr 6e-4",
        "lr 2.5e-3",
    ]


def test_no_display_is_needed() -> None:
    program = "import sys; from pangu_hif8 import plots; assert 'tkinter' not in sys.modules"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "MPLBACKEND": ""}
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True)
    assert result.returncode == 0, result.stderr
