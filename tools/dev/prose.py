"""Rules of the pages' language, for tidy.py text: length of sentences and of a table's cells, words
that the glossary replaces, width of man pages.

Pages are docs/*.md, the Markdown files at the top, and tools/man.  What is shown (code, commands,
messages) is not read.
"""
import re

WORDS_MAX = 30  # of a sentence, or of a part between colons and semicolons; aim at 20
CELL_MAX = 300  # characters of a table's cell
COLUMNS_MAX = 100  # of a man page's line of text
WORDS_HEADING = "## Words that have a better one"


def is_page(path):
    top = len(path.parts) == 1 or path.parts[:-1] == ("docs",)
    return (top and path.suffix == ".md") or (
        path.parts[:2] == ("tools", "man") and path.suffix in {".1", ".7"})


def without_code(text):
    """Text whose code spans are one word each, and whose links are what a reader sees."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def markdown_blocks(text):
    """(line, text) of each paragraph, heading, item of a list and cell of a table."""
    shown, first, held = False, 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.startswith("```")
        is_row = line.startswith("|") and not shown
        is_code = shown or fence or (line.startswith("    ") and not held)
        begins = re.match(r"\s*(#|[-*] |\d+\. |!\[)", line)
        if held and (not line.strip() or is_row or is_code or begins):
            yield first, " ".join(held)
            held = []
        shown ^= fence
        if is_row:
            yield from ((number, cell) for cell in cells(line))
        elif line.strip() and not is_code:
            first = first if held else number
            held.append(line.strip().lstrip("#- "))


def man_blocks(text):
    """(line, text) of each paragraph of a man page, without its synopsis and what is shown."""
    shown, first, held = False, 0, []
    lines = [*text.splitlines(), ".PP"]
    for number, line in enumerate(lines, 1):
        macro, _, rest = line.partition(" ") if line.startswith(".") else ("", "", line)
        breaks = macro in {".SH", ".SS", ".PP", ".TP", ".TH", ".br", ".nf", ".fi"}
        behind_tag = number > 2 and lines[number - 3].startswith(".TP")
        if held and (breaks or behind_tag):
            yield first, " ".join(held)
            held = []
        if macro in {".SH", ".nf", ".fi"}:
            shown = macro == ".nf" or rest == "SYNOPSIS"
        if not breaks and not shown and rest.strip():
            first = first if held else number
            held.append(re.sub(r"\\f.|\"", "", rest).replace("\\-", "-").strip())


def sentences(text):
    return re.split(r"(?<=[.!?:;])\s+|(?<=[.!?:;]\))\s+", text)


def words_of(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def replaced_words(root):
    """(pattern, what to write) of each row of the glossary's table of them."""
    glossary = root / "docs" / "glossary.md"
    text = glossary.read_text(encoding="utf-8") if glossary.exists() else ""
    section = text.partition(WORDS_HEADING)[2].partition("\n## ")[0]
    rows = [cells(line) for line in section.splitlines() if line.startswith("|")]
    return [(re.compile(rf"\b({'|'.join(map(re.escape, row[0].split(', ')))})\b", re.I), row[1])
            for row in rows[2:]]


def check(path, text, replaced):
    """Yields findings of one page as text lines."""
    is_man = path.parts[0] == "tools"
    if path.name == "glossary.md":
        text = text.partition(WORDS_HEADING)[0]
    for number, line in enumerate(text.splitlines(), 1):
        if is_man and len(line) > COLUMNS_MAX and not line.startswith("."):
            yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS_MAX}"
        if line.startswith("|") and max(map(len, cells(line))) > CELL_MAX:
            yield f"{path}:{number}: a cell of more than {CELL_MAX} characters: make it a paragraph"
    for number, block in (man_blocks if is_man else markdown_blocks)(text):
        block = without_code(block)
        for sentence in sentences(block):
            words = words_of(sentence)
            if len(words) > WORDS_MAX:
                yield (f"{path}:{number}: {len(words)} words, at most {WORDS_MAX}: "
                       f"'{' '.join(words[:6])} ...'")
        for pattern, better in replaced:
            match = pattern.search(block)
            if match:
                yield f"{path}:{number}: '{match.group(0)}': {better} (docs/glossary.md)"
