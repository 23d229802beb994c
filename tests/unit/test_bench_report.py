"""Reports of `llama-batch bench`: pages that stand alone, and say what the results say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llama_batch.benchmark import BenchmarkError, Record, Result, Slo
from llama_batch.benchmark.charts import MAX_SERIES, Series, cdf, lines
from llama_batch.benchmark.report import page
from llama_batch.benchmark.text import compared, notes, number, summary, table

HOSTILE = "<script>alert('x')</script> & \"quotes\""


def result(label: str = "mine", speed: float = 1.0, n: int = 12, **kept: object) -> Result:
    records = []
    for index in range(n):
        record = Record(index, 0, due=0.1 * index, sent=0.1 * index, n_prompt=20, n_output=8, n_cached=5)
        record.deliveries = [record.due + speed * (0.2 + 0.05 * token) for token in range(8)]
        record.ended = record.deliveries[-1]
        records.append(record)
    made: dict[str, object] = {
        "label": label, "measured_at": "2026-01-01T00:00:00+00:00", "target": {"kind": "url", "model": "m", "url": "u"},
        "workload": {"kind": "synthetic"}, "arrivals": {"kind": "poisson", "rate": 10.0}, "machine": {},
        "interrupted": False, "n_planned": n, "notes": (), "records": tuple(records),
    }  # fmt: skip
    return Result(**{**made, **kept})  # type: ignore[arg-type]


class Page(HTMLParser):
    """Checks that elements close in order, and keeps what a page loads."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)


@pytest.mark.parametrize("n_results", [1, 2, MAX_SERIES])
def test_a_page_is_well_formed_and_loads_nothing(n_results: int) -> None:
    text = page([result(f"r{index}", 1 + index) for index in range(n_results)])
    read = Page(text)
    assert read.loads == []
    assert "script" not in read.tags
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"https?://", text)
    ET.fromstring(re.sub(r"<!DOCTYPE html>", "", text))  # as strict as XML, pictures included
    assert read.tags.count("svg") == 4 + 2 * n_results


def test_what_a_page_shows_is_text_whatever_a_result_holds() -> None:
    failed = Record(0, 0, due=0.0, failure=HOSTILE)
    hostile = result(
        HOSTILE, records=(failed,), notes=(HOSTILE,), target={"kind": "url", "model": HOSTILE, "url": HOSTILE}
    )
    for results in ([hostile], [hostile, result()]):
        text = page(results)
        assert "script" not in Page(text).tags
        assert "<script" not in text
        ET.fromstring(text.replace("<!DOCTYPE html>", ""))


def test_a_page_follows_the_reader_to_light_or_dark() -> None:
    assert "prefers-color-scheme: dark" in page([result()])


def test_a_page_about_nothing_has_no_pictures() -> None:
    assert "svg" not in Page(page([result(records=())])).tags


def test_more_results_than_colours_are_refused() -> None:
    with pytest.raises(BenchmarkError, match="at most 8"):
        page([result(str(index)) for index in range(MAX_SERIES + 1)])


def test_figures_side_by_side_have_ratios_to_the_first() -> None:
    rows = compared([result("a"), result("b", 2.0)])
    assert rows[0] == ["", "a", "b", "÷ first"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["TTFT p50, ms"] == ["200", "400", "2.00"]
    assert by_name["ITL p95, ms"][2] == "2.00"
    assert by_name["failed"] == ["0", "0", "-"]
    assert all(len(row) == 4 for row in rows)
    assert len({len(line) for line in table(rows).splitlines()}) == 1


def test_what_is_unknown_in_one_result_is_not_a_ratio() -> None:
    untold = result("b", records=tuple(Record(0, 0, 0.0, deliveries=[1.0, 2.0], ended=2.0) for _ in range(2)))
    by_name = {row[0]: row[1:] for row in compared([result("a"), untold])}
    assert by_name["output tokens/s"][1:] == ["-", "-"]
    assert "goodput, requests/s" not in by_name


def test_other_workloads_are_told_of() -> None:
    other = result("b", arrivals={"kind": "closed", "concurrency": 2})
    assert any("other arrivals than a" in note for note in notes([result("a"), other]))
    assert notes([result("a"), result("b")]) == []


def test_a_summary_says_what_failed_and_what_kept_to_the_objective() -> None:
    records = [*result().records, Record(0, 0, 0.0, failure="HTTP 500: oh")]
    text = summary(result(records=tuple(records), slo=Slo({"ttft": 300.0}), notes=("A note.",)))
    assert "12 of 13 requests complete" in text
    assert "failed (1): HTTP 500: oh" in text
    assert "12 requests, 92.3%" in text
    assert text.endswith("A note.")


@settings(deadline=None)
@example([5e-324, 1.0])
@example([5e-324])
@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=1200))
def test_any_durations_make_a_picture_within_its_frame(values: list[float]) -> None:
    svg = ET.fromstring(cdf("t", [Series("a", values)]))
    places = [float(place) for path in svg.iter("path") for place in re.findall(r"[\d.]+", path.attrib["d"])]
    assert all(0 <= place <= 560 for place in places)
    assert len(places) < 2000


@settings(deadline=None)
@example([5e-324])
@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=3000))
def test_a_peak_is_not_lost_in_many_points(heights: list[float]) -> None:
    text = lines("t", [Series("a", heights, [float(index) for index in range(len(heights))])], "x", len(heights))
    path = ET.fromstring(text).find("path")
    assert path is not None
    drawn = [float(place) for place in re.findall(r"[V,]([\d.]+)", path.attrib["d"])]
    # The axis is 1.05 times as high as the peak, so that a peak always is at the same place.
    assert min(drawn) == pytest.approx(222 - (222 - 12) / 1.05 if max(heights) > 1e-9 else 222, abs=0.1)


def test_numbers_have_the_digits_that_are_read() -> None:
    assert [number(value) for value in (None, 0, 3.14159, 31.4159, 314.159, 31415.9)] == [
        "-", "0", "3.14", "31.4", "314.2", "31,416",
    ]  # fmt: skip
