#!/usr/bin/env python3
"""Says whether releases of vLLM, SGLang and JAX have what Octile's adapters use, a line a release.

The releases are the newest of each of the two newest minor versions, and the oldest that pyproject.toml allows. Their
wheels are downloaded without their dependencies, and their sources are read, not run. Compared are names of modules,
functions and classes, methods that adapters override, and keywords of constructors that they call. Neither a GPU nor
PyTorch is needed. pip of the interpreter downloads. Ends with status 1 if a release lacks something.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "runtime/python/octile"
#: The package of each adapter, its folder, and how many leading numbers of a version make a minor release.
ADAPTERS = {"vllm": ("vllm", 2), "sglang": ("sglang", 3), "jax": ("jax", 2)}
_PYTHON = "3.12"


class Release:
    """The sources of a package. A path such as "vllm.envs" is looked up in its files, through their imports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trees: dict[Path, ast.Module] = {}

    def lacks(self, path: str) -> bool:
        """Returns whether a module, or a member of one or of a class, is not there. Names that a module computes
        count as there."""
        return self._found(path.split(".")) is None

    def members(self, path: str) -> dict[str, ast.AST] | None:
        """Returns the members of a class and of its bases, or None if the class is not one of the package."""
        found = self._found(path.split("."))
        if not isinstance(found, tuple):
            return None
        module, node = found
        members = {}
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(base, ast.Name):
                members |= self.members(".".join([*module, base.id])) or {}
        return members | _defined(node.body)

    # Returns None, True, or the module of a class and the class.
    def _found(self, parts: list[str], depth: int = 0):
        size = next((i for i in range(len(parts), 0, -1) if self._file(parts[:i])), 0)
        if size == 0 or depth > 20:
            return None
        if size == len(parts):
            return True
        module, (name, *rest) = parts[:size], parts[size:]
        file = self._file(module)
        names = _defined(self._tree(file).body)
        if name not in names:
            is_computed = "__getattr__" in names and re.search(rf"\b{name}\b", file.read_text())
            return True if is_computed or (self.folder / Path(*module, name)).is_dir() else None
        node = names[name]
        if isinstance(node, ast.ImportFrom):
            of = _origin(node, name, module, file.name == "__init__.py")
            return self._found([*of, *rest], depth + 1) if of[0] == parts[0] else True
        if not isinstance(node, ast.ClassDef):
            return True
        if rest and rest[0] not in (self.members(".".join([*module, name])) or {}):
            return None
        return True if rest else (module, node)

    def _file(self, module: list[str]) -> Path | None:
        at = self.folder.joinpath(*module)
        return next((file for file in (at / "__init__.py", at.with_name(at.name + ".py")) if file.is_file()), None)

    def _tree(self, file: Path) -> ast.Module:
        if file not in self._trees:
            self._trees[file] = ast.parse(file.read_text())
        return self._trees[file]


def _defined(body: list[ast.stmt]) -> dict[str, ast.AST]:
    """Returns what statements define, by name, those in branches included."""
    names: dict[str, ast.AST] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.split(".")[0]: node for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id: node for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        else:
            for field in ("body", "orelse", "finalbody"):
                names |= _defined(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                names |= _defined(handler.body)
    return names


def _origin(node: ast.ImportFrom, name: str, module: list[str], is_package: bool) -> list[str]:
    """Returns the path that a name of a module is imported from."""
    above = module if is_package else module[:-1]
    start = above[: len(above) - node.level + 1] if node.level else []
    original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
    return [*start, *(node.module.split(".") if node.module else []), original]


class Adapter:
    """The parts of a package that the sources of an adapter use."""

    def __init__(self, package: str, sources: list[str]) -> None:
        self.paths: set[str] = set()
        self.overridden: set[tuple[str, str]] = set()  # a class, and a method of it
        self.keywords: set[tuple[str, str]] = set()  # a class, and a parameter of its constructor
        for source in sources:
            self._read(package, ast.parse(source))

    def _read(self, package: str, tree: ast.Module) -> None:
        at: dict[str, str] = {}  # paths of names
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
                at |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == package:
                        at[alias.asname or package] = alias.name if alias.asname else package
                        self.paths.add(alias.name)
            elif isinstance(node, ast.Constant) and re.fullmatch(rf"{package}(\.\w+)+", str(node.value)):
                self.paths.add(str(node.value))
        self.paths |= set(at.values())
        self.paths |= {path for node in ast.walk(tree) if (path := _chain(node, at))}
        self._read_classes(tree, at)

    def _read_classes(self, tree: ast.Module, at: dict[str, str]) -> None:
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        of = {node.name: at[base.id] for node in classes for base in node.bases if getattr(base, "id", None) in at}
        for node in classes:
            methods = _defined(node.body)
            if node.name in of:
                self.overridden |= {(of[node.name], name) for name in methods if name != "__init__"}
        for call in ast.walk(tree):
            name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
            if path := of.get(name):
                self.keywords |= {(path, keyword.arg) for keyword in call.keywords if keyword.arg}

    def lacking(self, release: Release) -> list[str]:
        """Returns what the release has not, sorted."""
        lacks = {path for path in self.paths if release.lacks(path)}
        for path, name in self.overridden:
            if path not in lacks and name not in (release.members(path) or {}):
                lacks.add(f"{path}.{name}")
        for path, name in self.keywords:
            made = (release.members(path) or {}).get("__init__")
            if made is not None and name not in {a.arg for a in ast.walk(made.args) if isinstance(a, ast.arg)}:
                lacks.add(f"{path}({name}=)")
        return sorted(lacks)

    def __len__(self) -> int:
        return len(self.paths | self.overridden | self.keywords)


def _chain(node: ast.AST, at: dict[str, str]) -> str | None:
    """Returns the path of an expression such as jax.ffi.ffi_call, or None."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ".".join([at[node.id], *names]) if names and isinstance(node, ast.Name) and node.id in at else None


def adapter_of(package: str) -> Adapter:
    folder = SOURCES / ADAPTERS[package][0]
    return Adapter(package, [file.read_text() for file in sorted(folder.glob("*.py"))])


def releases_to_read(versions: list[str], oldest: str, parts: int) -> list[str]:
    """Returns the newest of the two newest minor releases, and of the oldest. versions: the newest first."""
    newest: dict[str, str] = {}
    for version in versions:
        if re.fullmatch(r"[\d.]+(post\d+)?", version):
            minor = ".".join(version.split(".")[:parts])
            newest.setdefault(minor, version)
            if minor == oldest:
                break
    allowed = list(newest.values())
    return allowed if len(allowed) < 3 else [*allowed[:2], allowed[-1]]


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {ran.returncode}\n{ran.stderr}")
    return ran.stdout


def _versions(package: str) -> list[str]:
    line = next(line for line in _pip("index", "versions", package).splitlines() if line.startswith("Available"))
    return line.partition(":")[2].replace(" ", "").split(",")


def _oldest(package: str) -> str:
    project = (ROOT / "pyproject.toml").read_text()
    return re.search(rf'"{package}>=([\d.]+)"', project)[1]


def _unpacked(package: str, version: str, folder: Path) -> Release:
    """Downloads a release's wheel and returns its sources."""
    platforms = [word for minor in range(41) for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
    tags = ["--platform", "manylinux1_x86_64", "--platform", "manylinux2014_x86_64", *platforms]
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--python-version", _PYTHON, *tags]
    _pip("download", *options, "--dest", str(folder), f"{package}=={version}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    return Release(folder)


def _lines() -> Iterator[tuple[str, bool]]:
    for package, (_, parts) in ADAPTERS.items():
        adapter = adapter_of(package)
        for version in releases_to_read(_versions(package), _oldest(package), parts):
            with tempfile.TemporaryDirectory() as folder:
                lacks = adapter.lacking(_unpacked(package, version, Path(folder)))
            what = "lacks " + ", ".join(lacks) if lacks else f"has the {len(adapter)} names that octile.{package} uses"
            yield f"{package} {version} {what}", bool(lacks)


def main() -> int:
    failed = False
    for line, lacks in _lines():
        print(line, flush=True)
        failed = failed or lacks
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
