#!/usr/bin/env python3
"""The style checkers must fail on what they are there to find.

Each case builds a small tree with exactly one planted fault, runs the checker on it, and expects
exit status 1 and a line that names the place; the same tree without the fault must pass.
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import told_skips

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "dev"

GOOD = {
    "runtime/base/clock.h": "#pragma once\n",
    "runtime/fabric/path.h": "#pragma once\n",
    "runtime/fabric/one/port.h": '#pragma once\n#include "runtime/fabric/path.h"\n',
    "runtime/fabric/two/port.h": '#pragma once\n#include "runtime/base/clock.h"\n',
    "runtime/fabric/standard_kinds.cpp": '#include "runtime/fabric/one/port.h"\n',
    "runtime/engine/worker.h": "#pragma once\n#include <thread>\n#include <uv.h>\n",
    "ha/epoch.h": '#pragma once\n#include "runtime/base/clock.h"\n',
    "actors/connection.h": '#pragma once\n#include "ha/epoch.h"\n#include "runtime/engine/worker.h"\n',
    "plugin/nccl_abi.h": "#pragma once\n",
    "plugin/net.cpp": '#include "actors/connection.h"\n#include "plugin/nccl_abi.h"\n',
    "tests/rig/sim/world.h": '#pragma once\n#include "runtime/engine/worker.h"\n',
    "tests/support/pair.h": '#pragma once\n#include "tests/rig/sim/world.h"\n',
    "tools/main.cpp": '#include "plugin/nccl_abi.h"\n#include <CLI/CLI.hpp>\n',
}


def run(tool, files, *arguments):
    """Runs a checker on a tree of these files; returns (exit status, output)."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, TOOLS / tool, *arguments, "--root", folder],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        return done.returncode, done.stdout


class Layers(unittest.TestCase):
    def expect(self, name, text, message):
        status, output = run("check_layers.py", {**GOOD, name: text})
        self.assertEqual(status, 1, output)
        self.assertIn(f"{name}:1: ", output)
        self.assertIn(message, output)
        self.assertIn("1 wrong lines", output)

    def test_a_tree_in_order_passes(self):
        status, output = run("check_layers.py", GOOD)
        self.assertEqual(status, 0, output)

    def test_upward_include(self):
        self.expect("runtime/wrong.h", '#include "actors/connection.h"\n', "not actors/")

    def test_relay_from_plugin(self):
        self.expect("plugin/wrong.cpp", '#include "relay/node.h"\n', "does not exist")

    def test_plugin_from_actors(self):
        self.expect("actors/wrong.cpp", '#include "plugin/nccl_abi.h"\n', "not plugin/")

    def test_include_relative_to_the_file(self):
        self.expect("actors/wrong.cpp", '#include "connection.h"\n', "repository root")

    def test_project_file_in_angle_brackets(self):
        self.expect("runtime/wrong.cpp", "#include <actors/connection.h>\n", "use quotes")

    def test_threads_in_ha(self):
        self.expect("ha/wrong.h", "#include <thread>\n", "ha/ is pure")

    def test_worker_in_ha(self):
        self.expect("ha/wrong.h", '#include "runtime/engine/worker.h"\n', "ha/ is pure")

    def test_one_kind_of_fabric_from_another(self):
        self.expect("runtime/fabric/two/wrong.h", '#include "runtime/fabric/one/port.h"\n',
                    "siblings")

    def test_a_kind_of_fabric_from_what_is_above_all(self):
        self.expect("runtime/fabric/wrong.cpp", '#include "runtime/fabric/one/port.h"\n',
                    "only runtime/fabric/standard_kinds.cpp")

    def test_fabric_from_the_bottom_of_runtime(self):
        self.expect("runtime/engine/wrong.cpp", '#include "runtime/fabric/path.h"\n', "stands below")

    def test_a_kind_of_fabric_from_actors(self):
        self.expect("actors/wrong.h", '#include "runtime/fabric/one/port.h"\n', "its traits")

    def test_a_named_kind_of_fabric_in_actors(self):
        self.expect("actors/wrong.cpp", "const bool rdma = at.kind == FabricKind::verbs;\n",
                    "names a kind")

    def test_a_numbered_kind_of_fabric_in_ha(self):
        self.expect("ha/wrong.h", "constexpr FabricKind rdma{FabricKind{2}};\n", "names a kind")

    def test_libuv_outside_runtime(self):
        self.expect("actors/wrong.cpp", "#include <uv.h>\n", "only in runtime, tests")

    def test_nccl_below_plugin(self):
        self.expect("actors/wrong.cpp", "#include <nccl.h>\n", "only in plugin, tests, tools")

    def test_a_subcommand_in_what_they_share(self):
        self.expect("tools/common/wrong.h", '#include "tools/main.cpp"\n', "no subcommand")

    def test_a_test_from_the_rig(self):
        self.expect("tests/rig/sim/wrong.h", '#include "tests/support/pair.h"\n',
                    "tests/rig/sim/ may include runtime/")

    def test_googletest_from_the_rig(self):
        self.expect("tests/rig/runs/wrong.h", "#include <gtest/gtest.h>\n", "the rig is no test")

    def test_the_rig_from_the_product(self):
        self.expect("runtime/engine/wrong.h", '#include "tests/rig/sim/world.h"\n', "not tests/")

    def test_a_folder_without_sources_is_an_error(self):
        status, output = run("check_layers.py", {"README.md": "# x\n"})
        self.assertEqual(status, 2, output)


class Text(unittest.TestCase):
    def expect(self, name, text, message):
        status, output = run("tidy.py", {name: text}, "text")
        self.assertEqual(status, 1, output)
        self.assertIn(message, output)

    def test_a_tree_in_order_passes(self):
        status, output = run("tidy.py", GOOD, "text")
        self.assertEqual(status, 0, output)

    def test_findings(self):
        long_file = "int a;\n" * 601
        for text, message in [
                ("int a; \n", "x.cpp:1: blank at the end"),
                ("\tint a;\n", "x.cpp:1: tab"),
                ("int a;", "no newline at the end"),
                ("// " + "a" * 100 + "\n", "103 columns"),
                (long_file, "601 lines"),
                ("// TO" + "DO: later\n", "is banned: finish it"),
                ("std::this_thread::sleep" + "_for(1s);\n", "is banned: wait for an event"),
                ("void look_whether_to_do" + "ze();\n", "the field's word"),
                ("int r = ra" + "nd();\n", "is banned: use runtime/base/random.h"),
                ("auto t = std::chrono::system" + "_clock::now();\n", "use runtime/base/clock.h"),
                ("#define private public\n", "test through the interface"),
                ('#include "ha/fence.cpp"\n', "sources are no headers"),
                ("TEST(A, DISABLED" + "_b) {}\n", "a test runs"),
                ("TEST(A, b) { GTEST" + "_SKIP(); }\n", "or says why not"),
                ('open("/wor' + 'k/x");\n', "a path of one machine"),
        ]:
            with self.subTest(message=message):
                self.expect("runtime/x.cpp", text, message)

    def test_a_test_that_returns_early(self):
        early = "TEST(A, b) {\n  if (geteuid() != 0) {\n    return;\n  }\n}\n"
        self.expect("tests/unit/x_test.cpp", early, "x_test.cpp:3: a test that returns early")
        run_of_another = early.replace("TEST(A, b)", "void f()")
        self.assertEqual(run("tidy.py", {"tests/unit/x_test.cpp": run_of_another}, "text")[0], 0)

    def test_page_without_title(self):
        self.expect("docs/x.md", "text\n", "starts with a title")

    def test_a_page_of_short_sentences_passes(self):
        short, cell, shown = "word " * 29 + "word.", "c" * 300, " ".join(["shown"] * 40)
        page = (f"# A title\n\n{short} {short} {short}\n\n- {short}\n- {short[:-1]};\n  {short}\n\n"
                f"| a | b |\n|---|---|\n| {short[:-1]} | {short[:-1]} |\n| {cell} | {cell} |\n\n"
                f"    {shown}\n\n```\n{shown}\n```\n")
        manual = (f".SH SYNOPSIS\n.B {shown}\n.SH OPTIONS\n" +
                  (".TP\n.B \\-\\-tag\n" + "word\n" * 30) * 2 + ".nf\n" + "shown\n" * 40 + ".fi\n")
        files = {"docs/x.md": page, "CHANGELOG.md": page, "tools/man/nccl-ha-x.1": manual}
        status, output = run("tidy.py", files, "text")
        self.assertEqual(status, 0, output)

    def test_sentences_of_pages(self):
        long = " ".join(["word"] * 31)
        for name, text, line in [
                ("README.md", f"# t\n\nShort. {long}\n", 3),
                ("docs/x.md", f"# t\n\n{long[:79]}\n{long[80:]}\n", 3),
                ("docs/x.md", f"# t\n\n- short\n- {long}\n", 4),
                ("docs/x.md", f"# t\n\n| a |\n|---|\n| {long}|\n", 5),
                ("tools/man/nccl-ha-x.1", ".SH A\n.TP\n.B tag\n" + "word\n" * 15 + ".B word\n" * 16, 4),
        ]:
            with self.subTest(name=name, line=line):
                self.expect(name, text, f"{name}:{line}: 31 words, at most 30")

    def test_pages_of_tables_and_manuals(self):
        self.expect("docs/x.md", f"# t\n\n| a | {'c' * 301} |\n", "docs/x.md:3: a cell of more than 300")
        self.expect("tools/man/nccl-ha-x.1", "c" * 101 + "\n", "nccl-ha-x.1:1: 101 columns")

    def test_words_that_the_glossary_replaces(self):
        glossary = ("# Glossary\n\n| term | what |\n|---|---|\n| oldish | a term |\n\n"
                    "## Words that have a better one\n\n| not | but |\n|---|---|\n"
                    "| oldword, older word | newword |\n\n## Others\n\n| of | a |\n|---|---|\n| b | c |\n")
        for page, found in [("An Oldword here.", "Oldword"), ("In an older\nword here.", "older word")]:
            with self.subTest(page=page):
                status, output = run("tidy.py", {"docs/glossary.md": glossary,
                                                 "docs/x.md": f"# t\n\n{page}\n"}, "text")
                self.assertEqual(status, 1, output)
                self.assertIn(f"docs/x.md:3: '{found}': newword (docs/glossary.md)", output)
        self.expect("docs/glossary.md", glossary.replace("better", "other"), "no table below")
        fine = "# t\n\nOldwords, oldish, b and `oldword`.\n\n    oldword\n"
        status, output = run("tidy.py", {"docs/glossary.md": glossary, "docs/x.md": fine}, "text")
        self.assertEqual(status, 0, output)

    def test_data_members(self):
        few = "\n".join(f"  std::array<int, {i}> member{i}_{{}};  // ; int more;" for i in range(23))
        header = ("#pragma once\nnamespace a {\n\nclass %s : public B {\n public:\n"
                  "  explicit C(int x) : y_(x) {}\n  int f(int a) const { int b = a; return b; }\n"
                  "  static constexpr int limit = 3;\n  enum class E { one, two };\n"
                  "  struct Inner {\n    int a = 0;\n    int b{};\n  };\n"
                  "  std::function<void(int)> call_;\n  alignas(64) Inner inner_{1, 2};\n"
                  "%s%s\n};\n\n}  // namespace a\n")
        status, output = run("tidy.py", {"ha/x.h": header % ("Few", few, "")}, "text")
        self.assertEqual(status, 0, output)
        self.expect("ha/x.h", header % ("Many", few, "\n  bool (*last_)(int) = nullptr;"),
                    "ha/x.h:4: Many has 26 data members, at most 25")

    def test_header_without_guard(self):
        self.expect("runtime/x.h", "int a;\n", "#pragma once")


class Compiler(unittest.TestCase):
    def test_header_that_does_not_stand_alone(self):
        status, output = run("tidy.py", {"runtime/x.h": "#pragma once\nstd::string a;\n"}, "headers")
        self.assertEqual(status, 1, output)
        self.assertIn("runtime/x.h: does not stand alone", output)

    def test_header_without_guard_is_seen_twice(self):
        status, output = run("tidy.py", {"runtime/x.h": "struct A {};\n"}, "headers")
        self.assertEqual(status, 1, output)
        self.assertIn("runtime/x.h", output)

    def test_unformatted_source(self):
        status, output = run("tidy.py", {".clang-format": "BasedOnStyle: Google\n",
                                         "runtime/x.cpp": "int  a ;\n"}, "format")
        self.assertEqual(status, 1, output)
        self.assertIn("runtime/x.cpp: not formatted", output)


class Skips(unittest.TestCase):
    """What is left out for want of a program must not look as if it had run."""

    def status_and_output(self, body):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "some_test.py"
            path.write_text("import unittest\nimport told_skips\n\n\nclass Some(unittest.TestCase):\n" + body +
                            "\n\ntold_skips.main()\n", encoding="utf-8")
            done = subprocess.run([sys.executable, str(path)], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, check=False,
                                  env={"PYTHONPATH": str(pathlib.Path(__file__).resolve().parent)})
            return done.returncode, done.stdout

    LEFT_OUT = "    def test_a(self):\n        self.skipTest('no such program')\n"

    def test_a_part_is_told(self):
        self.assertEqual(self.status_and_output(self.LEFT_OUT + "    def test_b(self):\n        pass\n"),
                         (0, "skipped: Some.test_a: no such program\n"))

    def test_the_whole_has_a_status(self):
        self.assertEqual(self.status_and_output(self.LEFT_OUT)[0], 77)

    def test_a_failure_counts_more(self):
        self.assertEqual(self.status_and_output(self.LEFT_OUT + "    def test_b(self):\n        self.fail()\n")[0], 1)

    def test_cases_of_googletest_are_told_with_their_reason(self):
        out = "[ RUN      ] A.b\n/x_test.cpp:2: Skipped\nonly root can\n\n[  SKIPPED ] A.b (0 ms)\n"
        whole = out + "[ RUN      ] A.c\n[       OK ] A.c (0 ms)\n[==========] 2 tests from 1 test suite ran. (0 ms)\n"
        report = (f'<testsuite><testcase name="e2e.A.b" time="3.2" status="notrun"><system-out>{out}</system-out></testcase>'
                  f'<testcase name="unit.part_1_of_2" time="2" status="run"><system-out>{whole}</system-out></testcase></testsuite>')
        self.assertEqual(self.counts(report), "passed 1\nskipped release: A.b: only root can\n"
                                              "skipped release: unit.A.b: only root can\n"
                                              "seconds 3 release: suite e2e\nseconds 2 release: suite unit\n")

    def counts(self, report):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.xml"
            path.write_text(report, encoding="utf-8")
            return subprocess.run([sys.executable, TOOLS / "ctest_counts.py", str(path), "release"],
                                  text=True, stdout=subprocess.PIPE, check=True).stdout

    def test_they_are_counted(self):
        report = ('<testsuite><testcase name="style.some" status="run"><system-out>.s\n'
                  'skipped: Some.test_a: no such program\nOK\n</system-out></testcase></testsuite>')
        self.assertEqual(self.counts(report),
                         "passed 1\nskipped release: style.some: Some.test_a: no such program\n"
                         "seconds 0 release: suite style\n")


if __name__ == "__main__":
    told_skips.main()
