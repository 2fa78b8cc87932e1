"""Samples of the documents that are not commands: texts of problems, a model's file, and the examples of FORMAT.md.

Each function takes the text of a code block and returns what is wrong with it, or None. `run` runs a command of the
newcomer's shell and returns the completed process; `here` is the folder in which it runs.
"""
import json
import re
import struct

OPERATIONS = ("gemm", "quantize", "dequantize", "transpose")
HEADER = struct.Struct("<8sIIQQQQ")  # FORMAT.md, section 2


def write_checkpoints(here):
    """Writes what the examples of `octile inspect` read: folders with a checkpoint, a file of one, and an array."""
    floats = struct.pack("<256f", *(1 + i / 256 for i in range(256)))
    tensor = {"dtype": "F32", "shape": [4, 64], "data_offsets": [0, len(floats)]}
    header = json.dumps({"model.layers.3.mlp.down_proj.weight": tensor}).encode()
    checkpoint = struct.pack("<Q", len(header)) + header + floats
    for name in ("model_folder", "bf16_folder", "fp8_folder", "."):
        (here / name).mkdir(exist_ok=True)
        (here / name / "model.safetensors").write_bytes(checkpoint)
    literal = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 64), }\n"
    (here / "weights.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(literal)) + literal + floats)


def is_problem(line):
    return re.match(rf"({'|'.join(OPERATIONS)}) \w+=", line) is not None


def try_problem(line, run):
    """The command knows every field of a problem, and that a kernel serves it."""
    ended = run(f"octile explain '{line}'")
    if ended.returncode != 0:
        return f"is not a problem: {ended.stderr}"
    return None if re.search(r"^  supported\s+yes", ended.stdout, re.M) else f"has no kernel:\n{ended.stdout}"


def try_model(text, run, here):
    """A model's file is one that the command takes, and each of its layers is one that it names."""
    (here / "sample.json").write_text(text)
    ended = run("octile tune --explain --model sample.json --tokens 64 --wide")
    if ended.returncode != 0:
        return f"is not a model: {ended.stderr}"
    for layer in json.loads(text)["gemms"]:
        if not re.search(rf"\?x{layer['n']}x{layer['k']} +1 +64 ", ended.stdout):
            return f"the layer {layer['name']} is not in\n{ended.stdout}"
    return None


def joined(text):
    """Returns a line that a document wraps: a break is a space within a text, and nothing elsewhere."""
    lines = text.strip("\n").split("\n")
    whole = lines[0]
    for line in lines[1:]:
        within = whole.count('"') % 2 == 1
        whole += (" " if within else "") + line
    return whole


def try_record(text, run, home):
    """A tuning record that a person wrote decides."""
    record = json.loads(joined(text))
    shape = re.search(r"n=(\d+) k=(\d+)", record["problem"])
    command = f"octile emit --gemm {record['tokens']}x{shape[1]}x{shape[2]} --device {record['device']} --explain"
    root = home / ".cache/octile"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "tuning.jsonl").write_text(joined(text) + "\n")
    ended = run(command)
    (root / "tuning.jsonl").unlink()
    if ended.returncode != 0 or record["winner"]["config"] not in " ".join(ended.stdout.split()):
        return f"does not decide: {command}\n{ended.stdout}{ended.stderr}"
    return None


class Entry:
    """An entry that this command makes of the problem of FORMAT.md's example."""

    def __init__(self, run, home):
        ended = run("octile compile --device h200 --quantize 128x7168")
        files = sorted((home / ".cache/octile/v1").glob("*/*.octile"), key=lambda file: file.stat().st_mtime)
        if ended.returncode != 0 or not files:
            raise RuntimeError(ended.stderr)
        self.bytes = files[-1].read_bytes()
        (self.magic, self.version, self.flags, self.metadata_bytes, self.key_bytes, self.text_bytes,
         self.cubin_bytes) = HEADER.unpack_from(self.bytes)
        self.metadata = self.bytes[HEADER.size:HEADER.size + self.metadata_bytes].decode()


def try_header(text, entry, metadata):
    """The numbers of the example agree with each other, and its layout is that of an entry made now."""
    rows = [re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} )+)", line) for line in text.splitlines()[1:]]
    offsets = [int(row[1], 16) for row in rows if row]
    head = b"".join(bytes.fromhex(row[2]) for row in rows[:3])
    magic, version, flags, m, k, t, c = HEADER.unpack(head)
    said = dict((name, int(value)) for name, value in re.findall(r"\b([MKTC]) = (\d+)", text))
    if said != {"M": m, "K": k, "T": t, "C": c}:
        return f"says {said}, and its bytes say {[m, k, t, c]}"
    if len(joined(metadata)) != m:
        return f"says {m} bytes of metadata; those of the document have {len(joined(metadata))}"
    places = [0, 16, 32, HEADER.size, HEADER.size + m, 64 + m, 64 + m + k, 64 + m + k + c]
    if offsets != places:
        return f"has the offsets {offsets}, expected {places}"
    if (magic, version, flags) != (entry.magic, entry.version, entry.flags):
        return f"begins otherwise than an entry: {entry.bytes[:16].hex(' ')}"
    total = 80 + entry.metadata_bytes + entry.key_bytes + entry.cubin_bytes
    return None if len(entry.bytes) == total else f"an entry has {len(entry.bytes)} bytes, not {total}"


def try_metadata(text, entry):
    """An entry made now has the same fields in the same order, of the same kinds."""
    kinds = [[(name, type(value).__name__) for name, value in json.loads(line).items()]
             for line in (joined(text), entry.metadata)]
    return None if kinds[0] == kinds[1] else f"an entry has {kinds[1]}"


def try_format(blocks, run, home):
    """Tries the examples of FORMAT.md; yields (name, what is wrong or None)."""
    def one(start):
        found = [block for block in blocks if block.startswith(start)]
        if len(found) != 1:
            raise RuntimeError(f"FORMAT.md has {len(found)} examples that begin with {start!r}")
        return found[0]

    entry = Entry(run, home)
    metadata = one('{"kernel":')
    yield "an entry's bytes", try_header(one("offset    bytes"), entry, metadata)
    yield "an entry's metadata", try_metadata(metadata, entry)
    yield "a tuning record", try_record(one('{"version":1,'), run, home)
    memo = (home / ".cache/octile/toolchain.memo").read_text()
    first = re.match(r'memo      = "([^"]+)" LF', one("memo      ="))[1]
    yield "a memo", None if memo.startswith(first + "\n") else f"begins with {memo.splitlines()[0]}"

