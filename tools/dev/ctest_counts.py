#!/usr/bin/env python3
"""Sums up a JUnit report of ctest: one line 'passed N', then 'failed NAME' and 'skipped NAME', and
'seconds N PRESET: suite FOLDER', of all its tests, of which several may have run at once.

usage: ctest_counts.py REPORT.xml PRESET

A test named FOLDER.part_N_of_M is a process with many cases of GoogleTest: its output says which
passed, and what ran when it ended early.  Any other one may say 'skipped: CASE: WHY' of a part of
what it runs.  Why GoogleTest left a case out is told behind its name.
"""
import collections
import re
import sys
import xml.etree.ElementTree


PART = re.compile(r"(\w+)\.part_\d+_of_\d+")


def skips(output):
    """The cases that GoogleTest left out, each with the reason that it was given."""
    return [f"{name}: {why}" for why, name in
            re.findall(r": Skipped\n(.*)\n+\[ +SKIPPED +\] (\S+) \(\d+ ms\)", output)]


def cases_of_part(case):
    """(how many cases of a part passed, which failed, which were skipped)."""
    folder = PART.fullmatch(case.get("name"))[1]
    output = case.findtext("system-out") or ""
    passed = len(re.findall(r"^\[ +OK \] ", output, re.MULTILINE))
    failed = re.findall(r"^\[ +FAILED +\] (\S+?),? .*\(\d+ ms\)$", output, re.MULTILINE)
    skipped = skips(output)
    begun = len(re.findall(r"^\[ RUN +\] ", output, re.MULTILINE))
    if begun != passed + len(failed) + len(skipped):
        last = re.findall(r"^\[ RUN +\] (\S+)", output, re.MULTILINE)[-1]
        failed.append(f"{last}, with which {case.get('name')} ended")
    elif not re.search(r"^\[=+\] \d+ tests? from .* ran\.", output, re.MULTILINE):
        failed.append(f"{case.get('name')}: ended early")
    elif case.get("status") != "run" and not failed:
        failed.append(f"{case.get('name')}: ended with an error after its cases")
    return passed, [f"{folder}.{name}" for name in failed], [f"{folder}.{name}" for name in skipped]


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    report, preset = sys.argv[1:]
    try:
        cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"{report}: {error}", file=sys.stderr)
        return 1
    if not cases:
        print(f"{report}: no test cases in it", file=sys.stderr)
        return 1
    passed = 0
    lines = []
    for case in cases:
        name = f"{preset}: {case.get('name')}"
        status = case.get("status")
        if status != "notrun" and PART.fullmatch(case.get("name")):
            passed_here, failed, skipped = cases_of_part(case)
            passed += passed_here
            lines += [f"failed {preset}: {one}" for one in failed]
            lines += [f"skipped {preset}: {one}" for one in skipped]
        elif status == "run":
            passed += 1
            output = case.findtext("system-out") or ""
            lines += [f"skipped {name}: {one}"
                      for one in re.findall(r"^skipped: (.*)$", output, re.MULTILINE)]
        elif status == "notrun" or case.find("skipped") is not None:
            why = skips(case.findtext("system-out") or "")
            lines += [f"skipped {preset}: {one}" for one in why] or [f"skipped {name}"]
        else:
            lines.append(f"failed {name}")
    seconds = collections.Counter()
    for case in cases:
        seconds[case.get("name").split(".")[0]] += float(case.get("time") or 0)
    lines += [f"seconds {total:.0f} {preset}: suite {suite}" for suite, total in seconds.items()]
    print(f"passed {passed}")
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
