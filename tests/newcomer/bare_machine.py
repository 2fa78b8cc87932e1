#!/usr/bin/env python3
"""Runs a command as on a machine that has only the packages of tools/setup.sh.

    bare_machine.py --home FOLDER [--goal test] [--ccache FOLDER] COMMAND...

In a mount namespace of its own, the command sees
- of Debian's packages those of a minimal system, git, make, ca-certificates, the packages of the goal, and what these
  depend on. Every file of another package below /usr is hidden, and dpkg knows no other package;
- an empty /usr/local, so no CUDA toolkit;
- FOLDER as home folder, which its owner alone can enter. The command starts there;
- a PATH of Debian, and of the environment only the variables for the network, the terminal and the language.

With --ccache, the package ccache is left too if it is installed, and its cache is the folder.

The hidden folders are printed, and the command starts only if all of them are gone. Where no namespace can be made (no
root, no overlay filesystem), one sentence says so, and the command runs with that environment and home folder alone;
with --strict it does not run, and the exit status is 77.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DPKG = pathlib.Path("/var/lib/dpkg")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables of the environment: the network, pip's index, the terminal, the language, and those that .ci/run sets for
# make and ctest.
KEPT = re.compile(r"(https?|ftp|all|no)_proxy|PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|LANG|LC_\w+|TERM|TZ|TMPDIR|"
                  r"MAKEFLAGS|CTEST_\w+|OCTILE_TESTS", re.I)
ALWAYS = ("apt", "git", "make", "ca-certificates")  # debootstrap's minbase, and what README asks for
SKIPPED = 77


class Refused(Exception):
    """The system allows no namespace or no mount."""


def packages_of(status):
    """Returns the installed packages of dpkg's status: {name: {field: value}}. The field "text" is the whole entry."""
    packages = {}
    for text in status.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)", text, re.M))
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields | {"text": text.strip("\n") + "\n\n"}
    return packages


def names_in(relation):
    """Returns the names of a relation of packages: "a (>= 1) | b:any, c" has a, b and c."""
    return re.findall(r"(?:^|[,|])\s*([\w.+-]+)", relation)


def needed(packages, wanted):
    """Returns the names of the wanted packages, of those every system has, and of all that these depend on.

    The first installed one of alternatives counts, as apt would take it on an empty system.
    """
    providers = {name: name for name in packages}
    for name, fields in packages.items():
        for provided in names_in(fields.get("Provides", "")):
            providers.setdefault(provided, name)
    todo = [*wanted, *(name for name, fields in packages.items()
                       if fields.get("Essential") == "yes" or fields.get("Priority") == "required")]
    kept = set()
    while todo:
        name = todo.pop()
        if name in kept:
            continue
        kept.add(name)
        for field in ("Pre-Depends", "Depends"):
            for choices in packages[name].get(field, "").split(","):
                serving = [providers[n] for n in names_in(choices) if n in providers]
                todo += serving[:1]
    return kept


def files_of(name):
    """Returns the paths that a package owns, below /usr where Debian has links to it."""
    lists = [*DPKG.glob(f"info/{name}.list"), *DPKG.glob(f"info/{name}:*.list")]
    lines = {line for file in lists for line in file.read_text().splitlines()}
    return {re.sub(r"^/(bin|sbin|lib\w*)/", r"/usr/\1/", line) for line in lines}


def parents_of(path):
    """Returns the folders that a path lies in, but for the root."""
    return [path[:at] for at in range(1, len(path)) if path[at] == "/"]


def hidden_paths(packages, kept, exists=os.path.lexists):
    """Returns what only packages outside of `kept` own below /usr: files, and folders in place of all in them."""
    owned = set().union(*(files_of(name) for name in kept))
    owned.update(*map(parents_of, owned))
    others = set().union(*(files_of(name) for name in packages if name not in kept)) - owned
    others = {path for path in others if path.startswith("/usr/") and not path.startswith("/usr/local/")}
    return sorted(path for path in others if others.isdisjoint(parents_of(path)) and exists(path))


def run(*command):
    ended = subprocess.run(command, text=True, capture_output=True, check=False)
    if ended.returncode != 0:
        raise Refused(f"{command[0]}: {ended.stderr.strip()}")


def hide(packages, kept, hidden, home, scratch):
    """Makes the mounts of this process's namespace."""
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "bare", scratch)
    upper, work, local = (pathlib.Path(scratch) / name for name in ("upper", "work", "local"))
    for folder in (upper, work, local):
        folder.mkdir()
    for path in hidden:  # a device 0:0 hides what is below it
        whiteout = upper / path.removeprefix("/usr/")
        whiteout.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(whiteout, 0o020000, 0)
        except PermissionError as error:
            raise Refused(f"mknod: {error.strerror}") from error
    for folder in upper.rglob("*"):  # a folder of the upper layer replaces the rights of the one below it
        if folder.is_dir():
            shutil.copystat(pathlib.Path("/usr") / folder.relative_to(upper), folder)
    run("mount", "-t", "overlay", "-o", f"lowerdir=/usr,upperdir={upper},workdir={work}", "bare", "/usr")
    for name in ("bin", "etc", "games", "include", "lib", "man", "sbin", "share", "src"):  # as Debian makes it
        (local / name).mkdir()
    run("mount", "--bind", str(local), "/usr/local")
    status = pathlib.Path(scratch) / "status"
    status.write_text("".join(packages[name]["text"] for name in sorted(kept)))
    run("mount", "--bind", str(status), str(DPKG / "status"))
    cache = pathlib.Path(scratch) / "ld.so.cache"
    run("ldconfig", "-C", str(cache))
    run("mount", "--bind", str(cache), "/etc/ld.so.cache")
    run("mount", "--bind", str(home), os.path.expanduser("~"))


def variables_of_ccache(folder, home):
    """Returns the environment in which ccache serves builds of other folders, and files with precompiled headers."""
    return {"CCACHE_DIR": str(folder.resolve()), "CCACHE_BASEDIR": home, "CCACHE_NOHASHDIR": "1",
            "CCACHE_MAXSIZE": "2G", "CCACHE_DEPEND": "1",
            "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime"}


def left_visible(hidden, environment):
    """Returns what should be hidden and is not."""
    found = [path for path in hidden if os.path.lexists(path)]
    programs = ["nvcc"] if "CCACHE_DIR" in environment else ["nvcc", "ccache"]
    found += [path for name in programs if (path := shutil.which(name, path=PATH))]
    found += [path for path in ("/usr/local/cuda", os.path.expanduser("~/.pyenv")) if os.path.lexists(path)]
    found += [name for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH") if name in environment]
    if os.stat(os.path.expanduser("~")).st_mode & 0o077:
        found.append("a home folder that others can enter")
    return found


def inside(options):
    """Runs in the namespace, as its first program."""
    environment = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    environment |= {"PATH": PATH, "HOME": os.path.expanduser("~"), "USER": "root", "LOGNAME": "root"}
    folder = environment["HOME"]
    try:
        if not options.scratch:
            raise Refused("unshare: only root can hide files")
        setup = subprocess.run([SOURCE / "tools/setup.sh", "--list", options.goal], text=True, stdout=subprocess.PIPE,
                               check=True)
        packages = packages_of((DPKG / "status").read_text())
        wanted = {*ALWAYS, *setup.stdout.split()}
        if options.ccache and "ccache" in packages:
            wanted.add("ccache")
            environment |= variables_of_ccache(options.ccache, folder)
        if missing := wanted - set(packages):
            sys.exit(f"bare_machine.py: not installed: {' '.join(sorted(missing))}; "
                     f"`tools/setup.sh --packages-only {options.goal}` installs what the goal needs")
        kept = needed(packages, wanted)
        hidden = hidden_paths(packages, kept)
        hide(packages, kept, hidden, options.home, options.scratch)
        dropped = len(os.environ.keys() - environment.keys())
        print(f"bare machine: {len(kept)} of {len(packages)} Debian packages are left; hidden are {len(hidden)} files "
              f"and folders of the others, /usr/local, {folder}, and {dropped} variables", flush=True)
        if found := left_visible(hidden, environment):
            sys.exit(f"bare_machine.py: still there: {' '.join(found[:10])}")
    except Refused as refused:
        print(f"bare machine: nothing can be hidden here ({refused}); only the environment and the home folder are "
              "bare", flush=True)
        if options.strict:
            sys.exit(SKIPPED)
        folder = environment["HOME"] = str(options.home)
    os.chdir(folder)
    os.execvpe(options.command[0], options.command, environment)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=pathlib.Path, required=True)
    parser.add_argument("--goal", default="test", help="the goal of tools/setup.sh whose packages are left")
    parser.add_argument("--ccache", type=pathlib.Path, help="leave ccache, with its cache in this folder")
    parser.add_argument("--strict", action="store_true", help="end with status 77 if nothing can be hidden")
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.home = options.home.resolve()
    if options.inside:
        inside(options)
    options.home.mkdir(parents=True, exist_ok=True)
    options.home.chmod(0o700)
    again = [sys.executable, __file__, *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="octile-bare-") as scratch:
        unshare = ["unshare", "--mount", "--propagation", "private"]
        allowed = os.geteuid() == 0 and subprocess.run([*unshare, "true"], check=False).returncode == 0
        if allowed:
            again = [*unshare, *again[:2], "--inside", "--scratch", scratch, *again[2:]]
        else:
            again = [*again[:2], "--inside", *again[2:]]
        return subprocess.run(again, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
