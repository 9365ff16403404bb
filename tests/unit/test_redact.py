"""What is taken out of a text before it is shown, and what is left alone.

No secret stands here in one piece: each is put together when the tests run.
"""

import copy
import json
import random
import string
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hobnob import redact

LOWER_HEX, UPPER, ALNUM = (
    "0123456789abcdef",
    string.ascii_uppercase + "234567",
    string.ascii_letters + "0123456789",
)
URL_SAFE = ALNUM + "-_"


def made(length: int, alphabet: str = ALNUM) -> str:
    """The same every time; with a digit, and without what a sentence might hold."""
    chars = random.Random(f"{length}{alphabet}").choices(alphabet, k=length - 1)
    return "".join(chars[: length // 2]) + "7" + "".join(chars[length // 2 :])


# What comes first in a vendor's key, how many characters follow, and which.
VENDORS = [
    ("sk-", 48, ALNUM),
    ("sk-proj-", 120, URL_SAFE),
    ("sk-ant-api03-", 95, URL_SAFE),
    ("sk-or-v1-", 64, LOWER_HEX),
    ("gh" + "p_", 36, ALNUM),
    ("gh" + "o_", 36, ALNUM),
    ("gh" + "s_", 36, ALNUM),
    ("github_" + "pat_", 82, ALNUM + "_"),
    ("gl" + "pat-", 20, URL_SAFE),
    ("xox" + "b-", 50, ALNUM),
    ("xox" + "p-1234567890-", 50, ALNUM),
    ("xapp" + "-1-A0", 60, ALNUM),
    ("AI" + "za", 35, URL_SAFE),
    ("ya" + "29.", 60, URL_SAFE),
    ("AK" + "IA", 16, UPPER),
    ("AS" + "IA", 16, UPPER),
    ("sk_" + "live_", 24, ALNUM),
    ("rk_" + "live_", 24, ALNUM),
    ("wh" + "sec_", 32, ALNUM),
    ("npm" + "_", 36, ALNUM),
    ("pypi" + "-AgEIcHlwaS5vcmc", 120, URL_SAFE),
    ("h" + "f_", 34, ALNUM),
    ("r" + "8_", 37, ALNUM),
    ("g" + "sk_", 52, ALNUM),
    ("x" + "ai-", 80, ALNUM),
    ("pp" + "lx-", 48, ALNUM),
    ("nv" + "api-", 64, URL_SAFE),
    ("123456789" + ":AA", 33, URL_SAFE),
    ("M" + made(23) + ".Ab1-_z.", 27, URL_SAFE),
    ("S" + "G." + made(22) + ".", 43, URL_SAFE),
    ("S" + "K", 32, LOWER_HEX),
    ("da" + "pi", 32, LOWER_HEX),
    ("do" + "p_v1_", 64, LOWER_HEX),
    ("sh" + "pat_", 32, LOWER_HEX),
    ("lin_" + "api_", 40, ALNUM),
    ("hv" + "s.", 90, URL_SAFE),
    ("AGE-SECRET" + "-KEY-1", 58, UPPER),
    ("ey" + "JhbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0.", 43, URL_SAFE),
    ("https://hooks.slack" + ".com/services/T012AB/B345CD/", 24, ALNUM),
    ("https://discord.com/api" + "/webhooks/1234567890/", 68, URL_SAFE),
]
KEYS = [prefix + made(length, alphabet) for prefix, length, alphabet in VENDORS]
RANDOM = made(40)
BODY = "\n".join(made(64) for _ in range(5)) + "\n" + made(20) + "=="


def key_block(kind: str) -> tuple[str, str]:
    return f"-----BEGIN {kind}" + "-----", f"-----END {kind}" + "-----"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:9])
def test_a_vendors_key_is_found_wherever_it_stands(key: str) -> None:
    for said in (
        key,
        f"use {key}.",
        f'"{key}"',
        f"<{key}>",
        f"x\n{key}\ny",
        f"k={key}&b=1",
        f"({key})",
        f"`{key}`",
    ):
        for text in (said, json.dumps(said), json.dumps(json.dumps(f"\n{said}\n"))):
            shown, found = redact.text(text)
            assert found
            assert key[len(key) // 2 : -4] not in shown


# A place, with the secret as {}. Each is tried with a random value.
PLACES = [
    "API_KEY={}",
    "export GITHUB_TOKEN={}",
    'export TOKEN="{}"',
    "export TOKEN='{}'; run",
    "DB_PASSWORD={} ./run",
    "aws_secret_access_key = {}",
    '{{"password": "{}"}}',
    '{{"apiKey":"{}","user":"ann"}}',
    "{{'client_secret': '{}'}}",
    "secret: {}",
    "  password: {}  # of the database",
    "**Password:** {}",
    "the password is {}, do not tell",
    "my api key: {}.",
    "X-Api-Key: {}",
    "x-auth-token:{}",
    'token: "{}"',
    'const token: string = "{}";',
    'password = b"{}"',
    'login(user="ann", password="{}")',
    'os.environ["API_TOKEN"] = "{}"',
    "'password' => '{}',",
    "token := `{}`",
    "$ tool --token {} list",
    "$ tool --api-key={} list",
    '["tool", "--auth-token", "{}"]',
    "$ curl -u ann:{} https://example.org",
    "https://example.org/x?a=1&access_token={}&b=2",
    "https://example.org/x?token={}#top",
    "https://bucket.example.org/x?X-Amz-Signature={}",
    "https://blob.example.org/x?sv=2024&sig={}",
    "https://ann:{}@example.org/x",
    "postgres://ann:{}@db:5432/x",
    "redis://:{}@cache",
    "Server=db;User Id=sa;Password={};Encrypt=yes",
    "AccountName=x;AccountKey={};EndpointSuffix=y",
    "Authorization: Bearer {}",
    "authorization: bearer {}",
    "Authorization: Basic {}",
    "Authorization: {}",
    '"Authorization": "Bearer {}"',
    "curl -H 'Authorization: token {}' https://example.org",
    "it sends Bearer {} then",
    "Cookie: session={}",
    "Cookie: theme=dark; session={}",
    "Set-Cookie: session={}; Path=/; HttpOnly",
    "<password>{}</password>",
    "//registry.example.org/:_authToken={}",
    "private_key={}",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_value_in_a_secrets_place_is_found(place: str) -> None:
    for value in (RANDOM, made(32, LOWER_HEX), made(12), made(12) + "+/" + made(12) + "=="):
        if "://" in place and "/" in value:
            continue  # in a URL it would be written otherwise
        for text in (
            said := place.format(value),
            f"one\n{said}\ntwo",
            json.dumps(said),
            json.dumps(json.dumps(said)),
        ):
            shown, found = redact.text(text)
            assert found
            assert value[5:-4] not in shown


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "swordfish"}',
        'password = "hunter2"',
        "password: hunter2",
        "DB_PASSWORD=swordfish",
        "POSTGRES_PASSWORD=1234",
        "mysql --password=swordfish",
        "?user=ann&password=swordfish",
        "https://ann:swordfish@example.org",
        "<password>swordfish</password>",
        'password="it\'s a-secret"'.replace(" a", "-a"),
        'PASSWORD="pa\\"ss-word1"',
        "PASSWORD=Tr0ub4dor&3".replace("&", "%"),
        "PASSWORD=a,b)c]d1",
    ],
)
def test_a_password_may_be_short_or_a_word(text: str) -> None:
    shown, found = redact.text(text)
    assert found
    assert "***" in shown
    assert not any(piece in shown for piece in ("fish", "hunter", "1234", "it's", "b)c", "ss-w", "4dor"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the token bucket is full, and the password is wrong",
        "password: please choose one",
        "Password: at least eight characters",
        '"password": "Please enter your password"',
        '"password": "Password"',
        "The secret is: never give up",
        "API key: see the manual. Access key: none.",
        "secret: the key is under the mat",
        "totalTokens: 5123",
        '"max_tokens": 4096, "token_type": "bearer"',
        "max_tokens=4096 tokenizer=cl100k_base",
        "tokens: 12,345 of 128,000",
        "nextPageToken: CAoQAA1234567890abcdef",
        "next_token=abc123def456 continuation_token=abc123def456",
        "0193a6c2-7b1d-7f00-8000-0123456789ab",
        "agent:main:subagent:018f3a2b-7b1d-7f00-8000-0123456789ab",
        "agent:main:hook:token:018f3a2b-7b1d-7f00-8000-0123456789ab",
        '"sessionKey": "agent:main:cron:7", "key": "agent:helper:telegram:group:-1001234567890"',
        "commit 1ad05782c4c2f1b0f3a0a9d8e7c6b5a4f3e2d1c0",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "https://example.org/a/b?page=2&q=token#password",
        "http://[2001:db8::1]:8080/ and http://localhost:3000/@scope/pkg",
        "git@github.com:owner/repo.git",
        "token = get_token()",
        "token = await get_token(user=1)",
        'api_key=os.environ["X"]',
        "api_key = settings.api_key",
        "const apiKey = process.env.API_KEY!",
        "password: str, token: str | None = None",
        "def login(password: Optional[str] = None, secret: bytes = b):",
        "if token is None or token == other:",
        "${API_KEY} $API_KEY API_KEY=${API_KEY} TOKEN=$TOKEN PASSWORD=$(cat /run/secrets/db1)",
        'f"Bearer {token}" "Authorization: Bearer ${TOKEN}" `Bearer <token>`',
        f"password = {'{'}password!r{'}'}",
        "Authorization: Bearer YOUR_API_KEY",
        "API_KEY=your-api-key-here TOKEN=xxxxxxxx",
        "Authorization: Basic authentication is used",
        'mode: Literal["token", "password"] = "token"',
        '"secret": "' + "a long story about keys. " * 12 + '"',
        "password: ${{ secrets.DB_PASSWORD_2 }}",
        "https://${USER}:${PASS}@example.org https://user:{password}@example.org https://ann:<password>@h",
        "PWD=/home/ann/src/project1 secret: /run/secrets/db.json token=./token.txt",
        "secret: arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf",
        "write to ann@example.org at 12:30:45, or fe80::1ff:fe23:4567:890a",
        "task-2024-01-01-9f86d081884c7d659a2feaa0c55ad015 risk-averse-disk-drive-number-1234567890123",
        "sk-learn-pipeline-2024-01-01-a sk-toggleable__label-arrow sk-...",
        "ghp_ gho_short AKIA AIza xoxb- eyJ eyJhbGciOi... hf_hub_download r8_x npm_config_cache",
        "-----BEGIN CERTIFICATE-----\n" + made(64) + "\n-----END CERTIFICATE-----",
        "`-----BEGIN PRIVATE KEY-----` comes first and `-----END PRIVATE KEY-----` last",
        f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{made(44)} ann@laptop",
        "the cookie: a small file. document.cookie = value; Cookies are on",
        "docker run -u 1000:1000 --user www-data:www-data --token-file x --secret id=a",
        "<token>{token}</token>",
        "use --password to be asked, --token or --key for files",
        "--- a/token.py\n+++ b/token.py\n----------\n| token | secret |\n|---|---|",
        "密码：token: 令牌桶已满,等待中1请稍候",
        "data:image/png;base64," + made(400),
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact.text(text) == (text, False)


@pytest.mark.parametrize(
    ("secret", "shown"),
    [("hunter2", "***"), ("a1" * 8, "***"), ("a1" * 9, "a1a1…a1a1"), ("a1" * 12, "a1a1a1…a1a1")],
)
def test_a_long_secret_keeps_its_ends_and_a_short_one_nothing(secret: str, shown: str) -> None:
    assert redact.text(f"password={secret};") == (f"password={shown};", True)


def test_only_the_secret_is_taken_out_of_the_line() -> None:
    line = f"curl -H 'Authorization: Bearer {RANDOM}' 'https://u:{RANDOM}@h/x?token={RANDOM}&n=1' -b 'x'"
    masked = f"{RANDOM[:6]}…{RANDOM[-4:]}"
    assert redact.text(line) == (line.replace(RANDOM, masked), True)


def test_a_cookie_keeps_its_name_and_its_attributes() -> None:
    line = f"Set-Cookie: sid={RANDOM}; Path=/x; Max-Age=3600; HttpOnly"
    assert (
        redact.text(line)[0] == f"Set-Cookie: sid={RANDOM[:6]}…{RANDOM[-4:]}; Path=/x; Max-Age=3600; HttpOnly"
    )


@pytest.mark.parametrize(
    "kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
)
def test_a_private_key_keeps_its_first_and_last_line(kind: str) -> None:
    begin, end = key_block(kind)
    assert redact.text(f"a\n{begin}\n{BODY}\n{end}\nb") == (f"a\n{begin}\n…\n{end}\nb", True)


def test_a_private_key_is_found_inside_json_and_with_headers() -> None:
    begin, end = key_block("RSA PRIVATE KEY")
    block = f"{begin}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123ABCD\n\n{BODY}\n{end}\n"
    for text in (
        block,
        json.dumps({"private_key": block}),
        json.dumps(json.dumps(block)),
        block.replace("\n", "\n> "),
    ):
        shown, _ = redact.text(text)
        assert begin in shown
        assert end in shown
        assert not any(line in shown for line in BODY.split("\n"))


def test_a_private_key_without_its_end_loses_all_that_looks_like_it() -> None:
    begin, _ = key_block("RSA PRIVATE KEY")
    assert redact.text(f"{begin}\n{BODY}\n\nand so on") == (f"{begin}\n…\n\nand so on", True)
    assert redact.text(f"{begin}\nDEK-Info: AES\n\n{BODY}") == (f"{begin}\n…", True)
    assert redact.text(json.dumps(f"{begin}\n{BODY}\n")) == (f'"{begin}\\n…\\n"', True)


# Messages and data


def said(*parts: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": list(parts), "timestamp": 1}


def test_every_part_of_a_message_is_looked_through() -> None:
    key = KEYS[0]
    masked = f"{key[:6]}…{key[-4:]}"
    original = said(
        {"type": "text", "text": f"a {key}"},
        {"type": "thinking", "thinking": f"b {key}", "thinkingSignature": key},
        {"type": "toolCall", "id": "1", "name": "exec", "arguments": {"env": [f"K={key}"], "n": 1}},
        {"type": "toolCall", "id": "2", "name": "exec", "arguments": {}, "malformed": f"{{{key}"},
        {"type": "image", "data": key, "mimeType": "image/png"},
    )
    before = copy.deepcopy(original)
    shown, found = redact.message(original)
    assert found
    assert original == before
    assert shown == said(
        {"type": "text", "text": f"a {masked}"},
        {"type": "thinking", "thinking": f"b {masked}", "thinkingSignature": key},
        {"type": "toolCall", "id": "1", "name": "exec", "arguments": {"env": [f"K={masked}"], "n": 1}},
        {"type": "toolCall", "id": "2", "name": "exec", "arguments": {}, "malformed": f"{{{masked}"},
        {"type": "image", "data": key, "mimeType": "image/png"},
    )


def test_a_message_may_be_plain_text_and_may_name_an_error() -> None:
    key = KEYS[0]
    shown, found = redact.message({"role": "user", "content": f"use {key}", "errorMessage": f"bad {key}"})
    assert found
    assert key not in json.dumps(shown)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "the password is wrong"},
        {"role": "user", "content": None},
        {"role": "user"},
        said(
            {"type": "text", "text": "hello"}, {"type": "image", "data": made(400), "mimeType": "image/png"}
        ),
        said(
            {"type": "toolCall", "id": "1", "name": "x", "arguments": {"max_tokens": 5, "a": [{"b": None}]}}
        ),
        {"role": "toolResult", "content": ["odd", 5, None, {"type": "text"}]},
    ],
)
def test_a_message_without_secrets_is_the_same_object(message: dict[str, Any]) -> None:
    shown, found = redact.message(message)
    assert shown is message
    assert not found


@pytest.mark.parametrize(
    "name",
    """
    password DB_PASSWORD pass api_key apiKey X-Api-Key token accessToken client_secret Authorization Cookie
    set-cookie privateKey passphrase
    """.split(),
)
def test_what_stands_under_a_secrets_name_is_hidden_whatever_it_is(name: str) -> None:
    original = {
        "a": [{name: "the word"}, {name: 12345}, {name: {"x": ["y", {"z": "two words"}]}}, {name: ""}]
    }
    shown, found = redact.data(original)
    assert found
    assert shown == {"a": [{name: "***"}, {name: "***"}, {name: {"x": ["***", {"z": "***"}]}}, {name: ""}]}


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "tokens", "tokenizer", "sessionKey", "key", "nextPageToken", "secretary", "password_file"],
)
def test_names_that_only_sound_like_a_secrets_hide_nothing(name: str) -> None:
    original = {name: "agent:main:main", "flag": {name: True}}
    assert redact.data(original) == (original, False)


def test_yes_and_no_and_nothing_are_no_secrets() -> None:
    original = {"password": None, "token": True, "secret": False}
    assert redact.data(original)[0] is original


def test_arguments_nested_without_end_are_cut_off_and_not_followed() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    shown, found = redact.data({"a": deep})
    assert found
    assert "***" in repr(shown)


# Properties

BEFORE = [" ", "\n", '"', "'", "`", ",", "(", "\t", '\\"', "\\n", "=", "\r\n", "  ", "[", ": "]
AFTER = [" ", "\n", '"', "'", "`", ",", ")", "\t", '\\"', "\\n", "\r\n", ";", "]", ". "]
vendors = st.sampled_from(VENDORS).flatmap(
    lambda v: st.tuples(st.just(v[0]), st.text(v[2], min_size=v[1] - 1, max_size=v[1] - 1))
)
values = st.builds(
    "{}7{}Q".format,
    st.text(ALNUM + "_-+/=.!@%^*~", min_size=10, max_size=60).filter(lambda value: value[0].isalnum()),
    st.text(ALNUM, min_size=10, max_size=60),
)


def escaped(text: str, times: int) -> str:
    return escaped(json.dumps(text, ensure_ascii=False), times - 1) if times else text


@given(st.text(), st.sampled_from(BEFORE), vendors, st.sampled_from(AFTER), st.text(), st.integers(0, 2))
def test_a_vendors_key_never_survives(
    before: str, opening: str, key: tuple[str, str], ending: str, after: str, times: int
) -> None:
    prefix, body = key
    assume(body[4:-4] not in before + prefix + after)
    shown, found = redact.text(escaped(f"{before}{opening}{prefix}{body}7{ending}{after}", times))
    assert found
    assert body[4:-4] not in shown


@given(
    st.text(),
    st.sampled_from(["\n", " ", "; "]),
    st.sampled_from([place for place in PLACES if "://" not in place]),
    values,
    st.text(),
    st.integers(0, 2),
)
def test_a_value_in_a_secrets_place_never_survives(
    before: str, opening: str, place: str, value: str, after: str, times: int
) -> None:
    assume(value[6:-4] not in before + after)
    assume(
        "sends" not in place or not set("!@%^*") & set(value)
    )  # the alphabet of bearer tokens is their mark
    shown, found = redact.text(escaped(f"{before}{opening}{place.format(value)}\n{after}", times))
    assert found
    assert value[6:-4] not in shown


ORDINARY = """
    the a token tokens password secret key api_key is was bucket of and Please choose one wrong full bearer
    Basic authorization cookie get_token() token: password: secret: is: key: = : , . ( ) - -- 12 4096 12:30:45
    str None ${TOKEN} $KEY <password> os.environ UUID https://example.org/a?b=c ann@example.org main
    agent:main:main
"""


@given(st.lists(st.sampled_from([*ORDINARY.split(), "\n", '"', "'"])).map(" ".join))
def test_ordinary_words_are_left_alone(text: str) -> None:
    assert redact.text(text) == (text, False)


FRAGMENTS = r"""
    password TOKEN api_key secret Authorization Bearer Basic Cookie --token a= ; = : => " ' ` \ \" \n *** ** *
    … :// @ & ? < > </token> </ { } ( ) [ ] , . -u sk- eyJ ----- hunter2 swordfish word
"""
fragments = st.one_of(
    st.text(max_size=4),
    st.sampled_from(KEYS).map("{} ".format),
    values,
    st.sampled_from(FRAGMENTS.split()),
    st.sampled_from([" ", "\n", ": ", " = ", " is ", *key_block("PRIVATE KEY"), BODY]),
)


@given(st.lists(fragments, max_size=12).map("".join))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once, found = redact.text(text)
    assert found == (once != text)
    assert redact.text(once) == (once, False)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(KEYS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["a", "password", "api_key", "max_tokens", "text"]), inner, max_size=4
        ),
    ),
)


@given(json_values)
def test_data_is_not_changed_in_place_and_is_the_same_object_if_nothing_is_found(value: Any) -> None:
    before = copy.deepcopy(value)
    shown, found = redact.data(value)
    assert value == before
    assert found == (shown is not value) == (shown != value)
    assert not any(key in json.dumps(shown) for key in KEYS)
    assert redact.data(shown)[0] is shown


PIECES = (
    *'aA=-.:/\\ "*{\u0130',
    *"sk- task-sk- eyJ eyJa. eyJaaaaaaaa. SG. xox- :// ://a: ://a:b@ --a- >aaaa</a> key= ghp_ AKIA".split(),
    *'token= token=" token=\'token=" token=f( token=a. token={ password={{ cookie:a= pass'.split(),
    *("token= ", "password is a ", "cookie: a=b; ", "Bearer ", "--token ", "-u a:", "-----BEGIN "),
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n" + "A" * 20),
)


@pytest.mark.parametrize("piece", PIECES)
def test_the_time_is_in_proportion_to_the_length(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    began = time.process_time()
    redact.text(text)
    assert time.process_time() - began < 3  # in proportion to its square it would be far more
