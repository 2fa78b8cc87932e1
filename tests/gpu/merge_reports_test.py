"""Tests of merge_reports.py."""
import unittest

from merge_reports import merged


def report(name, **fields):
    return {"format": 1, "device": "card", "driver": "13.0", "set": "covering", "date": "2026-11-27",
            "total_seconds": 2.0, "results": {name: "passed"}, "cases": None, "seconds": {name: 2.0},
            "worst_c": {"128": 1.0}, "kernels": {"k": "1"}, "launch_code": {"f": "2"}, **fields}


class MergeReports(unittest.TestCase):
    def test_each_result_is_in_the_whole(self):
        whole = merged([report("B"), report("A", worst_c={"128": 3.0}, cases={"A": {"ran": 5, "skipped": 0}})])
        self.assertEqual(list(whole["results"]), ["A", "B"])
        self.assertEqual(whole["cases"], {"A": {"ran": 5, "skipped": 0}})
        self.assertEqual((whole["total_seconds"], whole["worst_c"]), (4.0, {"128": 3.0}))

    def test_reports_that_are_no_shards_are_refused(self):
        with self.assertRaisesRegex(ValueError, "differ in 'kernels'"):
            merged([report("A"), report("B", kernels={})])
        with self.assertRaisesRegex(ValueError, "'results' of A is in two reports"):
            merged([report("A"), report("A")])


if __name__ == "__main__":
    unittest.main()
