#!/usr/bin/env python3
"""Style checks that need no compiler database.

usage: tidy.py text    [--root DIR]        lengths, banned words, blanks at line ends, tabs, prose
       tidy.py format  [--root DIR] [--fix]  clang-format over all C++ files
       tidy.py headers [--root DIR]        every header compiles when included alone
Each prints one line per finding and exits 1 when there is any.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import prose

FOLDERS = ("runtime", "ha", "actors", "relay", "plugin", "tools", "tests")
CODE = {".h", ".cpp", ".def"}
SCRIPTS = {".py", ".sh", ".cmake", ".bash"}
LINES_MAX = 600
COLUMNS_MAX = 100
MEMBERS_MAX = 25  # data members of a class
MEMBER_FOLDERS = ("runtime", "ha", "actors", "relay", "plugin")

# Words that must not appear in C++ code, and what to do about it.  Written with brackets so that
# this file does not contain them itself.
BANNED_IN_CODE = [
    (r"\bsleep_[f]or\b|\bthis_thread::s[l]eep\w*|\bu[s]leep\s*\(|\bnano[s]leep\s*\(",
     "wait for an event with a deadline, not for time to pass"),
    (r"(?<![\w.>:])[r]and\s*\(\)|\bs[r]and\s*\(|\bstd::[r]and\b", "use runtime/base/random.h"),
    (r"\bsystem_[c]lock\b", "use runtime/base/clock.h"),
    (r"#\s*define\s+(private|protected)\b", "test through the interface"),
    (r"\bDISABLED[_]|\bGTEST[_]SKIP\(\);", "a test runs, or says why not"),
    (r"\busing\s+namespace\s+std\b", "name what is used"),
    (r"#\s*include\s+\"[^\"]*\.c(pp|c|xx)\"", "sources are no headers"),
]
# What the field has a word for (docs/glossary.md), once called otherwise here.
OLD_WORDS = (
    r"\b[Ss]eats?_?\b|\bsit_[d]own\b|\bget_[u]p\b|\b[b]ed_?\b|\b[n]aps?\b|\b[r]ous(e|es|ed)\b"
    r"|\bturns_of_[w]ho\b|\blef[t]_alone\b|\b[b]ury\b|\b[f]arewells?\b|\b[c]alm\w*|\blook_[a]round\b"
    r"|(\b|_)[d]oz(e|es|ed|ing)(\b|_)|\bon_[f]light\b|\bon_[l]anding\b|\b[r]ide_along\w*|\b[s]tale_peer_?\b"
    r"|\b[e]nliven\b|\b[l]ively\w*|\b[c]hores\b|\b[t]hirsty\b|\b[s]igns? of life\b"
    r"|\b[s]tand(s|ing)?[ -]in\b(?! the)|\b[d]oubt(s|ed|ful)?\b|\b[c]onfused\b|\b[C]ourier\b|\b[E]ar\b"
    r"|\b[D]esk\b|\b[s]trangers?\b|\b[t]urned away\b|\b(find|seek)_[p]lace\b|\b[b]y and by\b"
    r"|\bdo_[c]hores\b|\bbe_[t]hirsty\b|\bhand_[o]ver_receives\b|\b[p]arked_\b"
    r"|\blook_at_(f[l]ush|d[e]struction|r[e]solution|f[e]nces)\b|\bgo_[r]eady\b"
    r"|\b([Hh]e|[Hh]is|[h]im)\b")
BANNED_EVERYWHERE = [
    (OLD_WORDS, "docs/glossary.md has the field's word"),
    (r"\bTO[D]O\b|\bFIX[M]E\b|\bX[X]X\b", "finish it or file an issue"),
    (r"(?<![\w.])/wor[k]/|/home/[a-z]", "a path of one machine"),
]


def project_files(root):
    """Every text file that belongs to the project, relative to root."""
    top = [p for p in root.iterdir() if p.is_file() and p.suffix in {".md", ".txt", ".json"}]
    for folder in FOLDERS + ("docs", "cmake", ".ci"):
        base = root / folder
        if base.is_dir():
            top += [p for p in base.rglob("*") if p.is_file()]
    for path in sorted(top):
        relative = path.relative_to(root)
        if "corpus" in relative.parts or "__pycache__" in relative.parts:
            continue
        if relative.parts[0] == "docs" and relative.suffix == ".png":
            continue
        yield relative


def without_comments(text):
    """C++ with comments, literals and preprocessor lines blanked, line by line as before."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\\\.|[^\"\\\\])*\"|'(?:\\\\.|[^'\\\\])'", blank, text,
                  flags=re.S)
    return re.sub(r"^[ ]*#[^\n]*", blank, text, flags=re.M)


def is_data_member(statement):
    """Whether a statement right inside a class, without what its braces hold, declares data."""
    head = re.sub(r"alignas\s*\([^)]*\)|\[\[.*?\]\]|\b(?:public|private|protected)\s*:(?!:)", " ",
                  statement)
    head = " ".join(head.split())
    if not head or re.match(r"(?:static|using|typedef|friend|template|enum|class|struct|union)\b", head):
        return False
    if re.search(r"\boperator\b", head):
        return False
    declared = re.split(r"=|\{", head, maxsplit=1)[0]
    while "<" in declared:  # std::function<void()> declares data
        shorter = re.sub(r"<[^<>]*>", "", declared)
        if shorter == declared:
            break
        declared = shorter
    if "(" in declared:
        return re.search(r"\(\s*\*\s*\w+\s*\)\s*\(", declared) is not None  # a function pointer
    return len(declared.split()) > 1


def class_members(text):
    """(line, name, data members) of every class of a header; those of bases do not count."""
    text = without_comments(text)
    found, stack, statement = [], [], ""
    for at, char in enumerate(text):
        if char == "{":
            name = re.search(r"\b(?:class|struct|union)\s+(?:alignas\([^)]*\)\s*)?(\w+)[^;()=]*$",
                             statement)
            kept = None if name and not re.search(r"\benum\b", statement) else statement
            stack.append([name.group(1), text.count("\n", 0, at) + 1, 0, kept]
                         if kept is None else [None, 0, 0, kept])
            statement = ""
        elif char == "}" and stack:
            name, line, members, kept = stack.pop()
            if name:
                found.append((line, name, members))
            # What follows a body decides: initialised data ends with a semicolon, a function does not.
            rest = text[at + 1:].lstrip()[:1]
            statement = (kept + "{}") if kept is not None and rest in {";", ","} else ""
        elif char == ";":
            if stack and stack[-1][0] and is_data_member(statement):
                stack[-1][2] += 1
            statement = ""
        else:
            statement += char
    return found


def check_members(root, path):
    """Yields classes of a header that hold too much."""
    if path.parts[0] in MEMBER_FOLDERS and path.suffix == ".h":
        for line, name, members in class_members((root / path).read_text(encoding="utf-8")):
            if members > MEMBERS_MAX:
                yield (f"{path}:{line}: {name} has {members} data members, at most {MEMBERS_MAX}: "
                       "what belongs together is a class of its own")


def code_files(root):
    return [p for p in project_files(root) if p.suffix in {".h", ".cpp"}]


def check_line(line, is_code, width_max):
    """Yields what is wrong with one line."""
    if line != line.rstrip():
        yield "blank at the end of the line"
    if "\t" in line:
        yield "tab"
    if is_code and len(line) > width_max:
        yield f"{len(line)} columns, at most {width_max}"
    for pattern, advice in BANNED_EVERYWHERE + (BANNED_IN_CODE if is_code else []):
        match = re.search(pattern, line)
        if match:
            yield f"'{match.group(0)}' is banned: {advice}"


def check_early_returns(text):
    """Yields lines of tests where a test ends without having tested, which counts as passed: in blocks
    right below the test's own."""
    inside = False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        inside = line.startswith("TEST") or (inside and line != "}")
        if inside and line.startswith("    return;") and before.endswith("{"):
            yield number
        before = line.rstrip()


def check_file(root, path):
    """Yields findings of one file as text lines."""
    raw = (root / path).read_bytes()
    if b"\0" in raw:
        yield f"{path}: binary file among the sources"
        return
    text = raw.decode("utf-8", errors="replace")
    lines = text.splitlines()
    is_code = path.suffix in CODE
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"
    if (is_code or path.suffix in SCRIPTS) and len(lines) > LINES_MAX:
        yield f"{path}: {len(lines)} lines, at most {LINES_MAX}: split it"
    if path.suffix == ".md" and not (lines and lines[0].startswith("# ")):
        yield f"{path}: a page starts with a title ('# ...')"
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield f"{path}: no '#pragma once'"
    if path.name.endswith("_test.cpp"):
        for number in check_early_returns(text):
            yield f"{path}:{number}: a test that returns early counts as passed: GTEST_SKIP() << why"
    # Tables are read best with a row on one line.
    width_max = 200 if path.suffix == ".def" else COLUMNS_MAX
    for number, line in enumerate(lines, 1):
        for problem in check_line(line, is_code, width_max):
            yield f"{path}:{number}: {problem}"


def run_text(root, _arguments):
    replaced = prose.replaced_words(root)
    found = []
    if not replaced and (root / "docs" / "glossary.md").exists():
        found.append(f"docs/glossary.md: no table below '{prose.WORDS_HEADING}'")
    for path in project_files(root):
        found += [*check_file(root, path), *check_members(root, path)]
        if prose.is_page(path):
            found += prose.check(path, (root / path).read_text(encoding="utf-8"), replaced)
    return found


def run_format(root, arguments):
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool:
        return ["clang-format is not installed: run tools/setup"]
    files = [str(p) for p in code_files(root)]
    if not files:
        return ["no C++ files found"]
    mode = ["-i"] if arguments.fix else ["--dry-run", "--Werror"]
    done = subprocess.run([tool, "--style=file", *mode, *files], cwd=root, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode == 0:
        return []
    wrong = sorted({line.split(":", 1)[0] for line in done.stdout.splitlines()
                    if "clang-format-violations" in line})
    return [f"{name}: not formatted (tools/dev/tidy.py format --fix)" for name in wrong] or [
        done.stdout.strip()]


def compile_alone(root, header):
    """The compiler's complaint about including header first and twice, or None."""
    compiler = os.environ.get("CXX", "c++")
    source = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-DFMT_HEADER_ONLY=1",
         '-DNHA_VERSION="0"', "-I", str(root), "-x", "c++", "-"],
        input=source, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode == 0 and not done.stdout:
        return None
    first = next((l for l in done.stdout.splitlines() if "error" in l or "warning" in l), "failed")
    return f"{header}: does not stand alone: {first}"


def needs_nccl(path):
    """Headers over NCCL's and CUDA's own, which not every machine has (tests/nccl/README.md)."""
    return path.parts[:3] == ("tests", "nccl", "emulated")


def run_headers(root, _arguments):
    headers = [p for p in code_files(root) if p.suffix == ".h" and not needs_nccl(p)]
    if not headers:
        return ["no headers found"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = pool.map(lambda header: compile_alone(root, header), headers)
        return [finding for finding in results if finding]


CHECKS = {"text": run_text, "format": run_format, "headers": run_headers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("check", choices=sorted(CHECKS))
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--fix", action="store_true", help="format: rewrite the files")
    arguments = parser.parse_args()
    findings = CHECKS[arguments.check](arguments.root, arguments)
    for finding in findings:
        print(finding)
    print(f"{arguments.check}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
