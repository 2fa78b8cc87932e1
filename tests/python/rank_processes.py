"""Processes of tests: the ranks of a group, and scripts.

They are forked from one process that has imported what takes long. It computes no gradients, which would end a fork's
ability to compute them.
"""

import faulthandler
import multiprocessing
import os
import runpy
import sys
from pathlib import Path

import torch

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["slow_imports"])


def _run(rank, function, arguments, folder):
    with Path(folder, f"stderr-{rank}.txt").open("w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    faulthandler.enable(all_threads=True)
    function(rank, *arguments)


def run_ranks(function, arguments, number, folder):
    """Calls function(rank, *arguments) in that number of processes. If one fails, the error has what they wrote to
    stderr, with the stacks of a process that a signal ended."""
    try:
        torch.multiprocessing.start_processes(_run, (function, arguments, folder), number, start_method="forkserver")
    except Exception as error:
        said = [f"rank {rank}: {Path(folder, f'stderr-{rank}.txt').read_text()}" for rank in range(number)]
        raise AssertionError("\n".join([str(error), *said])) from error


def _run_script(rank, words, out):
    with Path(out).open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def run_script(folder, *words):
    """Runs a Python script with arguments in a process of its own, and returns what it printed."""
    out = Path(folder, "stdout.txt")
    run_ranks(_run_script, ([str(word) for word in words], str(out)), 1, folder)
    return out.read_text()
