#!/usr/bin/env python3
"""bare_machine.py keeps the packages that others need, and hides all others' files: bare_machine_test.py FOLDER"""
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import bare_machine

STATUS = """Package: base
Status: install ok installed
Essential: yes
Pre-Depends: libc (>= 2.36)
Description: every system has it
 Depends: nothing, this is a text

Package: libc
Status: install ok installed

Package: compiler
Status: hold ok installed
Depends: none | linker:any (>= 2), assembler
Recommends: editor

Package: linker
Status: install ok installed

Package: binutils
Status: install ok installed
Provides: as (= 2), assembler

Package: editor
Status: install ok installed

Package: gone
Status: deinstall ok config-files
Essential: yes
"""


class Packages(unittest.TestCase):
    def test_removed_packages_do_not_count(self):
        packages = bare_machine.packages_of(STATUS)
        self.assertEqual(sorted(packages), ["base", "binutils", "compiler", "editor", "libc", "linker"])
        self.assertEqual(packages["libc"]["text"], "Package: libc\nStatus: install ok installed\n\n")

    def test_what_is_needed_is_kept(self):
        packages = bare_machine.packages_of(STATUS)
        self.assertEqual(bare_machine.needed(packages, []), {"base", "libc"})
        self.assertEqual(bare_machine.needed(packages, ["compiler"]),
                         {"base", "libc", "compiler", "linker", "binutils"})


    def test_a_folder_is_hidden_as_one_unless_a_package_that_is_kept_is_in_it(self):
        files = {"compiler": ["/.", "/usr", "/usr/lib", "/usr/lib/shared", "/usr/lib/shared/a", "/lib/both"],
                 "editor": ["/.", "/usr", "/usr/lib", "/usr/lib/shared", "/usr/lib/shared/b", "/usr/lib/both",
                            "/usr/lib/own", "/usr/lib/own/x", "/usr/lib/own-too", "/usr/lib/gone", "/etc/editor",
                            "/usr/local/x", "/bin/edit"]}
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "info").mkdir()
            for name, paths in files.items():
                (pathlib.Path(folder) / f"info/{name}:amd64.list").write_text("\n".join(paths) + "\n")
            with mock.patch.object(bare_machine, "DPKG", pathlib.Path(folder)):
                hidden = bare_machine.hidden_paths(files, {"compiler"}, lambda path: path != "/usr/lib/gone")
        self.assertEqual(hidden, ["/usr/bin/edit", "/usr/lib/own", "/usr/lib/own-too", "/usr/lib/shared/b"])


class Machine(unittest.TestCase):
    """Runs commands as .ci/run does."""

    def in_it(self, script):
        environment = {"PATH": bare_machine.PATH, "HOME": "/root", "CUDA_HOME": "/usr/local/cuda"}
        ended = subprocess.run([sys.executable, bare_machine.__file__, "--home", HOME, "--strict", "sh", "-c", script],
                               text=True, capture_output=True, check=False, env=environment)
        if ended.returncode == bare_machine.SKIPPED:
            self.skipTest(ended.stdout)
        return ended

    def test_a_command_sees_what_setup_installs_and_nothing_else(self):
        ended = self.in_it("set -e; command -v g++; command -v git; test -z \"$CUDA_HOME\"; "
                           "! command -v nvcc; ! command -v gdb; ! dpkg-query -W gdb; test ! -e /usr/local/cuda; "
                           "test \"$(stat -c %a ~)\" = 700; pwd; exit 7")
        self.assertEqual(ended.returncode, 7, ended.stdout + ended.stderr)
        self.assertRegex(ended.stdout, r"^bare machine: \d+ of \d+ Debian packages are left; hidden are \d+ files and ")
        self.assertRegex(ended.stdout, r"\n/root\n$")


if __name__ == "__main__":
    HOME = str(pathlib.Path(sys.argv.pop()) / "home")
    unittest.main()
