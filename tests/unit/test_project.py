"""Rules for the repository itself: layout, imports, generated files, links, promise marks."""

import ast
import hashlib
import re
import tomllib
from pathlib import Path

import pytest

import conformance
import generate
import import_map
from hobnob import errors
from hobnob.config.channels.chats import PLATFORMS
from hobnob.config.leaves import walk_fields
from hobnob.store.engine import statements

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_no_module_has_more_than_500_lines() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES}
    assert {p: n for p, n in lengths.items() if n > 500} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    nameless = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
    assert [p.name for p in SOURCES if p.stem in nameless] == []


# They have a file per group of methods, commands or settings.
MANY_MODULES = {"api/methods", "cli", "config"}


def test_no_package_has_more_than_twelve_modules() -> None:
    package = ROOT / "src" / "hobnob"
    sizes: dict[str, int] = {}
    for path in SOURCES:
        folder = path.parent.relative_to(package).as_posix()
        if path.name != "__init__.py" and folder != ".":
            sizes[folder] = sizes.get(folder, 0) + 1
    assert {f: n for f, n in sizes.items() if n > 12 and f not in MANY_MODULES} == {}


def test_imports_between_packages_go_down_the_layers() -> None:
    assert import_map.read().violations == []


# `cli.reach` imports `cli.gateways` in a function, for a quicker start.
def test_no_modules_import_each_other_in_a_cycle() -> None:
    found = import_map.cycles(import_map.imports(import_map.module_graph()))
    assert found == []


def test_cycles_are_found_through_any_number_of_modules() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set[str](), "e": {"f"}, "f": {"e", "a"}}
    assert import_map.cycles(graph) == [["a", "b", "c"], ["e", "f"]]


def test_an_import_that_does_not_go_down_is_drawn_as_a_violation() -> None:
    edges = [("top", "low"), ("low", "top"), ("low", "beside")]
    graph = import_map.Graph([["top"], ["low", "beside"]], frozenset({"top"}), edges)
    assert graph.violations == [("low", "top"), ("low", "beside")]
    drawn = import_map.draw(graph)
    assert re.findall(r"<title>(.*?)</title>", drawn) == ["low imports top", "low imports beside"]


def test_the_generated_files_are_fresh() -> None:
    for name, text in generate.pages().items():
        assert (ROOT / "docs" / name).read_text() == text, f"{name}: run `make docs`"


def test_every_mark_names_a_promise() -> None:
    parts = conformance.sections((ROOT / "tests" / "promises.toml").read_text())
    known = {promise for part in parts for promise in part.promises}
    held = conformance.holders((ROOT / "tests").rglob("*.py"))
    assert {promise: tests for promise, tests in held.items() if promise not in known} == {}


@pytest.mark.parametrize("duplicate", ['a = "other"', '[x.promises]\nb = "other"'])
def test_two_promises_cannot_share_an_id(duplicate: str) -> None:
    section_text = '[x]\ntitle = "X"\n[x.promises]\na = "one"\n'
    (section,) = conformance.sections(section_text)
    assert section.promises == {"x.a": "one"}
    with pytest.raises(tomllib.TOMLDecodeError):
        conformance.sections(section_text + duplicate)


def test_marks_are_found_on_functions_classes_and_modules() -> None:
    source = """
pytestmark = [pytest.mark.timeout(5), pytest.mark.promise("x.a")]

@pytest.mark.promise("x.b", "x.c")
async def test_one(): ...

@pytest.mark.promise("x.d")
class TestTwo:
    @pytest.mark.promise("x.e")
    def test_three(self): ...
"""
    assert conformance.marks(source, "t.py") == [
        ("x.a", "t.py"),
        ("x.b", "t.py::test_one"),
        ("x.c", "t.py::test_one"),
        ("x.d", "t.py::TestTwo"),
        ("x.e", "t.py::TestTwo::test_three"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.promise('x.a')\ndef helper(): ...",
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.promise('x.a'))])\n"
        "def test_one(a): ...",
        "@pytest.mark.promise(NAME)\ndef test_one(): ...",
        "@pytest.mark.promise\ndef test_one(): ...",
        "@pytest.mark.promise()\ndef test_one(): ...",
    ],
)
def test_a_mark_that_pytest_would_ignore_is_an_error(source: str) -> None:
    with pytest.raises(conformance.BadMark):
        conformance.marks(source, "t.py")


@pytest.mark.promise("exchange.skip_words_in_one_place")
def test_control_words_are_recognised_in_one_place() -> None:
    """Other modules only mention them to models by name; the rehearsal model has to read them itself."""
    words = {"REPLY_SKIP", "ANNOUNCE_SKIP"}
    spelled, compared = set(), set()
    for path in SOURCES:
        name = path.relative_to(ROOT / "src" / "hobnob").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip() in words:
                spelled.add(name)
            if isinstance(node, ast.Compare) and words & {
                n.id for n in ast.walk(node) if isinstance(n, ast.Name)
            }:
                compared.add(name)
    assert spelled == {"exchanges.py", "models/rehearsal.py"}
    assert compared == {"exchanges.py"}


@pytest.mark.promise("transcript.append_only")
def test_no_query_changes_an_entry_and_only_whole_transcripts_are_deleted() -> None:
    entries = {name: sql for name, sql in statements.load().items() if re.search(r"\bentries\b", sql)}
    assert [name for name, sql in entries.items() if re.match(r"update|replace|insert or", sql)] == []
    assert [name for name, sql in entries.items() if sql.startswith("delete")] == ["purge_delete"]
    assert "not exists (select 1 from transcripts where number = :transcript)" in entries["purge_delete"]


def test_every_query_is_used_and_every_used_query_exists() -> None:
    code = "\n".join(p.read_text() for p in SOURCES if "store" in p.parts)
    known = set(statements.load())
    used = set(re.findall(r'"((?!utf)[a-z]+(?:_[a-z]+)+)"', code)) & known
    assert known - used - {"removals"} == set()
    named = set(re.findall(r'tx\.(?:get|all|each|rows|value|run|put)\(\s*(?:\w+, )?"(\w+)"', code))
    assert named - known - set(statements.load("postgres")) == set()


RELEASED_MIGRATIONS = {
    "sqlite": {
        "0001_initial": "70da6369ac0fa051233a80cbd864b938f19f36bbce43cd06c0b7d3d6e0d1e711",
        "0002_numbered_transcripts": "0d2919f5affb09846be9f37436f17e5915130decc9e7256ddf44114e31f106a2",
        "0003_exchanges_that_go_on": "b164d25ef1de768bee99528e1c98a3ce6558605cb702daeb50efb1a2581b3da8",
        "0004_devices": "0553002194642d34d4c331aca6e3bbf47835314fa8a8827ea889ce997055817a",
        "0005_questions_to_people": "4861c74b62a425ae75ad740372cd88141dda2fea751218f05b989397ffba7779",
        "0006_pools": "7010db08276f3169b5bdc5f11d09f713fed3da0a04417799bc08a9d8a2718d79",
        "0007_crash_counts": "581b7e347ca4defa0f45632e3c70457b0ce2dc0f27fa4a99cbce14b57631bf1a",
        "0008_labels_of_an_agent": "e41b158d52d77edc49b464e3da3b666e521d1177bb3571afe3c4622856eee137",
        "0009_retention": "4ef4b20c7141f109e9cb7fee42989396189f38e86900bbcfcb9c52f818830960",
        "0010_chats": "c0b2e59f77fa896c5a52d07f2c3efda087ea9eea2988b1e1996dfda7533e6df4",
        "0011_mcp_grants": "6cbbe723ba800198c66d58bd4ea8c8987620e8761cd4ea201e49e9b08f35288d",
        "0012_session_versions": "c35485b9b824db1cf0e8b487739c4dff23fd06e8e4cd11fd811cbbc443399a77",
        "0013_jobs": "e87a662bd30ab09ce32efff287d24010a1071d64617deb9af673677648ac2b18",
        "0014_compactions": "84ccedf12c90af0ac80a6e93b619a445daba97667c8c4dd4d858fc00b753b691",
        "0015_budgets": "c89e82f1ed23166f95c82c7c06e8db0086724a1fba4a8592febc4f5824c4c45a",
        "0016_nodes": "fc5da885f545e27738e3a61958163e46e5dd7ed4a7c158d2e0d29429645e7a44",
        "0017_joins": "9cbd36175d4a180d10407bbccd4516eea9a401f6ff5158e5fe2c41d20db4810a",
        "0018_session_homes": "0f07cbf863e8c21c19bc82a8728fdb7f16ae1481d7964674a111b2c5cfbff560",
        "0019_senders_of_deliveries": "c930a272ab3877f8e545ae65df0e59cceff2ddd77e5696baf5f7e04d85090332",
        "0020_order_of_deliveries": "2cd00fcfd36ac44007e1e65bc8ffac16af6183cbdc8b8e3aa4f01bbe7a943e42",
    },
    "postgres": {
        "0001_initial": "01fd5f2125d2f3ca4c9f5692de126bebb2dc67835bf9669b956bd71d5aea10a5",
        "0002_gateways": "a85435a87d2221ccdc30eb43ac8402964fc54f2d71b955d8b5c6f964da3e95e4",
        "0003_shared_secrets": "410212d2c6ef98f8c39fdf6bb70f0ccb66984013ef9e288b3fa6847f0aa80f15",
        "0004_session_homes": "40f392484be2787200ba72b7a400941f671c92e0fc84bed833d406485627ee3c",
        "0005_outcomes": "7f62c64d797796c4929b295d901d924c8ff5f6896cf98bf61c982c330e79ce14",
        "0006_senders_of_deliveries": "0ced8b0d043e6c5115aa5d99188d5017047af68f76671d8503b159aa126638e2",
        "0007_message_key": "9b62c43cf46354ad3229d80d217e37c0fde9fafc1af283ef8bfaee5867e69ef4",
        "0008_counted_crashes": "df0d30cc0c357382175630c5551dd88c9ef64c636a79f09648e726bc5a795146",
        "0009_state_of_gateways": "dac2cb5391dfcb30417043dc42b8f41ba1832750daba96bebf357bf6dddb5ded",
        "0010_order_of_deliveries": "22c766252e6215403a5a7044710306a56cab5900ba42d17e58cccf401778ce64",
    },
}


@pytest.mark.parametrize("dialect", RELEASED_MIGRATIONS)
def test_a_released_migration_never_changes(dialect: str) -> None:
    texts = {name: text for _, name, text in statements.migrations(dialect)}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    assert hashes == RELEASED_MIGRATIONS[dialect]


def test_every_error_has_a_message_and_a_code_of_its_own() -> None:
    def tree(kind: type[errors.HobnobError]) -> list[type[errors.HobnobError]]:
        return [kind, *(each for sub in kind.__subclasses__() for each in tree(sub))]

    kinds = tree(errors.HobnobError)
    assert all(kind.__doc__ for kind in kinds)
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    documented = errors.__doc__ or ""
    assert [k.__name__ for k in kinds if k.__name__ not in documented] == []


def test_a_message_that_a_fix_follows_ends_like_a_sentence() -> None:
    """Message and fix are shown one after the other."""
    running_on = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and any(key.arg == "fix" for key in node.keywords):
                last = node.args[0].values[-1] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
                text = last.value if isinstance(last, ast.Constant) else None
                if isinstance(text, str) and text != "missing scope: " and not text.endswith((".", "?")):
                    running_on.append(f"{path.name}: {text}")
    assert running_on == []


def test_every_setting_that_a_fix_names_exists() -> None:
    named: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                if node.func.id in ("config_set", "Fix") and len(node.args) < 3:
                    named.add(ast.unparse(node.args[0]))
    literal = {
        re.sub(r"\{[^}]*\}", "X", ast.literal_eval(text.removeprefix("f"))) for text in named if "'" in text
    }
    assert len(literal) > 25
    steps = [path.split(".") for path, _ in walk_fields()]
    known = {".".join(path[:length]) for path in steps for length in range(1, len(path) + 1)}
    patterns = [re.escape(p).replace("<name>", r"[^.]+").replace(r"\[\]", r"\[[^\]]+\]") for p in known]
    settings = [re.compile(pattern) for pattern in patterns]
    from_variables = {path for path in literal if path.startswith("X")}  # such as f"{path}.deny"
    assert [p for p in literal - from_variables if not any(each.fullmatch(p) for each in settings)] == []


def test_the_lock_file_has_hashes_and_no_addresses() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert not re.search(r"^--?(index|extra|find|i\b)", lock, re.MULTILINE)
    assert lock.count("--hash=sha256:") > lock.count("==")


@pytest.mark.parametrize(
    "page",
    sorted(
        path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    ),
)
def test_links_between_documents_resolve(page: str) -> None:
    here = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", here.read_text()):
        assert (here.parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("channel", [*PLATFORMS, "webchat"])
def test_every_channel_has_a_row_that_says_what_was_proven_and_what_was_not(channel: str) -> None:
    _, _, table = (ROOT / "docs" / "channels.md").read_text().partition("| Proven against | Not proven |")
    rows = [line for line in table.splitlines() if line.startswith(f"| `{channel}`")]
    assert len(rows) == (2 if channel in ("whatsapp", "imessage") else 1), "one row for each transport"
    for row in rows:
        _, _, proven, not_proven, _ = row.split("|")
        assert len(proven.strip()) > 10 and len(not_proven.strip()) > 10


def test_the_readme_shows_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make run" in readme
    assert "make test" in readme


@pytest.mark.promise("keys.parsed_once")
def test_only_one_module_splits_keys() -> None:
    splitting = re.compile(r"""(?:r?split|r?partition)\(["']:["']|removeprefix\(["']agent:["']\)""")
    found = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "src").rglob("*.py")
        for line in path.read_text().splitlines()
        if splitting.search(line)
        and not {"keys.py", "crashpoints.py", "auth.py"} & {path.name}
        and "channels" not in path.parts  # ids of platforms are no session keys
        and "url" not in line
    ]
    assert found == []


def test_every_update_of_a_session_raises_its_version() -> None:
    updates = [sql for sql in statements.load().values() if sql.startswith("update sessions")]
    assert len(updates) >= 5
    assert [
        sql for sql in updates if "version = version + 1" not in sql and "version = :version" not in sql
    ] == []
