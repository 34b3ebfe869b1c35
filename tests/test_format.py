"""HiF8 described: the code table against the published one, and the figure's numbers against known ones."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from pangu_hif8 import cli, format_figure
from pangu_hif8.errors import UserError
from pangu_hif8.format_figure import FORMATS, plot_format, sample_data, sqnr_db, worst_relative_error
from pangu_hif8.hif8 import decode_code, quantize_dequantize
from pangu_hif8.hif8_info import HIF8, describe_code, table_text

DATA = Path(__file__).parent / "data"


# ---- the info object and the table ---------------------------------------------------------------------


def test_limits_are_those_of_the_format():
    assert (HIF8.bits, HIF8.max, HIF8.min) == (8, 32768.0, -32768.0)
    assert (HIF8.smallest_normal, HIF8.tiny) == (2.0**-15, 2.0**-22)
    assert quantize_dequantize(torch.tensor([1 + HIF8.eps])).item() == 1 + HIF8.eps
    assert quantize_dequantize(torch.tensor([1 + 0.49 * HIF8.eps])).item() == 1
    with pytest.raises(AttributeError):
        HIF8.bits = 9
    with pytest.raises(TypeError):
        HIF8.mantissa_bits[0] = 9


def test_mantissa_bits_by_binade_are_the_specification_s():
    expected = dict.fromkeys(range(-22, -15), 0)
    expected |= {e: 3 if abs(e) <= 3 else 2 if abs(e) <= 7 else 1 for e in range(-15, 16)}
    assert dict(HIF8.mantissa_bits) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_mantissa_bits_are_what_rounding_keeps(sign):
    for exponent, bits in HIF8.mantissa_bits.items():
        values = 2.0**exponent * (1 + torch.arange(256) / 256)
        kept = quantize_dequantize(sign * values[values <= HIF8.max]).unique()
        whole = kept[kept.abs() < 2.0 ** (exponent + 1)]
        assert len(whole) == (1 if exponent == 15 else 2**bits)


def test_every_code_s_fields_give_its_value():
    for code in range(256):
        info = describe_code(code)
        assert info.bits.replace(" ", "") == f"{code:08b}"
        if info.kind in ("normal", "denormal"):
            mantissa = int(info.bits.split()[-1], 2) / 2**info.mantissa_bits if info.mantissa_bits else 0
            sign = -1 if code & 0x80 else 1
            assert info.value == sign * 2.0**info.exponent * (1 + mantissa)
    kinds = Counter(describe_code(code).kind for code in range(256))
    assert kinds == {"zero": 1, "nan": 1, "infinity": 2, "denormal": 14, "normal": 238}


@pytest.mark.parametrize("code", [-1, 256])
def test_there_are_256_codes(code):
    with pytest.raises(ValueError, match="0 to 255"):
        describe_code(code)


def test_the_printed_table_holds_every_code_exactly(capsys):
    assert cli.main(["format"]) == 0
    lines = capsys.readouterr().out.splitlines()
    published = json.loads((DATA / "hif8_decode.json").read_text())
    for row, line in zip(published, lines[1:257], strict=True):
        words = line.split()
        assert int(words[0], 16) == row["code"]
        bits = [word for word in words[1:] if set(word) <= {"0", "1"}]
        shown = words[1 + next(i for i, _ in enumerate(bits) if len("".join(bits[: i + 1])) == 8) + 1]
        value = float(row["value"])
        assert float(shown) == value or (math.isnan(value) and shown == "nan")
    assert "max 32768" in lines[-1]
    assert lines[0].split() == ["code", "bits", "value", "class", "exponent", "mantissa", "bits"]
    assert table_text().splitlines()[1 + 0x2F].split() == "0x2F 0 01 01 111 15 normal 3 3".split()


# ---- the figure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bits", "first", "last"),
    [
        ("HiF8", {0: 3, -3: 3, 4: 2, -7: 2, 8: 1, -15: 1, -16: 0, -22: 0}, -22, 14),
        ("float8 e4m3fn", {0: 3, -6: 3, -7: 2, -8: 1, -9: 0, 8: 3}, -9, 8),
        ("float8 e5m2", {0: 2, -14: 2, -15: 1, -16: 0, 15: 2}, -16, 15),
        ("bfloat16", {0: 7, -20: 7, 16: 7}, -24, 16),
    ],
)
def test_worst_error_is_half_a_step_at_the_first_midpoint(name, bits, first, last):
    for exponent, num_bits in bits.items():
        half_step = 2.0 ** -(num_bits + 1)
        error, _ = worst_relative_error(name, exponent)
        assert error == pytest.approx(half_step / (1 + half_step), rel=2e-3)
    for exponent in range(-24, 17):
        error, end = worst_relative_error(name, exponent)
        assert math.isfinite(error) == (first <= exponent <= last), exponent
        assert end <= max(FORMATS[name].max, 2.0**exponent)


def test_sqnr_against_the_table_of_scaling_targets():
    """FORMAT's table: one million values, one seed. Heavy tails depend on the draw, hence the 1 dB."""
    table = {
        "Gaussian": {8: 31.5, 15: 31.5, 56: 26.8, 224: 25.6, 32768: 19.7},
        "Gaussian, outliers x50": {8: 27.5, 15: 29.9, 56: 29.1, 224: 28.9, 32768: 20.2},
    }
    data = sample_data()
    for title, row in table.items():
        for target, expected in row.items():
            assert sqnr_db(data[title], "HiF8", target) == pytest.approx(expected, abs=1.0), (title, target)


def test_data_are_the_same_every_time():
    for first, second in zip(sample_data(1000).values(), sample_data(1000).values(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_saturates(name):
    top = torch.finfo(torch.float32).max
    assert FORMATS[name].round(torch.tensor([top, -top])).tolist() == [FORMATS[name].max, -FORMATS[name].max]


@pytest.fixture
def few_values(monkeypatch):
    monkeypatch.setattr(format_figure, "plot_format", lambda: plot_format(2000))


def test_the_figure_has_every_format_in_every_panel():
    figure = plot_format(2000)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert set(FORMATS) <= {line.get_label() for line in axes.lines}
        assert axes.get_title() and axes.get_xlabel()
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["format.png", "format.svg", "FORMAT.PNG"])
def test_the_command_writes_the_figure(name, tmp_path, few_values, capsys):
    path = tmp_path / "new" / name
    assert cli.main(["format", "--figure", str(path)]) == 0
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG" if name.lower().endswith("png") else b"<?xml")
    assert cli.main(["format", "--figure", str(path)]) == 0
    assert path.read_bytes() == first
    assert len(capsys.readouterr().out.splitlines()) > 500


def test_another_ending_is_refused_before_anything_is_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(format_figure, "plot_format", lambda: pytest.fail("drawn"))
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        format_figure.save_format_figure(tmp_path / "format.pdf")
    assert cli.main(["format", "--figure", str(tmp_path / "format")]) == 2
    assert not list(tmp_path.iterdir())
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1


def test_decode_code_agrees():
    assert all(describe_code(c).value == decode_code(c) for c in range(256) if c != 0x80)
