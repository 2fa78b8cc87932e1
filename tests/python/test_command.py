"""`python -m octile` is the command, and the recipes are those that it knows."""

import subprocess
import sys

import pytest
from reference import ALL_RECIPES

import octile
import octile.torch as ot


def command(*words):
    return subprocess.run([sys.executable, "-m", "octile", *words], capture_output=True, text=True)


def test_the_module_is_the_command():
    assert command("--version").stdout.split()[-1] == octile.__version__
    assert command("nonsense").returncode == 2


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_recipes_have_the_commands_types(name):
    told = command("emit", "--explain", "--tokens", "64", "--gemm", "?x128x256", "--recipe", name).stdout
    problem = next(line for line in told.splitlines() if line.startswith("problem = "))
    fields = dict(word.split("=") for word in problem.removeprefix("problem = gemm ").split())
    recipe = ot.Recipe(name)
    for field, kind in (("a", recipe.activation), ("b", recipe.weight)):
        assert fields[field].split(":")[:2] == [kind.dtype, kind.granularity]


def test_layers_have_every_recipe_of_the_command():
    told = command("emit", "--gemm", "?x128x256", "--recipe", "fp4").stderr
    assert set(told.split("allowed: ")[1].strip().split(", ")) == set(ALL_RECIPES)
    with pytest.raises(ValueError) as refused:
        ot.Linear(64, 32, recipe="fp4")
    names = str(refused.value).removeprefix("octile: recipe is 'fp4'; allowed are ").split(", ")
    assert {name.strip("'") for name in names} == set(ALL_RECIPES)


def test_an_installation_is_complete():
    assert octile.library().is_file() and octile.command().is_file()
    assert (octile.include_directory() / "octile" / "octile.h").is_file()
