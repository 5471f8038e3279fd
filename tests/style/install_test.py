#!/usr/bin/env python3
"""Installs the build into a temporary DESTDIR and checks what lies there.

usage: install_test.py CMAKE BUILD_DIR LIBDIR
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import told_skips

CMAKE, BUILD, LIBDIR = sys.argv[1:4]
PREFIX = "usr/local"
# All that the plugin may ask the dynamic loader for; sanitizer builds add their runtimes.
LOADABLE = re.compile(r"^(libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|librt\.so\.1|"
                      r"ld-linux-.*)$")
# In a page of Markdown, to another file.
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)]*\)")
ENTRY_POINT = re.compile(r"^ncclNetPlugin_v(6|7|8|9|10|11|12)$")


def output_of(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        environment = dict(os.environ, DESTDIR=cls.folder.name)
        done = subprocess.run([CMAKE, "--install", BUILD, "--prefix", "/" + PREFIX],
                              env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout
        cls.root = pathlib.Path(cls.folder.name) / PREFIX
        cls.library = cls.root / LIBDIR / "libnccl-net-ha.so"
        cls.program = cls.root / "bin" / "nccl-ha"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_files_are_there(self):
        for name in ["share/man/man1/nccl-ha.1", "share/man/man1/nccl-ha-perf.1",
                     "share/man/man1/nccl-ha-info.1", "share/man/man1/nccl-ha-check.1",
                     "share/man/man1/nccl-ha-lab.1", "share/man/man1/nccl-ha-relay.1",
                     "share/doc/nccl-ha/docs/mesh.md",
                     "share/man/man1/nccl-ha-agent.1", "share/man/man1/nccl-ha-trace.1",
                     "share/man/man1/nccl-ha-top.1", "share/man/man1/nccl-ha-stat.1",
                     "share/man/man1/nccl-ha-tune.1", "share/man/man1/nccl-ha-report.1", "lib/systemd/system/nccl-ha-agent.service",
                     "lib/systemd/system/nccl-ha-relay.service",
                     "lib/sysusers.d/nccl-ha-agent.conf", "lib/sysusers.d/nccl-ha-relay.conf",
                     "share/man/man7/nccl-ha.7",
                     "share/doc/nccl-ha/docs/agent.md",
                     "share/doc/nccl-ha/docs/agent-dashboard.json", "share/doc/nccl-ha/docs/alerts.yml",
                     "share/doc/nccl-ha/docs/jobs-dashboard.json",
                     "share/doc/nccl-ha/docs/lab.md",
                     "share/doc/nccl-ha/docs/README.md",
                     "share/doc/nccl-ha/docs/pictures/throughput-failover.svg",
                     "share/doc/nccl-ha/README.md", "share/doc/nccl-ha/SECURITY.md",
                     "share/doc/nccl-ha/CONTRIBUTING.md", "share/doc/nccl-ha/CHANGELOG.md",
                     "share/doc/nccl-ha/LICENSE", "share/doc/nccl-ha/docs/architecture.md",
                     "share/bash-completion/completions/nccl-ha",
                     "share/zsh/site-functions/_nccl-ha",
                     "share/fish/vendor_completions.d/nccl-ha.fish",
                     f"{LIBDIR}/pkgconfig/nccl-ha.pc",
                     "share/doc/nccl-ha/examples/Containerfile.pytorch",
                     "share/doc/nccl-ha/examples/kubernetes/kustomization.yaml",
                     "share/doc/nccl-ha/examples/90-nccl-ha.conf"]:
            with self.subTest(name=name):
                self.assertGreater((self.root / name).stat().st_size, 0)

    def test_nothing_else_is_there(self):
        tops = {str(p.relative_to(self.root)).split("/")[0] for p in self.root.rglob("*")}
        self.assertEqual(tops, {"bin", LIBDIR.split("/")[0], "share"})
        outside = [p for p in pathlib.Path(self.folder.name).rglob("*")
                   if p.is_file() and self.root not in p.parents]
        self.assertEqual(outside, [])

    def test_programs_and_pages_are_those_of_the_product(self):
        self.assertEqual([p.name for p in (self.root / "bin").iterdir()], ["nccl-ha"])
        help_text = output_of(str(self.program), "--help")
        commands = re.findall(r"^  ([a-z]+)  ", help_text, re.MULTILINE)
        self.assertIn("lab", commands)
        pages = {p.name for p in (self.root / "share/man/man1").iterdir()}
        self.assertEqual(pages, {"nccl-ha.1"} | {f"nccl-ha-{name}.1" for name in commands})

    def test_program_runs_from_there(self):
        self.assertIn("perf", output_of(str(self.program), "--help"))

    def test_program_finds_the_library_and_says_whether_nccl_would(self):
        def info(**variables):
            environment = dict(os.environ, LD_LIBRARY_PATH="", NCCL_NET_PLUGIN="ha")
            environment.update(variables)
            done = subprocess.run([str(self.program), "info", "--json"], env=environment, text=True,
                                  stdout=subprocess.PIPE, check=True, cwd="/")
            return json.loads(done.stdout)["plugin"]

        plugin = info()
        self.assertEqual(plugin["file"], str(self.library))
        self.assertEqual(plugin["nccl_file"], "", "this folder is none of the system's")
        self.assertIn(str(self.library.parent), plugin["remedy"])
        plugin = info(LD_LIBRARY_PATH=str(self.library.parent))
        self.assertEqual((plugin["nccl_file"], plugin["remedy"]), (str(self.library), ""))
        plugin = info(NCCL_NET_PLUGIN=str(self.library))
        self.assertEqual((plugin["nccl_file"], plugin["remedy"]), (str(self.library), ""))

    def test_library_needs_only_the_c_library(self):
        needed = re.findall(r"NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", str(self.library)))
        self.assertTrue(needed, "readelf shows no NEEDED at all")
        self.assertEqual([name for name in needed if not LOADABLE.match(name)], [])

    def test_rccl_finds_it_by_a_prefix_of_its_own(self):
        link = self.library.parent / "librccl-net-ha.so"
        self.assertEqual(os.readlink(link), "libnccl-net-ha.so")

    def test_library_shows_only_its_entry_points(self):
        table = output_of("nm", "-D", "--defined-only", str(self.library))
        names = [line.split()[-1].split("@")[0] for line in table.splitlines() if line.strip()]
        self.assertEqual([name for name in names if not ENTRY_POINT.match(name)], [])
        self.assertEqual(len(names), 7, names)

    def test_the_folder_of_the_build_is_not_in_it(self):
        """The same bytes come out of every folder."""
        folder = os.path.dirname(os.path.dirname(os.path.abspath(BUILD))).encode()
        for file in [self.library, self.program]:
            with self.subTest(file=file.name):
                self.assertEqual(file.read_bytes().count(folder), 0)

    def test_man_pages_have_no_mistakes(self):
        pages = sorted((self.root / "share/man").glob("man[17]/*.[17]"))
        self.assertGreater(len(pages), 12)
        for page in pages:
            text = page.read_text(encoding="utf-8")
            with self.subTest(page=page.name):
                self.assertTrue(text.startswith(('.\\"', ".TH ")), "no .TH at the start")
                self.assertRegex(text, r'\.TH \S+ [17] "\d{4}-\d\d-\d\d" "nccl-ha \d+\.\d+\.\d+"')
                for section in (["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS"]
                                if page.suffix == ".1" else ["NAME", "DESCRIPTION", "SEE ALSO"]):
                    self.assertIn(f'.SH {section}'.replace('"', ""), text.replace('"', ""))

    def test_the_operators_pages_stand_alone(self):
        """Without the developers' package only an index names pages that are not there."""
        with tempfile.TemporaryDirectory() as folder:
            output_of("env", f"DESTDIR={folder}", CMAKE, "--install", BUILD, "--prefix", "/" + PREFIX,
                      "--component", "tools")
            doc = pathlib.Path(folder) / PREFIX / "share/doc/nccl-ha"
            pages = {page.name for page in (doc / "docs").glob("*.md")}
            self.assertLessEqual({"README.md", "operations.md", "quickstart.md", "configuration.md"}, pages)
            self.assertEqual(pages & {"architecture.md", "protocol.md", "threads.md"}, set())
            followed = 0
            for page in [one for one in sorted((doc / "docs").glob("*.md")) if one.name != "README.md"]:
                for link in LINK.findall(page.read_text(encoding="utf-8")):
                    followed += 1
                    with self.subTest(page=page.name, link=link):
                        self.assertTrue((page.parent / link).exists())
            self.assertGreater(followed, 5)

    def test_links_lead_somewhere(self):
        """In the whole tree, as the packages lay it down together."""
        doc = self.root / "share/doc/nccl-ha"
        for page in [doc / "README.md", doc / "CONTRIBUTING.md", *sorted((doc / "docs").glob("*.md"))]:
            for link in LINK.findall(page.read_text(encoding="utf-8")):
                with self.subTest(page=page.name, link=link):
                    self.assertTrue((page.parent / link).exists())

    def test_man_pages_name_every_option(self):
        for command in ["perf", "info", "check", "lab run", "lab cut", "lab show", "agent",
                        "agent status", "agent simulate-switch", "trace show", "trace summary",
                        "trace waiting", "trace critical", "trace export", "trace plot", "stat", "top", "tune", "report"]:
            words = command.split()
            help_text = output_of(str(self.program), *words, "--help")
            page = (self.root / f"share/man/man1/nccl-ha-{words[0]}.1").read_text(encoding="utf-8")
            page = page.replace("\\-", "-")
            for option in sorted(set(re.findall(r"--[a-z][a-z-]+", help_text))):
                with self.subTest(command=command, option=option):
                    self.assertIn(option, page)

    def test_bash_completes_what_follows_an_equals_sign(self):
        script = self.root / "share/bash-completion/completions/nccl-ha"

        def offered(*words):
            # As bash takes a line apart, see COMP_WORDBREAKS.
            text = " ".join(f"'{word}'" for word in (self.program, *words))
            return output_of("bash", "-c", f'source "{script}"; COMP_WORDS=({text}); '
                             f'COMP_CWORD={len(words)}; _nccl_ha; '
                             'printf "%s\\n" "${COMPREPLY[@]}"').split()

        self.assertEqual(offered("lab", "run", "--env", "=", "HA_NCCL_RTO"), ["HA_NCCL_RTO_MS="])
        self.assertIn("HA_NCCL_RTO_MS=", offered("lab", "run", "--env", "="))
        self.assertEqual(offered("perf", "--type", "=", "f"), ["float"])
        self.assertEqual(offered("check", "--rendezvous", "h", ":", "1", "--str"), ["--strict"])
        self.assertEqual(offered("lab", "ru"), ["run"])

    def test_completion_knows_every_option(self):
        script = self.root / "share/bash-completion/completions/nccl-ha"
        for command in ["perf", "info", "check", "lab run", "lab cut", "agent",
                        "agent status", "agent simulate-switch", "trace show", "trace summary",
                        "trace waiting", "trace critical", "stat", "top", "tune", "report"]:
            words = command.split()
            help_text = output_of(str(self.program), *words, "--help")
            # The text around them names options of other programs too.
            names = " ".join(line.split()[0] for line in help_text.splitlines() if line.lstrip().startswith("-"))
            wanted = set(re.findall(r"--[a-z][a-z-]+", names))
            self.assertTrue(wanted)
            offered = output_of("bash", "-c", f'source "{script}"; COMP_WORDS=("{self.program}" {command} --);'
                                f'COMP_CWORD={len(words) + 1}; _nccl_ha; '
                                'printf "%s\\n" "${COMPREPLY[@]}"')
            with self.subTest(command=command):
                self.assertEqual(wanted - set(offered.split()), set())


if __name__ == "__main__":
    told_skips.main()
