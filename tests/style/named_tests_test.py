#!/usr/bin/env python3
"""Each test that is named elsewhere is there: a name that has gone would choose nothing, and no other
test would say so.  Suite.Test, or Suite.* for all; of GoogleTest's patterns all but the instance."""
import fnmatch
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


class NamedTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.known, cls.instances = set(), set()
        for source in (ROOT / "tests").rglob("*.cpp"):
            text = source.read_text(encoding="utf-8")
            cls.known.update(re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", text))
            cls.instances.update(
                "/".join(one) for one in
                re.findall(r"\bINSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)\s*,", text))
        cls.suites = {suite for suite, _ in cls.known}

    def missing(self, patterns):
        """Those that choose no test."""
        names = {f"{suite}.{test}" for suite, test in self.known}
        names |= {f"{instance}.{test}" for instance in self.instances
                  for suite, test in self.known if suite == instance.split("/")[1]}
        gone = []
        for one in patterns:
            suite, _, test = one.partition(".")
            test = "*" if test.startswith("*") else test.split("/")[0]
            if not any(fnmatch.fnmatchcase(name, f"{suite}.{test}") for name in names):
                gone.append(one)
        return gone

    def test_what_the_page_of_security_names(self):
        self.assertGreater(len(self.known), 1000)
        rows = [line for line in text_of("docs/security.md").splitlines() if line.startswith("|")]
        named = [".".join(one) for row in rows for one in re.findall(r"\b([A-Z]\w+)\.(\w+|\*)", row)]
        self.assertGreater(len(named), 40)
        self.assertEqual(self.missing(named), [])

    def test_what_suites_leave_out_or_keep_for_later(self):
        text = re.sub(r"#.*", "", text_of("tests/CMakeLists.txt"))
        named = re.findall(r"(?<![\w./])(?:\w+/)?[A-Z]\w+\.(?!txt|cmake)[\w*]+", text)
        for each in re.findall(r"foreach\(case IN ITEMS([^)]+)\)", text):
            named += [f"*.{case}" for case in each.split()]
        self.assertGreater(len(named), 25)
        self.assertEqual(self.missing(named), [])

    def test_what_finds_planted_mistakes(self):
        named = [one for each in re.findall(r'"([A-Z][\w/]*\.[^"\s]+)"', text_of("tests/mutants/table.h"))
                 for one in each.split(":")]
        self.assertGreater(len(named), 100)
        self.assertEqual(self.missing(named), [])

    def test_what_presets_leave_out(self):
        lists = re.findall(r"\^e2e\\\\\.\((.*?)\)\\\\\.", text_of("CMakePresets.json"))
        self.assertGreater(len(lists), 1)
        for name in re.findall(r"[\w/]+", "|".join(lists)):
            with self.subTest(name=name):
                self.assertTrue(any(name in suite for suite in self.suites | self.instances))


if __name__ == "__main__":
    unittest.main()
