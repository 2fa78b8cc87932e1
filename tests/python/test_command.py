"""`python -m octile` is the command, and the recipes are those that it knows."""

import json
import pathlib
import subprocess
import sys

import pytest
from reference import ALL_RECIPES

import octile
import octile.torch as ot
from octile.torch.recipes import as_recipe


def command(*words):
    return subprocess.run([sys.executable, "-m", "octile", *words], capture_output=True, text=True)


def test_the_module_is_the_command():
    assert command("--version").stdout.split()[-1] == octile.__version__
    assert command("nonsense").returncode == 2


def test_a_wheel_names_no_folder_of_its_build():
    folder = pathlib.Path(octile.__file__).parent
    if (folder / "bin/octile").is_symlink():
        pytest.skip("a checkout, not a wheel")
    for file in ("bin/octile", "bin/octile-compiler", "bin/octile-prover", "lib/liboctile.so.0"):
        file = folder / file
        assert sys.prefix.encode() not in file.read_bytes(), file


def fields_of(name, *words):
    """Returns the fields of the canonical text of a short form of the command."""
    told = json.loads(command("explain", "--recipe", name, "--json", *words).stdout)
    return dict(word.split("=") for word in told["problem"].split()[1:])


@pytest.mark.parametrize("name", [*ALL_RECIPES, *(f"{name}:f32" for name in ALL_RECIPES if name != "mxfp8")])
def test_recipes_have_the_commands_types(name):
    recipe = as_recipe(name)
    full = {"pow2": ":pow2", "f32": "", "e8m0": ""}
    kind = recipe.activation
    assert fields_of(name, "64x256")["q"] == f"{kind.dtype}:{kind.granularity}{full[kind.scales]}"
    gemm = fields_of(name, "64x128x256")
    for field, kind in (("a", recipe.activation), ("b", recipe.weight)):
        assert gemm[field] == f"{kind.dtype}:{kind.granularity}"


def test_layers_have_every_recipe_of_the_command():
    told = command("emit", "--gemm", "?x128x256", "--recipe", "fp4").stderr
    assert set(told.split("allowed: ")[1].split(", and NAME:f32")[0].split(", ")) == set(ALL_RECIPES)
    with pytest.raises(ValueError) as refused:
        ot.Linear(64, 32, recipe="fp4")
    names = str(refused.value).removeprefix("octile: recipe is 'fp4'; allowed are ").split(", ")
    assert {name.strip("'") for name in names} == set(ALL_RECIPES)


def test_an_installation_is_complete():
    assert octile.library().is_file() and octile.command().is_file()
    assert (octile.include_directory() / "octile" / "octile.h").is_file()
