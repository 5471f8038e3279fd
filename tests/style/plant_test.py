#!/usr/bin/env python3
"""tests/mutants/plant tells of patches that do not fit, and of mistakes without use or row."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PLANT = pathlib.Path(__file__).resolve().parents[1] / "mutants" / "plant"
PRODUCT = "".join(f"int line_{n};\n" for n in range(1, 9)) + "bool is_open() {\n  return open_;\n}\n"
COPY = PRODUCT.replace("return open_", "return open_ || mutated(Mutation::kept_open)")
TREE = {
    "ha/one.cpp": PRODUCT,
    "ha/other.h": "#pragma once\n",
    "tests/mutants/mutation.h": "enum class Mutation : uint8_t {\n  none,\n  kept_open,  ///< open\n};\n",
    "tests/mutants/table.h": '    NHA_CHECKED(kept_open, "Door.Opens"),\n',
}


class Plant(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "root")
        self.copy = pathlib.Path(folder.name, "copy")
        for name, text in TREE.items():
            self.write(self.root / name, text)
        self.write(self.copy / "ha/one.cpp", COPY)
        self.plant("--refresh", self.copy)

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def plant(self, *arguments, status=0):
        done = subprocess.run([sys.executable, PLANT, *arguments, "--root", self.root], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def test_the_copy_is_what_the_patches_were_made_from(self):
        self.assertEqual(self.plant("--check"), "")
        (self.copy / "ha/one.cpp").unlink()
        self.plant(self.copy)
        self.assertEqual((self.copy / "ha/one.cpp").read_text(encoding="utf-8"), COPY)

    def test_a_file_that_is_the_same_is_not_written_again(self):
        self.plant(self.copy)
        before = (self.copy / "ha/one.cpp").stat().st_mtime_ns
        self.plant(self.copy)
        self.assertEqual((self.copy / "ha/one.cpp").stat().st_mtime_ns, before)

    def test_a_file_that_is_gone_is_removed(self):
        self.plant(self.copy)
        (self.root / "ha/other.h").unlink()
        self.plant(self.copy)
        self.assertFalse((self.copy / "ha/other.h").exists())

    def test_lines_may_move(self):
        self.write(self.root / "ha/one.cpp", "int line_0;\n" + PRODUCT)
        self.plant("--check")
        self.plant(self.copy)
        self.assertEqual((self.copy / "ha/one.cpp").read_text(encoding="utf-8"),
                         "int line_0;\n" + COPY)

    def test_a_line_that_changed_is_named(self):
        self.write(self.root / "ha/one.cpp", PRODUCT.replace("int line_8", "int eighth"))
        told = self.plant("--check", status=1)
        for part in ("planted/ha/one.cpp.patch: does not fit ha/one.cpp:8\n", "expected: int line_8;\n",
                     "found:    int eighth;\n", "--refresh"):
            self.assertIn(part, told)
        self.assertIn("does not fit", self.plant(self.copy, status=1))

    def test_a_file_without_the_patch_s_name(self):
        (self.root / "ha/one.cpp").rename(self.root / "ha/two.cpp")
        self.assertIn("there is no ha/one.cpp", self.plant("--check", status=1))

    def test_a_mistake_that_is_planted_nowhere(self):
        self.write(self.copy / "ha/one.cpp", PRODUCT)
        self.plant("--refresh", self.copy)
        self.assertEqual(list(self.root.rglob("*.patch")), [])
        self.assertIn("kept_open is planted nowhere", self.plant("--check", status=1))

    def test_a_mistake_without_a_row(self):
        self.write(self.root / "tests/mutants/table.h", "")
        self.assertIn("kept_open has 0 rows", self.plant("--check", status=1))

    def test_a_mistake_without_a_name(self):
        self.write(self.copy / "ha/one.cpp", COPY.replace("kept_open", "left_open"))
        self.plant("--refresh", self.copy)
        self.assertIn("one.cpp.patch: left_open is no mistake", self.plant("--check", status=1))

    def test_a_mistake_in_the_product(self):
        self.write(self.root / "ha/other.h", "bool x = mutated(Mutation::kept_open);\n")
        self.assertIn("ha/other.h: a mistake in the product", self.plant("--check", status=1))


if __name__ == "__main__":
    unittest.main()
