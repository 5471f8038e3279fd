#!/usr/bin/env python3
"""Each test that docs/security.md names beside an attack is there: Suite.Test, or Suite.* for all."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NamedTests(unittest.TestCase):
    def test_each_is_there(self):
        known = set()
        for source in (ROOT / "tests").rglob("*.cpp"):
            text = source.read_text(encoding="utf-8")
            known.update(re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", text))
        self.assertGreater(len(known), 1000)
        suites = {suite for suite, _ in known}
        rows = [line for line in (ROOT / "docs/security.md").read_text(encoding="utf-8").splitlines()
                if line.startswith("|")]
        named = [one for row in rows for one in re.findall(r"\b([A-Z]\w+)\.(\w+|\*)", row)]
        self.assertGreater(len(named), 40)
        missing = [".".join(one) for one in named
                   if one not in known and not (one[1] == "*" and one[0] in suites)]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
