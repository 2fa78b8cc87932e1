"""`octile compile --serving` makes the kernels that the plug-ins of engines ask for."""

import json
import subprocess
import sys

import pytest
import torch

from octile.torch import engine_layers

#: n and k of Qwen3-8B's layers as vLLM and SGLang fuse them.
SHAPES = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]


@pytest.mark.parametrize("engine, quantises", [("vllm", False), ("sglang", True)])
def test_the_command_compiles_what_a_plug_in_prepares(engine, quantises):
    words = [sys.executable, "-m", "octile", "compile", "--model", "qwen3-8b", "--serving", engine]
    told = subprocess.run([*words, "--dry-run", "--json"], capture_output=True, text=True, check=True).stdout
    compiled = {work["problem"]: work["tokens"] for work in json.loads(told)["problems"]}
    assert all(tokens == [[1, 16384]] for tokens in compiled.values())

    code = """
import json, sys
import torch
import octile.torch as ot
from octile.torch.engine_layers import why_unprepared
shapes, quantises = json.loads(sys.argv[1])
for n, k in shapes:
    assert why_unprepared(n, k, 16384, torch.bfloat16, quantises, torch.device("cpu")) is None
print(*ot.problems(), sep="\\n")
"""
    words = [sys.executable, "-c", code, json.dumps([SHAPES, quantises])]
    asked = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(asked) == set(compiled)


def test_a_layer_is_prepared_once(monkeypatch):
    asked = []
    monkeypatch.setattr(engine_layers, "prepare", lambda *sizes, **_: asked.append(sizes))
    for _ in range(61):
        for shape in SHAPES:
            assert engine_layers.why_unprepared(*shape, 8192, torch.float16, True, torch.device("cpu")) is None
    assert asked == [(*shape, (1, 8192), torch.float16) for shape in SHAPES]
