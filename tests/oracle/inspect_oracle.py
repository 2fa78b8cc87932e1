"""Compares `octile inspect` with sums in fp64 over casts of ml_dtypes, for every recipe and type of a checkpoint.

SNRs agree to 1e-9 of themselves, counts, shares and places of the four worst blocks exactly. The checkpoint has two
shards with an index, a tensor for each of several experts, one tensor for all of them, NaNs and infinities, FP8 in
blocks, and an array of NumPy. Another one has weights [k, n], and a third is measured in samples.
tests/python/test_inspect_oracle.py compares activations and gradients, which the command does not measure, with the
same sums.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from oracle_common import FP8_MAX, FP8_TYPES, TYPE_MAX, Tally, exponents

import ml_dtypes
import numpy as np  # after oracle_common, which skips if it is missing

NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3",
         "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}
RECIPES = [name + end for name in ("blockwise", "blockwise_hybrid", "tensorwise", "delayed", "rowwise")
           for end in ("", ":f32")] + ["mxfp8"]


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def block_of(recipe, shape, role="weight"):
    name = recipe.removesuffix(":f32")
    blocks = (128, 128) if role == "weight" else (1, 128)
    return {"blockwise": blocks, "blockwise_hybrid": blocks, "rowwise": (1, shape[1]),
            "mxfp8": (1, 32)}.get(name, shape)


def format_of(recipe, role):
    name = recipe.removesuffix(":f32")
    return "e5m2" if role == "gradient" and name in ("blockwise_hybrid", "tensorwise", "delayed") else "e4m3"


def panels(shape, recipes, sample):
    """Gives the parts of a matrix that a sample reads: whole rows with a scale per row, else up to 4096 columns."""
    has_rows = any(recipe.startswith("rowwise") for recipe in recipes)
    width = min(shape[1], 32768 if has_rows else 4096)
    height = max(128, 128 * 4096 // width) // 128 * 128
    places = [(row, col) for row in range(0, shape[0], height) for col in range(0, shape[1], width)]
    count = max(1, int(np.ceil(len(places) * sample)))
    for part in range(count):  # the middle one of equal parts
        row, col = places[part if count == len(places) else (2 * part + 1) * len(places) // (2 * count)]
        yield row, col, (slice(row, row + height), slice(col, col + width))


def encode_scale(amax, recipe, source_max, fp8="e4m3"):
    """Returns what a block's elements are multiplied by, in fp32."""
    if amax == 0:
        return np.float32(1)
    if recipe == "mxfp8":
        return np.exp2(-np.float64(exponents(np.float32([amax]), fp8, "up")[0])).astype(np.float32)
    with np.errstate(over="ignore"):
        encode = FP8_MAX[fp8] / np.float32(amax)
    encode = source_max if np.isinf(encode) else encode
    return encode if recipe.endswith(":f32") else np.exp2(np.floor(np.log2(np.float64(encode)))).astype(np.float32)


def db(signal, noise):
    return None if noise == 0 else 10 * np.log10(signal / noise)


class Expected:
    """Sums over the blocks of matrices of one recipe."""

    def __init__(self, recipe, source_max, role="weight"):
        self.recipe, self.source_max, self.role = recipe, source_max, role
        self.fp8 = format_of(recipe, role)
        self.signal = self.noise = self.bulk_signal = self.bulk_noise = self.rest_signal = self.rest_noise = 0.0
        self.nonzero = self.flushed = self.saturated = self.blocks = self.set_by_one = 0
        self.worst = []

    def add(self, x, matrix=0, transposed=False, at=(0, 0)):
        """x is fp32 [rows, cols], from the element `at` on. transposed: the file has its transpose, in which blocks are
        named."""
        rows, cols = block_of(self.recipe, x.shape, self.role)
        for row in range(0, x.shape[0], rows):
            for col in range(0, x.shape[1], cols):
                place = (matrix, col, row) if transposed else (matrix, at[0] + row, at[1] + col)
                self.add_block(x[row : row + rows, col : col + cols], place)

    def add_sample(self, x, recipes, sample):
        """Adds what a sample reads of a matrix that is measured by these recipes."""
        parts = list(panels(x.shape, recipes, sample))
        if block_of(self.recipe, x.shape, self.role) == x.shape:  # one scale, of all parts
            return self.add_block(np.concatenate([x[part].ravel() for _, _, part in parts]), (0, 0, 0))
        for row, col, part in parts:
            self.add(x[part], at=(row, col))

    def add_block(self, block, place):
        x = block[np.isfinite(block) & (block != 0)]
        if not x.size:
            return
        amax = np.abs(x).max()
        encode = encode_scale(amax, self.recipe, self.source_max, self.fp8)
        scaled = x * encode
        limit = FP8_MAX[self.fp8]
        codes = np.clip(scaled, -limit, limit).astype(FP8_TYPES[self.fp8])
        decode = np.float64(np.float32(1) / encode)
        wide = x.astype(np.float64)
        error = wide - codes.astype(np.float64) * decode
        above = 2 * np.abs(wide) > amax
        is_set = above.sum() == 1 and x.size > 1
        signal, noise = (wide**2).sum(), (error**2).sum()
        self.signal += signal
        self.noise += noise
        self.nonzero += x.size
        flushed = int((codes.view(np.uint8) & 0x7F == 0).sum())
        self.flushed += flushed
        # None does: a scale is made of the largest magnitude of its block, which it takes to the format's largest
        # value or below. tests/unit/reference/loss_test.cc counts them with a given scale.
        self.saturated += int((~np.isfinite(scaled.astype(FP8_TYPES[self.fp8]).astype(np.float32))).sum())
        self.blocks += 1
        self.set_by_one += int(is_set)
        if not is_set:
            self.bulk_signal += signal
            self.bulk_noise += noise
        rest = ~above if is_set else np.ones_like(above)
        self.rest_signal += (wide[rest] ** 2).sum()
        self.rest_noise += (error[rest] ** 2).sum()
        share = (error[rest] ** 2).sum() / (wide[rest] ** 2).sum()
        if 2 * flushed > x.size:  # such a block has lost at least that share
            share = max(share, flushed / x.size)
        self.worst.append((-share, -noise, place))

    def compare(self, tally, what, got):
        for name, value in (("blocks", self.blocks), ("blocks_set_by_one", self.set_by_one),
                            ("flushed_share", self.flushed / self.nonzero),
                            ("saturated_share", self.saturated / self.nonzero)):
            tally.same(f"{what} {name}", np.float64([got[name]]), np.float64([value]))
        places = [place for _, _, place in sorted(self.worst)[:4]]
        told = [(block.get("expert", 0), block["row"], block["col"]) for block in got["worst_blocks"]]
        tally.same(f"{what} worst", np.array(told), np.array(places))
        for name, value in (("snr_db", db(self.signal, self.noise)),
                            ("rest_snr_db", db(self.rest_signal, self.rest_noise)),
                            ("bulk_snr_db", db(self.bulk_signal, self.bulk_noise))):
            close = value is None and got[name] is None or abs(got[name] - value) <= 1e-9 * abs(value)
            tally.same(f"{what} {name}: {got[name]} for {value}", np.array([close]), np.array([True]))


def matrix(rng, rows, cols, dtype):
    x = rng.standard_normal((rows, cols)) * np.exp2(rng.integers(-6, 6, (rows, 1)))
    x[rows - 1, :2] = 5e4, -5e4  # set the scale of their block together
    x[3, 5] = 6e4  # sets the scale of its block, and flushes others
    x[rows // 2, :200] *= 1e-4
    x[7] = 0
    return x.astype(dtype)


def inspect(arguments, exit_code=0):
    done = subprocess.run([sys.argv[1], "inspect", "--json", *map(str, arguments)], check=False, capture_output=True,
                          text=True)
    if done.returncode != exit_code:
        sys.exit(f"octile inspect ended with {done.returncode}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines if line["what"] in ("tensor", "pair")}, done.stderr


def source_max(dtype):
    word = {"bfloat16": "bf16", "float16": "fp16"}.get(np.dtype(dtype).name, "fp32")
    return TYPE_MAX[word]


def check_types(tally, folder, rng):
    tensors = {f"layers.{i}.proj.weight": matrix(rng, 150, 300, dtype)
               for i, dtype in enumerate((ml_dtypes.bfloat16, np.float16, np.float32, np.float64))}
    tensors["layers.9.mlp.experts.down_proj"] = np.stack([matrix(rng, 40, 130, ml_dtypes.bfloat16) for _ in range(3)])
    split = {f"layers.8.mlp.experts.{e}.up_proj.weight": matrix(rng, 33, 140, ml_dtypes.bfloat16) for e in range(8, 12)}
    names = list(tensors) + list(split)
    shards = {"a.safetensors": tensors, "b.safetensors": split}
    for file, held in shards.items():
        write_safetensors(folder / file, held)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    got, _ = inspect([folder, "--recipe", ",".join(RECIPES)])
    tally.same("names", np.array(len(got)), np.array(len(names) - 3))
    groups = {name: [array] if array.ndim == 2 else list(array) for name, array in tensors.items()}
    groups["layers.8.mlp.experts.*.up_proj.weight"] = list(split.values())
    for name, matrices in groups.items():
        for at, recipe in enumerate(RECIPES):
            expected = Expected(recipe, source_max(matrices[0].dtype))
            first = 8 if matrices[0].shape == (33, 140) else 0  # the number of the first expert
            for index, x in enumerate(matrices):
                expected.add(x.astype(np.float32), first + index)
            expected.compare(tally, f"{name} {recipe}", got[name]["recipes"][at])


def check_transposed(tally, folder, rng):
    """Weights [k, n]: GPT-2's Conv1D and experts, of odd sizes, whose blocks lie along columns."""
    conv1d = matrix(rng, 130, 390, np.float32)
    experts = {"gate_up_proj": np.stack([matrix(rng, 129, 90, ml_dtypes.bfloat16) for _ in range(3)]),
               "down_proj": np.stack([matrix(rng, 45, 129, ml_dtypes.bfloat16) for _ in range(3)])}
    tensors = {"h.0.attn.c_attn.weight": conv1d, "h.0.attn.c_attn.bias": np.ones(390, np.float32)}
    tensors |= {f"h.0.mlp.experts.{name}": array for name, array in experts.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    got, _ = inspect([folder / "model.safetensors", "--recipe", ",".join(RECIPES)])
    for name, stored in tensors.items():
        if name.endswith("bias"):
            continue
        tally.same(f"{name} layout", np.array([got[name]["layout"] == "[k, n]"]), np.array([True]))
        for at, recipe in enumerate(RECIPES):
            expected = Expected(recipe, source_max(stored.dtype))
            for index, x in enumerate([stored] if stored.ndim == 2 else stored):
                expected.add(x.T.astype(np.float32), index, transposed=True)
            expected.compare(tally, f"{name} {recipe}", got[name]["recipes"][at])


def check_samples(tally, folder, rng):
    """Rows of more than 4096 elements, which are cut into parts unless a recipe has scales of rows."""
    for recipes in (RECIPES, [name for name in RECIPES if not name.startswith("rowwise")]):
        for shape in ((1300, 1500), (300, 5000)):
            x = matrix(rng, *shape, np.float32)
            np.save(folder / "x.npy", x)
            got, _ = inspect([folder / "x.npy", "--recipe", ",".join(recipes), "--sample", 0.4])
            one = next(iter(got.values()))
            parts = [x[part] for _, _, part in panels(shape, recipes, 0.4)]
            elements = sum(part.size for part in parts)
            tally.same("sampled", np.array([one["elements"], elements < x.size]), np.array([elements, True]))
            for at, recipe in enumerate(recipes):
                expected = Expected(recipe, TYPE_MAX["fp32"])
                expected.add_sample(x, recipes, 0.4)
                expected.compare(tally, f"sample of {shape} {recipe}", one["recipes"][at])


def check_npy_and_nonfinite(tally, folder, rng):
    x = matrix(rng, 60, 200, np.float32)
    x[11, 4:7] = np.nan, np.inf, -np.inf
    np.save(folder / "x.npy", x)
    got, said = inspect([folder / "x.npy", "--recipe", "rowwise"], 1)
    one = next(iter(got.values()))
    tally.same("counts", np.array([one["nans"], one["infinities"], one["zeros"]]), np.array([1, 2, 200]))
    tally.same("sentence", np.array(["1 NaN and 2 infinities" in said]), np.array([True]))
    expected = Expected("rowwise", TYPE_MAX["fp32"])
    expected.add(x)
    expected.compare(tally, "npy rowwise", one["recipes"][0])


def check_fp8(tally, folder, rng):
    """A checkpoint in blocks of 128 x 128, and the original beside it."""
    x = matrix(rng, 200, 300, np.float32)
    scales = np.zeros((2, 3), np.float32)
    codes = np.zeros(x.shape, ml_dtypes.float8_e4m3fn)
    restored = np.zeros(x.shape, np.float32)
    zeros, worst = 0, []
    for i in range(2):
        for j in range(3):
            rows, cols = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            scales[i, j] = np.abs(x[rows, cols]).max() / 448
            codes[rows, cols] = (x[rows, cols] / scales[i, j]).astype(ml_dtypes.float8_e4m3fn)
            restored[rows, cols] = codes[rows, cols].astype(np.float32) * scales[i, j]
            share = (codes[rows, cols].view(np.uint8) & 0x7F == 0).mean()
            worst.append((-share, i * 128, j * 128))
    zeros = (codes.view(np.uint8) & 0x7F == 0).mean()
    write_safetensors(folder / "fp8.safetensors", {"p.weight": codes, "p.weight_scale_inv": scales})
    write_safetensors(folder / "original.safetensors", {"p.weight": x})
    got, _ = inspect([folder / "fp8.safetensors", "--recipe", "mxfp8"])
    held = got["p.weight"]["held"]
    tally.same("held zeros", np.float64([held["zero_share"]]), np.float64([zeros]))
    first = held["worst_blocks"][0]
    tally.same("held worst", np.float64([-first["zero_share"], first["row"], first["col"]]), np.float64(min(worst)))
    at_largest = (np.abs(codes.astype(np.float32)) == 448).mean()
    tally.same("held largest", np.float64([held["at_largest_share"]]), np.float64([at_largest]))
    tally.same("held scales", np.array([held["scales"], held["scales_not_pow2"], held["bad_scales"]]),
               np.array([6, int((np.frexp(scales)[0] != 0.5).sum()), 0]))
    expected = Expected("mxfp8", TYPE_MAX["fp32"])
    expected.add(restored)
    expected.compare(tally, "fp8 mxfp8", got["p.weight"]["recipes"][0])
    got, _ = inspect(["--pair", folder / "original.safetensors", folder / "fp8.safetensors"])
    wide = x.astype(np.float64)
    error = wide - restored.astype(np.float64)
    snr = db((wide**2).sum(), (error**2).sum())
    tally.same("pair SNR", np.array([abs(got["p.weight"]["snr_db"] - snr) <= 1e-9 * snr]), np.array([True]))
    tally.same("pair differing", np.array([got["p.weight"]["differing"]]), np.array([int((error != 0).sum())]))
    tally.same("pair largest", np.float64([got["p.weight"]["largest_difference"]]), np.float64([np.abs(error).max()]))


def main():
    tally = Tally()
    rng = np.random.default_rng(5)
    for check in (check_types, check_transposed, check_npy_and_nonfinite, check_fp8, check_samples):
        with tempfile.TemporaryDirectory() as folder:
            check(tally, pathlib.Path(folder), rng)
    tally.finish("octile inspect against sums in fp64 over ml_dtypes' casts")


if __name__ == "__main__":
    main()
