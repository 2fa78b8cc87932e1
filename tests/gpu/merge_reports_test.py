"""Tests of merge_reports.py."""
import json
import pathlib
import unittest

from merge_reports import in_lines, merged


def report(name, **fields):
    return {"format": 2, "device": "card", "driver": "13.0", "set": "covering", "date": "2026-11-27",
            "worst_c": {"128": 1.0}, "tests": {name: {"outcome": "passed"}}, "kernels": {"k": "1 of 1"},
            "launch_code": {"f": "2"}, **fields}


class MergeReports(unittest.TestCase):
    def test_each_result_is_in_the_whole(self):
        counted = {"A": {"outcome": "passed", "ran": 5, "skipped": 0}}
        whole = merged([report("B"), report("A", worst_c={"128": 3.0}, tests=counted)])
        self.assertEqual(list(whole["tests"].items()), [*counted.items(), ("B", {"outcome": "passed"})])
        self.assertEqual(whole["worst_c"], {"128": 3.0})

    def test_reports_that_are_no_shards_are_refused(self):
        with self.assertRaisesRegex(ValueError, "differ in 'kernels'"):
            merged([report("A"), report("B", kernels={})])
        with self.assertRaisesRegex(ValueError, "A is in two reports"):
            merged([report("A"), report("A")])

    def test_the_lines_are_those_of_the_suite(self):
        text = (pathlib.Path(__file__).parent / "REPORT.json").read_text()
        self.assertEqual(in_lines(json.loads(text)), text)


if __name__ == "__main__":
    unittest.main()
