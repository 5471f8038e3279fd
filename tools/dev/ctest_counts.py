#!/usr/bin/env python3
"""Sums up a JUnit report of ctest: one line 'passed N', then 'failed NAME' and 'skipped NAME'.

usage: ctest_counts.py REPORT.xml PRESET
"""
import sys
import xml.etree.ElementTree


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
        if status == "run":
            passed += 1
        elif status == "notrun" or case.find("skipped") is not None:
            lines.append(f"skipped {name}")
        else:
            lines.append(f"failed {name}")
    print(f"passed {passed}")
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
