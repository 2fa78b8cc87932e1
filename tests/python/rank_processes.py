"""Processes of a test that are the ranks of a group."""

import faulthandler
import os
import sys
from pathlib import Path

import torch


def _run(rank, function, arguments, folder):
    with Path(folder, f"stderr-{rank}.txt").open("w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    faulthandler.enable(all_threads=True)
    function(rank, *arguments)


def run_ranks(function, arguments, number, folder, start_method="spawn"):
    """Calls function(rank, *arguments) in that number of processes. If one fails, the error has what they wrote to
    stderr, with the stacks of a process that a signal ended."""
    try:
        torch.multiprocessing.start_processes(_run, (function, arguments, folder), number, start_method=start_method)
    except Exception as error:
        said = [f"rank {rank}: {Path(folder, f'stderr-{rank}.txt').read_text()}" for rank in range(number)]
        raise AssertionError("\n".join([str(error), *said])) from error
