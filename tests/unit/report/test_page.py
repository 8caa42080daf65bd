"""Blocks become HTML in which nothing from outside is markup, and every number can be found."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import numpy as np
import plotly.io
import pytest
from markupsafe import escape

from hydragnn_hpo.report.charts import DARK, LIGHT, SERIES
from hydragnn_hpo.report.page import (
    Title,
    content_policy,
    format_value,
    page_script,
    render_page,
    render_section,
    script_digest,
    to_json,
)
from hydragnn_hpo.report.page_blocks import (
    Code,
    Column,
    Doubtful,
    Figure,
    Number,
    Numbers,
    Section,
    Table,
    Text,
)

EVIL = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;"


def everything(text):
    """Return a section in which a text stands at every place that takes one."""
    figure = Figure(text, text, text, ({"type": "bar", "x": [text], "y": [1]},), {"title": text})
    blocks = (
        Numbers((Number(text, text, 1.5, text, text),)),
        Table(text, (Column(text, text, text), Column("n", text)), ((text, 2), (text, text)), text),
        Text(text),
        Code(text, text),
        Code(text, text, folded=True),
    )
    return Section(text, text, text, (*blocks, Doubtful(text, (figure, *blocks[:1]))))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []
        self.attributes = set()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def tags_of(text):
    parser = Tags()
    parser.feed(text)
    return parser


def test_no_text_is_markup():
    plain = tags_of(render_section(everything("a")).html)
    evil = tags_of(render_section(everything(EVIL)).html)
    assert evil.tags == plain.tags
    assert evil.attributes == plain.attributes
    assert not [name for name in evil.attributes if name.startswith("on")]


def test_no_text_ends_the_page_s_own_scripts():
    page = render_page(Title(EVIL, EVIL), [everything(EVIL)])
    assert page.count("<script") == 3
    assert page.count("</script>") == 3
    assert "onerror=" not in page.replace("onerror=&#34;", "")


def test_a_page_names_its_scripts_and_nothing_else_may_run():
    page = render_page(Title("a", "b"), [])
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    policy = content_policy(page_script())
    assert escape(policy) in page
    assert script_digest(scripts[0].encode()) in policy
    assert "unsafe" not in policy.split("style-src")[0]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    packed = re.search(r'id="plotly">([^<]*)<', page)
    inflated = gzip.decompress(base64.b64decode(packed.group(1)))
    assert script_digest(inflated) in policy
    assert inflated == plotly.offline.get_plotlyjs().encode()


def test_numbers_keep_their_value_and_have_keys():
    columns = Column("row", "row"), Column("share", "share", "%")
    table = Table("t", columns, (("first", np.float64(0.12345678901)),))
    numbers = Numbers((Number("n", "n", 1e6 + 1 / 3), Number("i", "i", np.int64(12))))
    section = Section("s", "S", "", (numbers, table))
    actual = re.findall(
        r'<data data-key="([^"]+)" value="([^"]+)">([^<]+)<', render_section(section).html
    )
    assert actual == [
        ("s.n", "1000000.3333333334", "1,000,000"),
        ("s.i", "12", "12"),
        ("s.t.first.share", "0.12345678901", "12.3"),
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "", "-"),
        (0.32783, "eV", "0.3278"),
        (0.0404949, "e", "0.04049"),
        (12345.6, "", "12,346"),
        (3.0, "", "3"),
        (0.5, "%", "50.0"),
        (1.2e-7, "", "1.2e-07"),
        (0.22699604, "", "0.2270"),
        (99.996, "", "100.00"),
        (0.0, "", "0"),
        (-0.0123456, "", "-0.01235"),
        (float("nan"), "", "nan"),
    ],
)
def test_numbers_are_rounded_for_readers(value, unit, text):
    assert format_value(value, unit) == text


def test_what_is_not_known_has_no_value_and_no_unit():
    html = render_section(Section("s", "S", "", (Numbers((Number("n", "n", None, "kWh"),)),))).html
    assert "<data" not in html
    assert "kWh" not in html
    assert "&ndash;" in html


def test_what_is_doubtful_says_why_and_keeps_its_content():
    html = render_section(Section("s", "S", "", (Doubtful("too few", (Text("inside"),)),))).html
    assert re.search(r'class="doubtful"><p class="why">too few</p><div><p>inside</p>', html)


# -- encoding ------------------------------------------------------------------------


def decoded(value):
    """Read a typed array as plotly.js does."""
    kinds = {"f4": "<f4", "i1": "i1", "u1": "u1", "i2": "<i2", "u2": "<u2", "i4": "<i4"}
    flat = np.frombuffer(base64.b64decode(value["bdata"]), kinds[value["dtype"]])
    shape = value.get("shape")
    return flat.reshape([int(n) for n in shape.split(",")]) if shape else flat


@pytest.mark.parametrize(
    "values",
    [
        np.arange(20),
        np.arange(-5, 300),
        np.arange(70000),
        np.full(9, -40000),
        np.linspace(-1, 1, 33),
        np.arange(24, dtype=np.int8).reshape(4, 6),
        [0.5] * 30,
        list(range(30)),
    ],
    ids=lambda values: f"{np.asarray(values).dtype}{np.shape(values)}",
)
def test_arrays_travel_as_bytes(values):
    made = json.loads(json.dumps(to_json({"x": values})))["x"]
    np.testing.assert_allclose(decoded(made), np.asarray(values), rtol=1e-7)


def test_whole_numbers_take_the_least_room():
    assert to_json(np.array([0] * 8 + [255]))["dtype"] == "u1"
    assert to_json(np.array([0] * 8 + [256]))["dtype"] == "i2"
    assert to_json(np.array([-1] * 8 + [255]))["dtype"] == "i2"
    assert to_json(np.array([0] * 8 + [2**31]))["dtype"] == "u4"


def test_the_rest_is_plain_json():
    given = {"a": float("nan"), "b": np.float64(0.1), "c": [None, "x"], "d": (1, np.int8(2))}
    given["e"] = True
    assert to_json(given) == {"a": None, "b": 0.1, "c": [None, "x"], "d": [1, 2], "e": True}
    text = json.dumps(to_json({"x": np.array(["a", "b"]), "y": [True] * 20}), allow_nan=False)
    assert json.loads(text) == {"x": ["a", "b"], "y": [True] * 20}


# -- colours -------------------------------------------------------------------------


def luminance(colour):
    """Source: WCAG 2.2, relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_series_can_be_read(theme):
    """WCAG AA: 4.5 for text, 3 for graphics."""
    for ground in ("card", "paper"):
        for name in ("ink", "faint", "accent", "bad", "good", "warn"):
            assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
    for name in SERIES:
        assert contrast(theme[name], theme["card"]) >= 3.0, name
