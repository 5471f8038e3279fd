"""Runs a file's tests so that what was left out is told: a line 'skipped: TEST: WHY' for each, which
tools/dev/ctest_counts.py reads, and status 77 where nothing at all ran."""
import sys
import unittest

ALL_SKIPPED = 77


def skipped_part(name, why):
    """A part of a test that goes on without it."""
    print(f"skipped: {name}: {why}", flush=True)


def main():
    """In place of unittest.main(); the words of the command line are the file's own."""
    program = unittest.main(argv=sys.argv[:1], exit=False)
    result = program.result
    for test, why in result.skipped:
        skipped_part(test.id().removeprefix("__main__."), why)
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(ALL_SKIPPED if result.testsRun == len(result.skipped) else 0)
