#!/usr/bin/env python3
"""What a page names is there: pages, headings, files, classes' members, settings, subcommands, metrics
and messages; and each page is short and in the index.

Each rule is a function over text, which a test tries on a planted fault before it reads the pages.
"""
import json
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINES_MAX = 200
COLUMNS_MAX = 100
TOP_PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PANEL_FIELDS = {"id", "type", "title", "gridPos", "datasource", "fieldConfig", "options", "targets"}
CODE_FOLDERS = ("runtime", "ha", "actors", "relay", "plugin", "tools")


def read(path):
    return path.read_text(encoding="utf-8")


def pages():
    return sorted(DOCS.glob("*.md"))


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in {".h", ".cpp", ".def"}]


def wide_lines(text):
    """Numbers of lines of prose beyond COLUMNS_MAX; a row of a table, or what is shown, cannot be
    broken."""
    return [number for number, line in enumerate(text.splitlines(), 1)
            if len(line) > COLUMNS_MAX and not line.startswith(("|", "    ", "!["))]


def headings(text):
    return {line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")}


def page_references(text):
    """(page, heading or None) for each docs/PAGE, with the heading in quotes behind it."""
    text = re.sub(r"\n\s*(?:///?|#|\*)?\s*", " ", text)
    return [(name, heading or None) for name, heading in
            re.findall(r"\bdocs/([\w-]+\.(?:md|json|png))(?:,? \"([A-Z][^\"]*)\")?", text)]


def links(text):
    """What Markdown links lead to, without addresses of the web and of the repository's host."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return [one for one in found if not one.startswith(("http:", "https:", "../../security"))]


def named_paths(text):
    """Files and folders of the sources that a text names; * and NAME stand for anything."""
    text = re.sub(r"\b(NAME|VERSION)(?=[./_]|\b)", "*", text)
    return set(re.findall(r"(?<![\w./@<-])((?:runtime|ha|actors|relay|plugin|tools|tests|cmake)"
                          r"/[\w./*-]*[\w*])", text))


def path_is_there(name):
    """A file, a folder, or a file named without its ending."""
    return any(next(ROOT.glob(form), None) for form in (name, name + ".h", name + ".cpp"))


def named_members(text):
    """(class, member) of each Class::member."""
    return set(re.findall(r"\b([A-Z]\w+)::(\w+)", text))


def named_settings(text):
    return {name for name in re.findall(r"\b(?:HA_NCCL|NCCL_MESH|MPIB)_[A-Z_]+\b(?!\*)", text)
            if not name.endswith("_")}


def subcommands(text):
    """X of `nccl-ha X` where it is a command: in backquotes, or first on a shown line."""
    return set(re.findall(r"(?:`|^    (?:sudo |\$ )?)nccl-ha ([a-z]+)\b", text, flags=re.M))


def metrics(text):
    return set(re.findall(r"\bnccl_ha_[a-z_]+[a-z]\b", text))


def known_metrics():
    """Those of the counters, as a textfile has them, and the agent's."""
    scopes = re.split(r"NHA_SCOPE\((\w+),", read(ROOT / "runtime/telemetry/counters.def"))[1:]
    agents = re.findall(r'"([a-z_]+)"', read(ROOT / "tools/agent/metrics.cpp"))
    return {f"nccl_ha_agent_{name}" for name in agents} | {
        f"nccl_ha_{scope}_{name}{'_total' if kind == 'sum' else ''}"
        for scope, rows in zip(scopes[::2], scopes[1::2])
        for kind, name in re.findall(r"NHA_COUNTER\((\w+), (\w+),", rows)}


def literals(text):
    """The string literals of C++ source, adjacent ones joined, placeholders as ...."""
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    text = re.sub(r'"\s*\n\s*"', "", text)
    found = re.findall(r'"((?:\\.|[^"\\\n])*)"', text)
    return [re.sub(r"\{[^{}]*\}", "...", one.replace('\\"', '"')) for one in found]


def message_pieces(message):
    """The constant parts of a message that are long enough to be looked for."""
    message = message.split("NET/HA : ", 1)[-1]
    # Examples of values: numbers, addresses, names with digits, what is in brackets.
    message = re.sub(r"\([^()]*\)|#\w+|\S*\d\S*|\b[A-Z][A-Z_]{2,}\S*|\b[A-Z]\b", "...", message)
    pieces = [one.strip(" ;,.`'") for one in re.split(r"\.\.\.|=|: ", message)]
    return [one for one in pieces if len(one) >= 10]


# What is put together at run time: the parts that the sources have.
COMPOSED = {
    "of this host has no link": ("of this host ... no link",),
    "no usable network interface matches": ("no usable network interface", "matches HA_NCCL_IFNAME"),
    "moved to the shadow path": ("traffic to ... moved ... path", "to the shadow"),
    "cannot take over through a device of this host": ("cannot take over through a device ...",
                                                       "of this host"),
    "failed, as its driver says": ("..., as its driver says",),
    "a completion queue of it failed, as its driver says": ("a completion queue of it failed",),
    "ms after it was given up, path": ("ms after it was given up, ...", "path ... goes on"),
    "Address already in use": (),  # the C library's
    "port error; check cable and switch": ("check cable and switch",),  # the rest is libibverbs'
}


def is_said(piece, said):
    """Whether the sources have it, as it is or in parts."""
    return all(part in said for part in COMPOSED.get(piece, (piece,)))


def shown_messages(text):
    """Messages that a page shows: in a table's first column, or with the plugin's mark in front."""
    text = re.sub(r"\n {5,}(?!NET)", " ", text)  # a line that is shown on several
    rows = [line for line in text.splitlines() if line.startswith("| `") or "NET/HA : " in line]
    return [one for row in rows for one in
            (re.findall(r"`([^`]+)`", row.split(" | ")[0]) or [row.strip()])]


class Rules(unittest.TestCase):
    """Each finds a planted fault, and lets pass what is right."""

    def test_of_texts(self):
        self.assertEqual(wide_lines("short\n" + "x" * 101 + "\n| " + "x" * 101 + "\n"), [2])
        self.assertEqual(page_references('see docs/a-b.md,\n// "By itself" and docs/c.md.'),
                         [("a-b.md", "By itself"), ("c.md", None)])
        self.assertEqual(links("[a](b.md), [c](https://d.e) ![f](g/h.svg)"), ["b.md", "g/h.svg"])
        self.assertEqual(named_members("Worker::turn, ha::Lane"), {("Worker", "turn")})
        self.assertEqual(named_settings("HA_NCCL_* and HA_NCCL_RTO_MS"), {"HA_NCCL_RTO_MS"})
        self.assertEqual(subcommands("`nccl-ha info`, nccl-ha has\n    nccl-ha lab run\n"),
                         {"info", "lab"})
        self.assertEqual(metrics("nccl_ha_agent_* nccl_ha_worker_turns_total"),
                         {"nccl_ha_worker_turns_total"})

    def test_of_paths(self):
        self.assertEqual(named_paths("see tests/style/pages_test.py, or /opt/tools/x"),
                         {"tests/style/pages_test.py"})
        self.assertTrue(path_is_there("tests/style/pages_test.py"))
        self.assertTrue(path_is_there("tests/e2e/abi_*"))
        self.assertFalse(path_is_there("tests/style/no_page_test.py"))

    def test_of_messages(self):
        source = 'log("path {} of the connection "\n    "to {} is down: {}", a);'
        self.assertEqual(literals(source), ["path ... of the connection to ... is down: ..."])
        self.assertEqual(message_pieces("NET/HA : path 0 of the connection to 10.0.0.2 is down"),
                         ["of the connection to"])
        self.assertEqual(shown_messages("| `it is lost`, `it is back` | `do`\nNET/HA : up\n"),
                         ["it is lost", "it is back", "NET/HA : up"])
        self.assertTrue(is_said("it is lost", "or it is lost"))
        self.assertFalse(is_said("it is lost", "it was lost"))


class Pages(unittest.TestCase):
    def all_of(self, find, is_there):
        """What `find` sees in each page and `is_there` does not know; some must be seen at all."""
        seen = [(path.name, one) for path in pages() for one in sorted(find(read(path)))]
        self.assertTrue(seen)
        self.assertEqual([one for one in seen if not is_there(one[1])], [])

    def test_each_is_short(self):
        for path in pages():
            with self.subTest(page=path.name):
                self.assertLessEqual(len(read(path).splitlines()), LINES_MAX)
                self.assertEqual(wide_lines(read(path)), [])

    def test_the_index_has_each(self):
        listed = set(links(read(DOCS / "README.md")))
        self.assertEqual({path.name for path in pages()} - listed, {"README.md"})

    def test_pages_and_headings_are_there(self):
        texts = pages() + TOP_PAGES
        texts += sources(*CODE_FOLDERS, "tests")
        texts += [path for folder in CODE_FOLDERS + ("tests",)
                  for path in sorted((ROOT / folder).rglob("*.md"))]
        named = [(path.relative_to(ROOT), *one)
                 for path in texts for one in page_references(read(path))]
        self.assertGreater(len(named), 100)
        wrong = []
        for where, page, heading in named:
            target = DOCS / page
            if not target.exists() or (heading and heading not in headings(read(target))):
                wrong.append(f"{where}: docs/{page} {heading or ''}")
        self.assertEqual(wrong, [])

    def test_links_lead_somewhere(self):
        for path in pages() + TOP_PAGES:
            for link in links(read(path)):
                with self.subTest(page=path.name, link=link):
                    self.assertTrue((path.parent / link).exists())

    def test_files_are_there(self):
        self.all_of(named_paths, path_is_there)

    def test_members_are_there(self):
        words = set()
        for path in sources(*CODE_FOLDERS, "tests"):
            words.update(re.findall(r"\w+", read(path)))
        self.all_of(named_members, words.issuperset)

    def test_settings_are_there(self):
        # Names, aliases and fallbacks; a word in a setting's help is none.
        rows = re.split(r"\bNHA_SETTING\(\w+, ", read(ROOT / "runtime/base/settings.def"))[1:]
        known = {name for row in rows for name in
                 re.findall(r'"([A-Z]\w+)",', row)}
        self.all_of(named_settings, known.__contains__)

    def test_subcommands_are_there(self):
        known = {path.stem.removeprefix("nccl-ha-") for path in (ROOT / "tools/man").glob("*.1")}
        self.all_of(subcommands, known.__contains__)

    def test_metrics_are_there(self):
        known = known_metrics()
        self.all_of(metrics, known.__contains__)
        rules = read(DOCS / "alerts.yml")
        self.assertEqual(metrics(rules) - known, set())
        alerts = re.findall(r"- alert: (\w+)", rules)
        self.assertGreater(len(alerts), 5)
        self.assertEqual(alerts, re.findall(r"^\| (NcclHa\w+) \|", read(DOCS / "monitoring.md"), re.M))
        # Each says for whom and what to do, and no label is one that grows.
        for field in ("expr", "severity", "summary", "action"):
            self.assertEqual(len(re.findall(rf"\b{field}:", rules)), len(alerts), field)
        self.assertNotRegex(rules, r"\b(pid|instance|id|connection)\b *[=!]")

    def test_dashboards_can_be_loaded(self):
        boards = sorted(DOCS.glob("*-dashboard.json"))
        self.assertEqual(len(boards), 2)
        for path in boards:
            board = json.loads(read(path))
            self.assertGreaterEqual(board["schemaVersion"], 36)
            panels = board["panels"]
            self.assertEqual(len({one["id"] for one in panels}), len(panels))
            taken = [(one["gridPos"]["x"] + x, one["gridPos"]["y"] + y) for one in panels
                     for x in range(one["gridPos"]["w"]) for y in range(one["gridPos"]["h"])]
            self.assertEqual(len(set(taken)), len(taken), "panels lie on each other")
            self.assertLess(max(x for x, _ in taken), 24, "Grafana's grid has 24 columns")
            variables = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
            for panel in panels:
                with self.subTest(board=path.name, panel=panel["title"]):
                    self.assertEqual(set(panel) - PANEL_FIELDS, set())
                    targets = panel["targets"]
                    self.assertEqual(len({one["refId"] for one in targets}), len(targets))
                    for one in targets:
                        self.assertTrue(metrics(one["expr"]), one["expr"])
                        self.assertEqual(metrics(one["expr"]) - known_metrics(), set())
                    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
                    self.assertEqual(used - variables, set())

    def test_messages_are_there(self):
        said = "\n".join(one for path in sources(*CODE_FOLDERS) for one in literals(read(path)))
        texts = [read(DOCS / "quickstart.md").split("## 5.")[1].split("## 7.")[0],
                 read(DOCS / "failover.md").split("Where many connections")[0],
                 read(DOCS / "rails.md").split("## What goes wrong")[1],
                 read(DOCS / "troubleshooting.md").split("## Start")[1]]
        for text in texts:
            pieces = [one for message in shown_messages(text) for one in message_pieces(message)]
            self.assertGreater(len(pieces), 4)
            self.assertEqual([one for one in pieces if not is_said(one, said)], [])


if __name__ == "__main__":
    unittest.main()
