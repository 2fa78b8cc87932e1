"""The package's modules import each other without a circle, also inside functions and for types."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import octile

PACKAGE = Path(octile.__file__).parent


def modules():
    """Returns the files of all modules by their names."""
    files = {}
    for file in PACKAGE.rglob("*.py"):
        parts = ("octile", *file.relative_to(PACKAGE).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


def imported(file, names):
    """Returns the modules of the package that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in names else node.module for member in members}
    return found & names


def test_no_import_closes_a_circle():
    files = modules()
    assert "octile.torch.watch" in files and "octile._c" in files
    order = list(TopologicalSorter({name: imported(file, files.keys()) for name, file in files.items()}).static_order())
    assert order.index("octile.torch.watch") < order.index("octile.torch.layer") < order.index("octile.torch.nonfinite")


def test_the_package_leaves_the_compiler_of_torch_alone():
    program = "import sys, octile.torch; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
