"""The notebooks of docs/notebooks run from top to bottom, their controls show what the library computes, and
docs/fp8-notes.md has the pictures that the same functions draw."""

import json
import math
import re
import subprocess
import tempfile
from pathlib import Path

import numpy
import pytest
import torch
from reference import kept_bytes

import octile
import octile.numpy as on
import octile.torch as ot
from octile._recipes import ROWS
from octile.notebooks import layer, numbers, one_scale, pays, pictures, records, style, sums, tiles

nbformat = pytest.importorskip("nbformat")
KernelManager = pytest.importorskip("jupyter_client").KernelManager
NotebookClient = pytest.importorskip("nbclient").NotebookClient

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch):
    monkeypatch.chdir(FOLDER)


# ---- the notebooks


@pytest.fixture(scope="module")
def kernel():
    """One process of Jupyter for all notebooks, because a start takes as long as a notebook."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:  # sockets need a short path
        patch.setenv("JUPYTER_RUNTIME_DIR", home)
        patch.setenv("IPYTHONDIR", home)
        manager = KernelManager(kernel_name="python3", transport="ipc", ip=home + "/kernel")
        manager.start_kernel(cwd=str(FOLDER))
        yield manager
        manager.shutdown_kernel(now=True)


def cell_of(source):
    return nbformat.v4.new_code_cell(source)


class Runs:
    """The notebooks, each run once in the same process."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.cells = {}
        self.cpu_seconds = 0.0  # of the process, from its start until the end of its last notebook

    def of(self, path):
        """Returns the code cells of a notebook, with their outputs."""
        if path not in self.cells:
            notebook = nbformat.read(path, 4)
            cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
            # Names of an earlier notebook are gone.
            notebook.cells.insert(0, cell_of("%reset -f"))
            notebook.cells.append(cell_of("import os\nsum(os.times()[:4])"))
            NotebookClient(notebook, km=self.kernel, timeout=100).execute()
            self.cpu_seconds = float(notebook.cells[-1].outputs[0]["data"]["text/plain"])
            self.cells[path] = cells
        return self.cells[path]


@pytest.fixture(scope="module")
def runs(kernel):
    return Runs(kernel)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(runs, path):
    cells = runs.of(path)
    shown = [data for cell in cells for out in cell.outputs for data in [out.get("data", {})]]
    pictures_of = [data["text/html"] for data in shown if "<svg" in data.get("text/html", "")]
    assert pictures_of and all("var(--text)" in html for html in pictures_of)
    assert any("application/vnd.jupyter.widget-view+json" in data for data in shown)
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "stream" and out.name == "stderr"]


def test_all_together_take_at_most_two_minutes(runs):
    for path in NOTEBOOKS:
        runs.of(path)
    # This is time of the processor, so that other work on the machine does not count.
    assert 1 < runs.cpu_seconds <= 120


def test_a_moved_control_changes_the_output(kernel):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        cell_of("from octile.notebooks import numbers\nmoved = numbers.Value(value=0.3)\nmoved"),
        cell_of("moved.set(value=500)"),
    ]
    NotebookClient(notebook, km=kernel, timeout=100).execute()
    html = notebook.cells[0].outputs[1]["data"]["text/html"]
    assert "saturated" in html and "0x7e" in html and "0x2a" not in html


def test_has_five_notebooks_without_outputs_and_nothing_else():
    names = "accumulation", "does_fp8_pay", "numbers_and_tiles", "one_scale", "three_products"
    # Jupyter's sockets are elsewhere: what is here is installed.
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.ipynb" for name in names}
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert notebook["metadata"].keys() == {"kernelspec", "language_info"}, path.name
        for cell in notebook["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None and not cell["metadata"], path.name
            # A cell calls the module: what it computes is tested here.
            assert cell["cell_type"] == "markdown" or len(cell["source"]) <= 6, path.name


def test_controls():
    explorer = numbers.Value()
    with pytest.raises(
        TypeError, match="octile: Value has no control 'size'; allowed are 'value', 'encode_scale', 'dt"
    ):
        explorer.set(size=3)
    explorer._widgets["value"].value = 2.3  # as a person does
    assert explorer.result.value == 2.3 and explorer.result.stored == 2.25
    assert explorer.set(dtype="e5m2").result.stored == 2.5
    assert explorer.values == {"value": 2.3, "encode_scale": 1.0, "dtype": "e5m2"}


# ---- numbers and tiles


def test_values_are_those_of_another_cast():
    for dtype, other in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        codes = torch.arange(256, dtype=torch.uint8)
        numpy.testing.assert_array_equal(numbers.code_values(dtype), codes.view(other).float().numpy())
        x = numpy.random.default_rng(0).standard_normal(5000, numpy.float32) * 30
        expected = torch.from_numpy(x * numpy.float32(0.37)).to(other).view(torch.uint8).numpy()
        numpy.testing.assert_array_equal(numbers.cast(x, dtype, 0.37), expected)


@pytest.mark.parametrize(
    ("value", "scale", "code", "stored", "below", "above", "flushed", "saturated", "integer"),
    [
        (0.3, 1, 0x2A, 0.3125, 0.28125, 0.34375, False, False, 0),
        (-0.3, 1, 0xAA, -0.3125, -0.34375, -0.28125, False, False, 0),
        (2.0**-10, 1, 0x00, 0, -(2.0**-9), 2.0**-9, True, False, 0),
        (2.0**-10, 256, 0x28, 2.0**-10, 0.234375 / 256, 0.28125 / 256, False, False, 0),
        (0, 1, 0x00, 0, -(2.0**-9), 2.0**-9, False, False, 0),
        (464, 1, 0x7E, 448, 416, 448, False, False, 448),
        (465, 1, 0x7E, 448, 416, 448, False, True, 448),
        (100.4, 1, 0x6D, 104, 96, 112, False, False, 100),
    ],
)
def test_a_value(value, scale, code, stored, below, above, flushed, saturated, integer):
    made = numbers.Value(value=value, encode_scale=scale).result
    assert made == numbers.Cast(value, scale, code, stored, below, above, flushed, saturated, integer)
    assert made.error == stored - value and made.integer_error == integer - value


def test_a_tensor():
    explorer = tiles.Tensor()
    for scales, recipe, role in (
        ("tensor, f32", "tensorwise:f32", "weight"),
        ("1x128, pow2", "blockwise", "activation"),
        ("128x128, f32", "blockwise:f32", "weight"),
        ("row, f32", "rowwise:f32", "weight"),
        ("1x32, e8m0", "mxfp8", "weight"),
    ):
        made = explorer.set(outlier=1e6, scales=scales).result
        kind = made.type
        assert made.loss == on.inspect(made.x, recipe, role).tensors[0].losses[recipe]
        restored = on.dequantize(on.quantize(made.x, kind.dtype, kind.granularity, kind.scales))
        numpy.testing.assert_array_equal(made.restored, restored)
        blocks = math.prod(-(-size // block) for size, block in zip(made.x.shape, made.block))
        assert made.loss.blocks == blocks and made.loss.flushed == (made.restored == 0).sum()
    assert f"{made.loss.rest_snr_db:.1f} dB" in explorer.page(made)
    assert made.x[tiles.OUTLIER_AT] == 1e6 and (abs(made.x) < 10).sum() == made.x.size - 1


def test_whole_numbers_are_those_of_the_tutorials():
    x = tiles.normal(40, 200, 7)
    step = abs(x).max() / 448
    numpy.testing.assert_allclose(tiles.integers_of(x, "tensor"), numpy.round(x / step) * step, rtol=1e-6)
    for granularity, (rows, cols) in tiles.BLOCKS.items():
        made = tiles.integers_of(x, granularity)
        part = numpy.s_[: rows or 40, : cols or 200]
        assert made.shape == x.shape
        assert abs(made[part]).max() == pytest.approx(abs(x[part]).max())  # a block's largest is kept
        assert abs(made - x)[part].max() <= abs(x[part]).max() / 896 * 1.0001


# Sentences of docs/fp8-notes.md and of the notebook about the picture.
def test_outliers_of_every_size():
    found = tiles.sweep()
    at = {g: numpy.interp([3e3, 1e7], found.outliers, values) for g, values in found.fp8.items()}
    assert all(values[0] == pytest.approx(31.6, abs=0.4) for values in at.values())
    assert at["tensor"][1] < 1 < at["128x128"][1] < at["row"][1] < at["1x128"][1]
    assert max(map(max, found.fp8.values())) < 32
    assert max(found.integers["1x128"]) > 50
    whole = numpy.interp([100, 1000], found.outliers, found.integers["tensor"])
    assert whole[0] - whole[1] == pytest.approx(20, abs=3)  # dB for three binades and a third


# ---- accumulation


def _mixed(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (1 << 64) - 1
    return z ^ (z >> 31)


def random_bits(seed, index):
    """runtime/reference/synthetic.h's."""
    return _mixed((_mixed(seed + 1) + (index + 1) * 0x9E3779B97F4A7C15) & (1 << 64) - 1)


def random_values(seed, count):
    indices = (random_bits(seed, i) % 252 for i in range(count))
    codes = [index + 1 if index < 126 else index + 3 for index in indices]
    return numbers.code_values("e4m3").astype(float)[codes][None]


def test_sums_have_the_bits_of_the_models_of_emulated_kernels():
    lines = (ROOT / "tests" / "cells" / "sums.txt").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    assert len(rows) >= 20
    for bits, step, terms, seed, expected in rows:
        a, b = (random_values(2 * int(seed) + of, int(terms)) for of in (0, 1))
        made = sums.add_products(numpy.zeros(1), a, b, sums.SumModel("a row", int(bits), int(step)))
        assert made[0] == float.fromhex(expected), (bits, step, terms, seed)


def test_sums_in_fp32_are_the_host_executors():
    of = sums.operands("one sign").first(512)
    for interval in sums.INTERVALS:
        size = 512 if interval == "none" else int(interval)
        total = numpy.zeros(sums.CASES, numpy.float32)
        for at in range(0, 512, size):
            products = (of.a * of.b)[:, at : at + size].astype(numpy.float32)
            total += numpy.add.accumulate(products, axis=1)[:, -1]
        numpy.testing.assert_array_equal(sums.in_fp32(of, interval), total)


def test_sums_that_are_rounded_after_each_term():
    of = sums.operands("one sign").first(64)
    bf16, fp8 = torch.zeros(sums.CASES), torch.zeros(sums.CASES)
    products = (of.a * of.b).astype(numpy.float32)
    scale = numpy.float32(448 / (of.a * of.b).sum(axis=1).max())
    for each in products.T:
        bf16 = (bf16 + torch.from_numpy(each.copy())).bfloat16().float()
        fp8 = (fp8 + torch.from_numpy(each * scale)).to(torch.float8_e4m3fn).float()
    numpy.testing.assert_array_equal(sums.in_bf16(of), bf16.numpy())
    numpy.testing.assert_array_equal(sums.in_fp8(of), fp8.numpy() / scale)


def test_accumulation():
    explorer = sums.Accumulation(terms=1024, interval="256", draw="one sign")
    result = explorer.result
    of = sums.operands("one sign").first(1024)
    exact = (of.a * of.b).sum(axis=1)
    for name, made in (("13 bits", sums.promoted(of, sums.WGMMA, "256")), ("fp32", sums.in_fp32(of, "256"))):
        assert result.terms[name][1024] == (abs(made - exact) / exact).max()
    assert result.terms["13 bits"][1024] == result.intervals["13 bits"]["256"]
    assert result.terms["BF16"][1024] > 10 * result.terms["13 bits"][1024] > 1000 * result.terms["fp32"][1024]
    assert list(result.intervals["13 bits"]) == list(sums.INTERVALS)
    # docs/numerics.md: sums of one sign need more than 48 at 512, and more than the tolerance of all of K 2048.
    longest = explorer.set(terms=2048).result.intervals["13 bits"]
    assert 48 < longest["512"] / sums.UNIT < 60 and 250 < longest["none"] / sums.UNIT < 330


def test_measured_errors_are_the_gpu_suites():
    report = json.loads((ROOT / "tests" / "gpu" / "REPORT.json").read_text())
    seen = sums.measured()
    assert seen.c == report["worst_c"]
    assert seen.source.startswith("GPU suite, ") and report["device"].removeprefix("NVIDIA ") in seen.source
    explorer = sums.Accumulation(terms=2048, interval="128", draw="uniform codes")
    page = explorer.page(explorer.result)
    assert seen.source in page and f"{report['worst_c']['128']:.3g}" in page
    # The notebook says that the model lies at the measured errors. Those at 32 are of MX, too, and that of all of K
    # is of longer sums.
    for interval in ("64", "128", "256", "512"):
        assert 0.5 < explorer.result.intervals["13 bits"][interval] / sums.UNIT / seen.c[interval] < 4


# ---- three products


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_copies_and_products_of_a_layer(row):
    made = layer.layer_of(row.name, 256, 384, 128)
    assert [(copy.tensor, copy.direction, copy.made) for copy in made.copies] == [
        ("X", "row-wise", "forward"),
        ("X", "transposed", "forward"),
        ("W", "row-wise", "forward"),
        ("W", "transposed", "forward"),
        ("dY", "row-wise", "backward"),
        ("dY", "transposed", "backward"),
    ]
    kinds = {"X": row.activation, "W": row.weight, "dY": row.gradient}
    assert all(copy.type == kinds[copy.tensor] for copy in made.copies)
    assert [copy.read_by for copy in made.copies] == ["Y", "dW", "Y", "dX", "dX", "dW"]
    assert [copy.scale == "of earlier steps" for copy in made.copies] == [row.delayed] * 2 + [False] * 2 + [
        row.delayed
    ] * 2
    assert [p.result for p in made.products] == ["Y", "dX", "dW"]
    assert [p.promote for p in made.products] == [row.promote_forward, *[row.promote_backward] * 2]
    x = numpy.ones((256, 128), numpy.float32)
    rowwise, transposed = on.quantize(
        x, row.activation.dtype, row.activation.granularity, row.activation.scales, "both"
    )
    for copy, quantized in zip(made.copies, (rowwise, transposed)):
        assert copy.bytes == quantized.codes.nbytes + quantized.scales.nbytes


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise", "rowwise"])
def test_kept_bytes_are_those_of_a_layer_of_pytorch(recipe):
    linear = ot.Linear(256, 128, bias=False, dtype=torch.bfloat16, recipe=recipe)
    x = torch.randn(512, 256, dtype=torch.bfloat16, requires_grad=True)
    assert layer.layer_of(recipe, 512, 128, 256).kept_bytes == kept_bytes(linear, x)


def test_times_of_a_layer():
    explorer = layer.Products(recipe="blockwise", layer="8192 tokens, [8192, 8192]")
    made, times = explorer.result
    assert times.measured and (made.tokens, made.n, made.k) == (8192, 8192, 8192)
    what = "linear m=8192 n=8192 k=8192 recipe=blockwise"
    found = {r["part"]: r for r in records.newest_of_each([r for r in records.load(ROOT) if r["what"] == what])}
    assert times.fp8["wgrad"] == records.median(found["wgrad"])
    assert times.bf16["fprop"] == records.median(found["fprop"]["peers"][0])
    assert found["wgrad"]["commit"][:7] in times.source and times.source in explorer.page(explorer.result)
    assert "<pattern" not in explorer.page(explorer.result)
    # The parts of a graph take together what the step was measured to take.
    assert sum(times.fp8.values()) == pytest.approx(records.median(found["step"]), rel=0.02)
    _, times = explorer.set(recipe="mxfp8").result
    assert times.measured and sum(times.fp8.values()) > 2 * sum(times.bf16.values())  # as the notebook says
    _, times = explorer.set(recipe="tensorwise:f32").result
    assert not times.measured and times.source == "estimated for an H200"
    assert "<pattern" in explorer.page(explorer.result)  # hatched


# ---- does FP8 pay


def shapes(*words):
    command = [octile.command(), "shapes", "--json", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_gains_are_those_of_the_command():
    explorer = pays.Pays(model="llama-3-8b", tokens=2048, tp=2, mode="prefill", device="h200")
    words = "--model llama-3-8b --tokens 2048 --tp 2 --mode prefill --device h200 --estimate --recipe blockwise"
    told = shapes(*words.split())["models"][0]
    assert len(explorer.result.layers) == len(told["estimate"]["layers"])
    for made, expected in zip(explorer.result.layers, told["estimate"]["layers"]):
        gain = made.at(2048)
        assert (made.name, made.n, made.k) == (expected["layer"], expected["n"], expected["k"])
        assert (gain.verdict, gain.by, gain.median) == (expected["verdict"], expected["by"], expected["gain"]["median"])
    assert explorer.result.sums == told["estimate"]["sums"][0]
    assert f"{explorer.result.sums['fp8_us'] / 1000:.1f} ms" in explorer.page(explorer.result)


def test_measured_layers_are_those_that_convert_goes_by():
    explorer = pays.Pays(model="llama-3-8b", tokens=8192)
    lines = (Path(ot.__file__).parent / "layers.jsonl").read_text().splitlines()
    what = "mode=training tokens=8192 n=4096 k=4096 recipe=blockwise"
    record = next(record for record in map(json.loads, lines) if record["what"].endswith(what))
    query = next(one for one in explorer.result.layers if one.name == "self_attn.q_proj")
    seen = next(gain for gain in query.measured if gain.tokens == 8192)
    assert (seen.median, seen.verdict, seen.by) == (record["median"], record["details"]["verdict_eager"], "measured")
    page = explorer.page(explorer.result)
    assert pays.measured_source() in page and "estimated, hatched and dashed" in page
    # Another card has no measurement.
    page = explorer.set(device="b200").page(explorer.result)
    assert not any(one.measured for one in explorer.result.layers) and "none on b200" in page


def test_memory_of_a_rank():
    memory = pays.Pays(model="llama-3-8b", tokens=8192).result.memory
    model = shapes("--model", "llama-3-8b")["models"][0]
    kept = memory.bf16["kept for backward"]
    assert sum(memory.bf16.values()) - kept == 16 * model["parameters"]  # docs/torch.md
    assert memory.fp8["kept for backward"] < 0.52 * kept
    parameters = memory.bf16["weights"] / 2
    assert memory.fp8["FP8 copies"] == pytest.approx(2 * parameters, rel=0.001)
    assert memory.primary["weights"] == pytest.approx(parameters, rel=0.001)
    assert memory.card == 80 * 2**30
    served = pays.Pays(model="llama-3-8b", tokens=8192, mode="prefill").result.memory
    assert served.fp8["weights"] == pytest.approx(served.bf16["weights"] / 2, rel=0.001) and not served.primary


def test_a_refusal_is_shown():
    explorer = pays.Pays(model="llama-3-8b", tp=64)
    assert explorer.result.refusal.startswith("octile: --tp is 64; allowed are divisors of num_attention_heads, 32")
    assert "--tp is 64" in explorer.page(explorer.result)
    large = pays.Pays(model="llama-3-405b")
    assert "an h100 has 80: --tp" in large.page(large.result)


# ---- one scale


def test_answers_are_those_of_the_notebook():
    explorer = one_scale.OneScale(channel=100)
    assert explorer.result.may and "<b>Yes: " in explorer.page(explorer.result)
    calm = explorer.result
    assert calm.losses["tensorwise"][-1] == pytest.approx(calm.losses["blockwise"][-1], rel=0.1)
    assert calm.errors["tensorwise"]["dX"] > 1.3 * calm.errors["blockwise"]["dX"]
    assert one_scale.answer(1e3).may
    louder = one_scale.answer(1e4)
    assert not louder.may and [each.tensor for each in louder.tensors if not each.may] == ["X"]
    assert louder.errors["tensorwise"]["Y"] == pytest.approx(2 * louder.errors["blockwise"]["Y"], rel=0.1)
    assert louder.losses["tensorwise"][-1] < 0.02
    assert 0.05 < louder.tensors[0].one.flushed_share < 0.15
    loudest = explorer.set(channel=1e5).result
    assert "<b>No: X loses " in explorer.page(loudest)
    assert loudest.losses["tensorwise"][-1] > loudest.losses["tensorwise"][0] > 50 * loudest.losses["blockwise"][-1]


def test_a_step_has_the_products_of_the_recipe():
    of = one_scale.run("fp32", 100.0)
    row = one_scale.row_of("blockwise")
    x, w, dy = (torch.from_numpy(each) for each in (of.x, of.w, of.dy))
    linear = ot.Linear(one_scale.K, one_scale.N, bias=False, recipe="blockwise")
    with torch.no_grad():
        linear.weight.copy_(w)
    x.requires_grad_()
    y = linear(x)
    y.backward(dy)
    made = one_scale.products(of.x, of.w, of.dy, row)
    for ours, theirs in zip(made, (y.detach(), x.grad, linear.weight.grad)):
        numpy.testing.assert_array_equal(ours, theirs.numpy())


def test_tensors_without_a_difference():
    seen = one_scale.compare({"X": tiles.normal(128, 256), "W": tiles.normal(64, 256), "dY": tiles.normal(128, 64)})
    assert [each.tensor for each in seen] == ["X", "W", "dY"] and all(each.may for each in seen)
    assert seen[2].one.snr_db == pytest.approx(25.5, abs=0.3)  # E5M2


def test_measurements_of_one_scale():
    seen = one_scale.measured()
    found = [r for r in records.load(ROOT) if r.get("part") == "held out" and r["what"].endswith("recipe=tensorwise")]
    assert seen.losses["tensorwise"] == max(found, key=lambda r: r["date"])["median"]
    # The notebook says that losses and times are about the same.
    assert seen.losses["tensorwise"] == pytest.approx(seen.losses["bf16"], rel=0.005)
    assert seen.gemm_us["tensorwise"] == pytest.approx(seen.gemm_us["blockwise"], rel=0.05)
    assert "commit" in seen.gemm_source


# ---- pictures

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def test_pictures_of_the_notes_are_drawn_by_the_module():
    """Their texts are equal and their places are, up to the last of the digits that the files have."""
    drawn = pictures.of_notes(ROOT)
    notes = (ROOT / "docs" / "fp8-notes.md").read_text()
    assert re.findall(r'src="plots/([\w-]+)\.svg"', notes) == list(drawn)
    for name, text in drawn.items():
        file = (ROOT / "docs" / "plots" / f"{name}.svg").read_text()
        again = f"docs/plots/{name}.svg is not what the module draws: make plots"
        assert NUMBER.sub("#", text) == NUMBER.sub("#", file), again
        places = [numpy.array(NUMBER.findall(one), float) for one in (text, file)]
        numpy.testing.assert_allclose(*places, atol=0.05, err_msg=again)
        for name in ("text", "octile"):
            assert all(f"--{name}:{colour}" in file for colour in style.COLOURS[name])


def test_plots_and_notebooks_have_one_matplotlib():
    pins = {
        (ROOT / "tools" / "requirements" / f"{name}.txt").read_text().partition("matplotlib==")[2].split()[0]
        for name in ("plots", "torch")
    }
    assert len(pins) == 1


def test_a_folder_outside_of_a_clone(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="is in no source tree of Octile; allowed are folders of a clone, which"
    ):
        records.source_tree(tmp_path)
