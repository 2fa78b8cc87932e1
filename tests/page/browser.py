#!/usr/bin/env python3
"""Looks at pages of `octile report` in Debian's Chromium: `make test-page` runs it.

    browser.py --octile build/release/octile --out build/page [--chromium /usr/bin/chromium] [--also PAGE...]

Pages of shipped records, of models with verdicts, and with hostile names, are opened at 390, 1280 and 1920 pixels in both
colour schemes.
Each has to be ready in 1.5 s without a request or a console message, without an overflow, and clean by axe-core.
Sorting and filtering work by the keyboard alone, and 720 rows are filtered in 200 ms. Screenshots are left in --out.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import time

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTILE = "</script><img src=x onerror=document.title='owned'>"
WIDTHS = (390, 1280, 1920)
READY_S, FILTER_MS, MOST_BYTES, ROWS = 1.5, 200, 1_600_000, 720


def shipped(name):
    return [json.loads(line) for line in (ROOT / "runtime/tuned" / name).read_text().splitlines()]


def many_records():
    """Returns as many records as both modes of a large model have, with all that a search writes."""
    records = []
    for number in range(ROWS):
        record = dict(shipped("h100.jsonl")[number % 610])
        record["sm_count"] = 132 + number // 610  # another card of the name: another decision
        record["baselines_us"] = {"bf16": record["winner"]["median_us"] * 1.3, "floor": 1.0}
        record["runner_up"] = record["winner"]
        record["candidates"] = {"enumerated": 9000, "admitted": 900, "compiled": 48, "failed_verify": 0, "timed": 48}
        record["conditions"] = {
            "sm_clock_mhz": 1755,
            "memory_clock_mhz": 2619,
            "power_watts": 512.5,
            "throttled_rounds": 0,
        }
        record["protocol"] = "graph replay 1, 30 rounds, 160 MB rotated"
        record["device_name"] = "NVIDIA H100 80GB HBM3"
        records.append(record)
    return records


def hostile_records():
    protocol = {"timing": "graph", "interleaved": True}
    return [
        {
            "record": 1,
            "tool": HOSTILE,
            "what": HOSTILE,
            "card": {"name": HOSTILE},
            "date": "2026-11-26",
            "protocol": protocol,
            "unit": "us",
            "samples": [1.5, 2.5, 3.5],
            "ok": True,
            "details": {"promote": promote, "error": error},
        }
        for promote, error in ((128, 1e-3), (512, 4e-3))
    ]


def interval_records():
    """Returns decisions on the promotion intervals of two questions, with the errors that --max-error measures."""
    records = []
    for record in shipped("h100.jsonl"):
        if "b=e4m3:tensor" not in record["problem"] or "promote=128" not in record["problem"] or len(records) == 6:
            continue
        for promote, error, share in ((128, 8e-5, 1), (256, 1.6e-4, 0.97), (512, 3.1e-4, 0.96)):
            other = dict(record, problem=record["problem"].replace("promote=128", f"promote={promote}"), error=error)
            other["winner"] = dict(record["winner"], median_us=record["winner"]["median_us"] * share)
            records.append(other)
    return records


def hostile_model(folder):
    """Writes a model whose path is HOSTILE from the last folder but one on, and returns the path."""
    path = folder / HOSTILE
    path.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "tools/models/configs/llama-3-8b.json", path / "config.json")
    return path


def write_page(options, name, records, *words):
    source, page = options.out / f"{name}.jsonl", options.out / f"{name}.html"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    subprocess.run([options.octile, "report", source, "-o", page, *words], check=True)
    assert page.stat().st_size <= MOST_BYTES, f"{page} has {page.stat().st_size} bytes"
    return page


class View:
    """A page in the browser, with its lines on the console and its requests to the network."""

    def __init__(self, browser, path, width, scheme):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.trouble = []
        self.page.on("console", lambda message: self.trouble.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on(
            "request",
            lambda request: (
                self.trouble.append(f"request: {request.url[:80]}")
                if not request.url.startswith(("file:", "data:"))
                else None
            ),
        )
        began = time.monotonic()
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=20000)
        self.ready_s = time.monotonic() - began

    def close(self):
        self.context.close()
        assert not self.trouble, self.trouble


def check_looks(view, path, width, scheme, out):
    violations = Axe().run(view.page).response["violations"]
    assert not violations, json.dumps([(v["id"], v["nodes"][:2]) for v in violations], indent=1)[:4000]
    overflow = view.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, f"{path} is {overflow} pixels wider than {width}"
    drawn = view.page.evaluate("[...document.querySelectorAll('.chart')].map(c => !!c.querySelector('svg'))")
    assert drawn and all(drawn), drawn
    assert view.page.title() != "owned" and view.page.locator("img").count() == 0
    view.page.screenshot(path=out / f"{path.stem}-{width}-{scheme}.png", full_page=True)


def check_numbers(view, records):
    cells = view.page.evaluate("""[...document.querySelectorAll('#rows tbody tr')].map(row =>
      [...row.querySelectorAll('data')].map(d => Number(d.value)).concat(
      [...row.querySelectorAll('td.n')].map(c => Number(c.textContent))))""")
    assert len(cells) == len(records)
    for row, record in zip(cells, records):
        for wanted in (
            record["winner"]["median_us"],
            record["default"]["median_us"],
            record["tokens"],
            record["gain"],
            record["baselines_us"]["bf16"],
        ):
            assert wanted in row, (wanted, row)


def check_model(view, name):
    """Each cell of the heatmaps is a row of the table of layers."""
    for mode in ("decode", "prefill", "training"):
        rows = view.page.evaluate(
            """mode => { const heads = [...document.querySelectorAll('#layers th')].map(h => h.dataset.key);
              const at = key => heads.indexOf(key);
              return [...document.querySelectorAll('#layers tbody tr')].map(r => [...r.cells])
                .filter(c => c[at('mode')].textContent === mode)
                .map(c => Number((c[at('gain')].querySelector('data') ?? {value: c[at('gain')].textContent}).value)); }""",
            mode,
        )
        drawn = view.page.evaluate(
            """mode => [...document.querySelectorAll('#chart-heat-' + mode + ' .layer_1_marks text')]
              .map(t => Number(t.textContent)).filter(n => !isNaN(n) && n > 0)""",
            mode,
        )
        assert rows and sorted(round(gain, 2) for gain in rows) == sorted(drawn), (mode, len(rows), len(drawn))
    title = view.page.locator("h1").text_content()
    assert ("llama-3-8b" if name == "model" else HOSTILE) in title, title


def check_keyboard(view):
    page = view.page
    page.focus("#words")
    for _ in range(2):
        page.keyboard.press("Tab")
    heading = page.evaluate("document.activeElement.closest('th')?.dataset.key ?? ''")
    assert heading, "Tab leads from the filter through the table to its headings"
    for order in ("ascending", "descending"):
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == order
    page.focus("#words")
    page.keyboard.type("gemm 4096")
    left = page.locator("#rows tbody tr:not([hidden])").count()
    assert 0 < left < ROWS and page.locator("#count").text_content() == f"{left} of {ROWS} rows"
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")


def filter_ms(view):
    return view.page.evaluate("""async () => {
      const input = document.getElementById('words'), times = [];
      for (const words of ['4096', '', '64', '']) {
        const began = performance.now();
        input.value = words;
        input.dispatchEvent(new Event('input'));
        document.body.offsetHeight;
        await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
        times.push(performance.now() - began);
      }
      return Math.max(...times);
    }""")


def ready_again(browser, path):
    view = View(browser, path, 1280, "light")
    view.close()
    return view.ready_s


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--octile", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--also", type=pathlib.Path, nargs="*", default=[], help="further pages to look at")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    many = many_records()
    records = shipped("h100.jsonl")
    modes = ("--mode", "decode,prefill,training")
    pages = {
        "many": write_page(options, "many", many),
        "hostile": write_page(options, "hostile", hostile_records()),
        "intervals": write_page(options, "intervals", interval_records()),
        "model": write_page(options, "model", records, "--model", "llama-3-8b", *modes),
        "hostile-model": write_page(options, "hostile-model", records, "--model", hostile_model(options.out), *modes),
    }
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for path in (*pages.values(), *options.also):
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    view = View(browser, path, width, scheme)
                    check_looks(view, path, width, scheme, options.out)
                    view.close()
        for name in ("model", "hostile-model"):
            view = View(browser, pages[name], 1280, "light")
            check_model(view, name)
            view.close()
        view = View(browser, pages["intervals"], 1280, "light")
        assert view.page.locator("#chart-promotion .layer_1_marks path").count() == len(interval_records())
        view.close()
        view = View(browser, pages["many"], 1280, "light")
        check_numbers(view, many)
        check_keyboard(view)
        took = filter_ms(view)
        ready = min(view.ready_s, *(ready_again(browser, pages["many"]) for _ in range(2)))
        print(f"ready in {ready:.2f} s, {ROWS} rows filtered in {took:.0f} ms, {pages['many'].stat().st_size} bytes")
        assert ready <= READY_S and took <= FILTER_MS
        view.page.pdf(path=options.out / "many.pdf")
        view.close()
        browser.close()


if __name__ == "__main__":
    main()
