"""The page of `octile report`: well-formed, complete, and with nothing from elsewhere."""

import json
import pathlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

RECORDS = pathlib.Path(__file__).resolve().parents[2] / "runtime/tuned/h100.jsonl"
OPTIONAL_ENDS = {"td", "tr", "meta", "input"}


class Page(HTMLParser):
    """Keeps the cells of the table of measurements, as the numbers that a reader's script takes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.links, self.tags, self.inside = [], [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action")]
        if tag == "table":
            self.inside = dict(attributes)["id"]
        if self.inside == "rows" and "tbody" in self.open:
            if tag == "tr":
                self.rows.append([])
            elif tag == "td":
                self.rows[-1].append("")
            elif tag == "data":
                self.rows[-1][-1] = dict(attributes)["value"]
        if tag not in OPTIONAL_ENDS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in OPTIONAL_ENDS or self.open.pop() == tag

    def handle_data(self, data):
        if self.inside == "rows" and self.open[-1:] == ["tbody"] and self.rows:
            self.rows[-1][-1] += data.rstrip("\n")


@pytest.fixture(scope="module")
def text():
    command = [sys.executable, "-m", "octile", "report", str(RECORDS), "-o", "-"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_page_of_all_shipped_records_is_well_formed_and_has_their_numbers(text):
    page = Page(text)
    assert page.open == []
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    assert len(page.rows) == len(records) == 610
    for row, record in zip(page.rows, records):
        numbers = {float(cell) for cell in row if re.fullmatch(r"[\d.e+-]+", cell)}
        winner, default = record["winner"], record["default"]
        assert numbers >= {
            record["tokens"],
            winner["median_us"],
            winner["low_us"],
            winner["high_us"],
            default["median_us"],
            record["gain"],
        }
        assert winner["config"] in row


def test_a_page_asks_for_nothing_and_has_charts(text):
    page = Page(text)
    assert page.links and all(link.startswith("data:") for link in page.links)
    assert not {"img", "link", "iframe"} & set(page.tags)
    assert 'id="chart-roofline"' in text and "Vega-Lite" in text
    assert len(text.encode()) <= 1_600_000
