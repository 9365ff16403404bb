"""Masks secrets in what agents and people see: history, previews, search results, exports.

    redacted, found = redact.text("export TOKEN=...")
    redacted, found = redact.message(entry.message)
    beginning = redact.excerpt(text, 200)

A long secret keeps its ends (`ghp_Ab…wxyz`), so that it can be identified; a short one becomes `***`.
Redact first and truncate afterwards, as `excerpt` does: a truncated secret may no longer match.

A secret is recognised by its form (a vendor's prefix, a private key block) or by its context (after
`password=`, in a header, in a URL). A random string without such a context is not found. Ordinary words,
references and code are kept even there: `password: str`, `token = get_token()`, `${API_KEY}`.

The time is linear in the length of any text. So every pattern starts with a literal, and an unlimited
repetition cannot start again inside the text on which it has just failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

_SHORT = 18  # a secret with fewer characters is masked completely
_LONG = 200  # a value with more characters is always taken for a secret
_MAX_DEPTH = 100  # of nested JSON; deeper values are masked
_MARGIN = 16_000  # characters after a cut that are searched for secrets; a private key has up to 13,000


def text(value: str) -> tuple[str, bool]:
    """The text with its secrets masked, and whether there were any."""
    redacted = value
    for start in filter(value.__contains__, _PATTERNS):
        pattern, replace = _PATTERNS[start]
        redacted = pattern.sub(replace, redacted)
    redacted = _mask_assigned(redacted)
    return redacted, redacted != value


def excerpt(value: str, limit: int) -> str:
    """The beginning of a text with its secrets masked. The time depends on `limit` only."""
    return _beginning(value, limit)[0][:limit]


def exceeds(value: str, limit: int) -> bool:
    """Whether a text is so long that a bounded redaction drops its end."""
    return len(value) > limit + _MARGIN


def _beginning(value: str, limit: int | None) -> tuple[str, bool]:
    """The redacted text, without its end if it `exceeds` the limit."""
    if limit is None or not exceeds(value, limit):
        return text(value)
    redacted, found = text(value[: limit + _MARGIN])
    return redacted[: -_MARGIN // 2], found  # a secret that was cut is in the rest


def data(value: Any) -> tuple[Any, bool]:
    """JSON with its secrets masked, and whether there were any. If not, it is the same object.

    Every value under a key such as `password` is masked, even if it looks ordinary.
    """
    redacted = _walk(value, named=False, depth=0)
    return redacted, redacted is not value


def message(original: dict[str, Any], limit: int | None = None) -> tuple[dict[str, Any], bool]:
    """A transcript message with its secrets masked, and whether there were any.

    With a limit, a text that `exceeds` it loses its end. If nothing changes, it is the same object. Images
    and data signed by a provider are left alone.
    """
    redacted, found = _fields(original, limit, "errorMessage")
    content = original.get("content")
    if not isinstance(content, list):
        redacted, more = _fields(redacted, limit, "content")
        return redacted, found or more
    parts = [_fields(part, limit, "text", "thinking", "arguments", "malformed") for part in content]
    if _differ(new := [part for part, _ in parts], content):
        redacted = {**redacted, "content": new}
    return redacted, found or any(more for _, more in parts)


def _fields(holder: Any, limit: int | None, *names: str) -> tuple[Any, bool]:
    changed: dict[str, Any] = {}
    any_found = False
    for name in names if isinstance(holder, dict) else ():
        if name in holder:
            value = holder[name]
            redacted, found = _beginning(value, limit) if isinstance(value, str) else data(value)
            any_found |= found
            if found or (isinstance(value, str) and len(redacted) < len(value)):
                changed[name] = redacted
    return ({**holder, **changed} if changed else holder), any_found


def _walk(value: Any, *, named: bool, depth: int) -> Any:
    if isinstance(value, dict | list) and depth == _MAX_DEPTH:
        return "***"
    if isinstance(value, dict):
        fields = {k: _walk(v, named=named or _is_name(k), depth=depth + 1) for k, v in value.items()}
        return fields if _differ(fields.values(), value.values()) else value
    if isinstance(value, list):
        items = [_walk(item, named=named, depth=depth + 1) for item in value]
        return items if _differ(items, value) else value
    if named and value and not isinstance(value, bool):
        redacted = _mask(str(value))
    else:
        redacted = text(value)[0] if isinstance(value, str) else value
    return value if redacted == value else redacted


def _differ(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return any(a is not b for a, b in zip(new, old, strict=True))


def _mask(secret: str) -> str:
    if re.fullmatch(r"\*{3,}|.{4}(?:.{2})?….{4}", secret, re.DOTALL):  # already masked
        return secret
    return "***" if len(secret) < _SHORT else secret[: 6 if len(secret) >= 24 else 4] + "…" + secret[-4:]


# Secrets by context. Names are matched in lower case by their last word: `DB_PASSWORD`, but not `max_tokens`.
# Passwords are chosen by people, so they may be plain words. Tokens and keys are generated.
_CHOSEN = (r"pass(?:word|wd|phrase|code|(?<=[_-]pass))", r"pwd", r"secret")
_KEYS = ("api", "access", "account", "auth", "encryption", "master", "private", "secret", "signing")
_GENERATED = (
    r"token(?<!(?:page|next|tion)token)(?<!(?:page|next|tion).token)",  # a page token is no secret
    rf"key(?:{'|'.join(f'(?<={kind}key)|(?<={kind}[-_ ]key)' for kind in _KEYS)})",
    r"authorization",
)
_NAME = re.compile(rf"(?:{'|'.join(_CHOSEN + _GENERATED)}|^pass|cookies?)$")
_IS = (
    r"[\\\"'`\]*]{0,6}+"  # the name may be quoted, escaped or bold
    r"(?P<is>[ \t]{0,4}(?::[ \t]?[a-z]{1,12}[ \t]{0,3}=|=>|:=|={1,3}|:)[ \t]{0,4}|[ \t]is[ \t])\*{0,2}[ \t]?"
    r"(?=\S{4})"
)
_IN_NAMES = ("pass", "pwd", "secret", "token", "key", "authorization")  # each name contains one of these
_ASSIGNED = [(re.compile(name + _IS), name in _CHOSEN) for name in _CHOSEN + _GENERATED]
_SCHEME = r"(?:(?i:bearer|basic|token|bot|apikey)[ \t]+)?"
_PLAIN, _CLOSING = r"[^\s\"'`<>;&\\,)\]}]", r"[,)\]}]"
_VALUE = re.compile(
    rf"[bfu]?(?P<q>\\{{0,3}}[\"'`])(?!(?P=q)){_SCHEME}(?P<quoted>[^\r\n]{{1,{2 * _LONG}}}?)(?<!\\)(?P=q)"
    rf"|[\"'`]?{_SCHEME}(?P<bare>(?:{_PLAIN}++|\\(?![nrtu\"'\\])|{_CLOSING}++(?=\w))++)"
)
_TEMPLATE = re.compile(r"\{\{?[^{}]{0,99}\}\}?|<[^<>]{1,99}>|%(?:\(\w{1,99}\))?[sdr]")
_REFERENCE = re.compile(
    r"\$\w+|[$#]?\{.*|\$\(.*|%\w+%"  # variables
    r"|[a-z][a-z\d+.-]*://.*|(?:agent|arn):.*"  # addresses and session keys
    r"|(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?!.*(?:[a-z][A-Z]|[A-Z]\d|\d[A-Z]))[\w.@/\\-]*"  # files
    r"|[A-Z]+(?:_[A-Z]+)+|[Yy]our[-_].*|x+|#[\da-fA-F]{3,8}"  # placeholders and colours
)
_CODE = re.compile(
    r"[!*@-]?[A-Za-z_]\w*(?:(?:\.|->|::)\w+)*[(\[].*"  # a call, an element
    r"|[A-Za-z_]+\d?(?:(?:\.|->|::)[A-Za-z_]+\d?)+"  # a member
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}"  # not code, but an e-mail address
)
_WORD = r"(?:[A-Z]?[a-z]{1,16}(?:[A-Z][a-z]{2,16})*(?:[A-Z]{2,4})?|[A-Z]{1,16})"
_WORDS = re.compile(rf"{_WORD}?(?:[_.,:/|-]+{_WORD})*")
_NUMBER = re.compile(r"[\d.,:+-]+")
_PLACEHOLDERS = set("string text required optional password secret token none null true false".split())


def _is_name(key: object) -> bool:
    return bool(_NAME.search(str(key)[-40:].lower()))


def _mask_assigned(value: str) -> str:
    lower = value.replace("\u0130", "i").lower()  # its lower case is longer and would shift positions
    if not any(map(lower.__contains__, _IN_NAMES)):  # fast path: most texts have none
        return value
    names = [(name.start(), name, chosen) for p, chosen in _ASSIGNED for name in p.finditer(lower)]
    pieces: list[str] = []
    done = 0
    for start, name, chosen in sorted(names, key=lambda found: found[0]):
        before, sign = value[max(start - 1, 0) : start], name["is"]
        if start < done or (before == ":" and sign == ":"):  # inside a secret; inside a session key
            continue
        if found := _VALUE.match(value, name.end()):
            group = "bare" if found["quoted"] is None else "quoted"
            typed = sign == "=" and (
                before in ("?", "&", ";", "-") or value[start : name.start("is")].isupper()
            )
            if _is_secret(found[group], chosen=chosen, sure=typed or group == "quoted", code=group == "bare"):
                pieces += value[done : found.start(group)], _mask(found[group])
                done = found.end(group)
    return "".join([*pieces, value[done:]])


def _is_secret(value: str, *, chosen: bool = False, sure: bool = False, code: bool = True) -> bool:
    """Whether the value in a secret's context is one. In a `sure` context there is no prose."""
    min_chars = 4 if sure else 7
    if len(value) < min_chars or " " in value:
        return False
    if len(value) > _LONG:
        return True
    core = _TEMPLATE.sub("", value).strip(".:*" if sure else ".,:;!?()[]{}*_/|#@~$%=+-")
    plain = _WORDS.fullmatch(core) or _NUMBER.fullmatch(core) or not (sure or core.isascii())
    if len(core) < min_chars or (plain and not (chosen and sure)):
        return False
    if _REFERENCE.fullmatch(value) or (code and _CODE.fullmatch(value)):
        return False
    return not plain or (core == core.lower() and core not in _PLACEHOLDERS)


# Secrets by form.
class _Form(NamedTuple):
    what: str
    starts: str  # the literals it starts with, separated by spaces
    rest: str  # the secret is group 1; without groups it is the whole match
    holds: Callable[[re.Match[str]], object] = bool
    mask: Callable[[str], str] = _mask

    def replace(self, found: re.Match[str]) -> str:
        if not self.holds(found):
            return found[0]
        group = min(found.re.groups, 1)
        start, end = found.start(group) - found.start(), found.end(group) - found.start()
        return found[0][:start] + self.mask(found[group]) + found[0][end:]


def _generated(found: re.Match[str]) -> bool:
    return _is_secret(found[1])


def _written_out(found: re.Match[str]) -> bool:
    return not _TEMPLATE.search(found[1]) and not found[1].startswith("$")


def _dense(found: re.Match[str]) -> object:
    return re.search(r"\d", found[0]) and re.search(r"[A-Za-z0-9]{12}", found[0])


def _is_element(found: re.Match[str]) -> bool:
    return _is_name(found[2]) and _is_secret(found[1], chosen=True, sure=True, code=False)


def _is_jwt(found: re.Match[str]) -> bool:
    parts = found[0].split(".")
    return len(parts) >= 3 and max(map(len, parts[1:])) >= 16


def _mask_lines(body: str) -> str:
    return "…" + ("\n" if body.endswith("\n") else r"\n" if body.endswith(r"\n") else "")


def _mask_cookies(pairs: str) -> str:
    kept = "path|domain|expires|max-age|samesite|priority"
    return re.sub(
        rf"((?:^|; ?+)(?!(?i:{kept})=)[^=;]+=)([^;]+)", lambda pair: pair[1] + _mask(pair[2]), pairs
    )


_LINE = r"(?:\s|\\++[nr])"  # a line end, also escaped as in JSON
_PRIVATE_KEY = (
    rf" [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----{_LINE}*+"
    r"([^-]*+(?:-(?!----)[^-]*+)*+(?=-----END )"  # all up to the END line, or else all that looks like base64
    rf"|(?:[A-Z][A-Za-z-]{{2,20}}: [^\n\\]{{0,99}}{_LINE}++)*+"
    rf"[A-Za-z0-9+/=]{{16,}}+(?:(?:{_LINE}|[\"',+>|])++[A-Za-z0-9+/=]{{16,}}+)*+"
    rf"(?:{_LINE}++[A-Za-z0-9+/=]{{1,15}}+(?=[\r\n\"'\\]|\Z))?)"
)
_SK = r"(?:(?<![A-Za-z0-9]sk-)|(?<=\\[nrt]sk-)|(?<=%[0-9A-F]{2}sk-))[\w-]{16,}"  # but not in `task-...`
_COOKIES = r"[\"'\\]{0,4}[ \t]?[:=][ \t]?[\"'\\]{0,4}((?:[\w!#$%&*+.^|~-]{1,99}=[^\s;\"'\\]*+(?:; ?)?)++)"
_OPTION = (
    r"(?=[a-z])(?:[a-z]{1,20}[-_]){0,4}(?:pass(?:word|phrase)|secret|token|key)"
    r"[\"'\\]{0,4}[ \t,]{1,3}[\"'\\]{0,4}([^\s\"'`\\]{7,})"
)
_FORMS = (
    _Form("private key", "-----BEGIN", _PRIVATE_KEY, lambda m: re.search(r"[\w+/=]{16}", m[1]), _mask_lines),
    _Form("OpenAI, Anthropic, OpenRouter", "sk-", _SK, _dense),
    _Form("GitHub", "gh", r"[pousr]_\w{30,}"),
    _Form("GitHub, PyPI, Docker", "github_pat_ pypi-AgE dckr_pat_", r"[\w-]{20,}"),
    _Form("GitLab", "gl", r"(?:pat|dt|rt|ptt|soat|cbt)-[\w-]{20,}(?:\.[\w-]+)*"),
    _Form("Slack", "xox", r"[abeoprs]-[\w-]{10,}"),
    _Form("Slack app", "xapp-", r"\d-[\w-]{10,}"),
    _Form("Slack webhook", "hooks.slack.com/services/", r"\w+/\w+/\w{16,}"),
    _Form("Google key", "AIza", r"[\w-]{35}(?![\w-])"),
    _Form("Google OAuth, HashiCorp Vault", "ya29. GOCSPX- hvs.", r"[\w.-]{20,}"),
    _Form("AWS", "AKIA ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _Form("Stripe", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[\w+/=]{16,}"),
    _Form("npm, Hugging Face, Replicate", "npm_ hf_ r8_", r"[A-Za-z0-9]{34,40}(?![A-Za-z0-9])"),
    _Form("Groq, xAI, Perplexity, NVIDIA", "gsk_ xai- pplx- nvapi-", r"[\w-]{40,}", _dense),
    _Form("Telegram", ":AA", r"(?<=\d{8}:AA)[\w-]{30,}"),  # the part before the colon is a public id
    _Form("Discord", ".", r"(?<=[\w-]{23}\.)[\w-]{6}\.[\w-]{27,}"),  # so is the part before the first dot
    _Form("Discord webhook", "/api/webhooks/", r"\d+/([\w-]{40,})"),
    _Form("SendGrid", "SG.", r"[\w-]{16,}+\.[\w.-]{16,}"),
    _Form("Twilio, Databricks", "SK dapi", r"[0-9a-f]{32}(?![0-9a-f])"),
    _Form("DigitalOcean", "_v1_", r"(?<=do[opr]_v1_)[0-9a-f]{40,}"),
    _Form("Shopify", "shp", r"(?:at|ca|pa|ss)_[0-9a-f]{32}"),
    _Form("Linear, Notion", "lin_api_ ntn_", r"[A-Za-z0-9]{32,}"),
    _Form("age", "AGE-SECRET-KEY-1", r"[A-Z0-9]{50,}"),
    _Form("JWT", "eyJ", r"[\w-]{5,}+(?:\.[\w-]*+){0,4}", _is_jwt),
    _Form("user:password@host", "://", r"[^\s/?#:@\"'<>\\]*+:([^\s/?#\"'<>\\]+)@", _written_out),
    _Form("signed URL", "?sig= &sig= ignature=", r"([\w%+/.-]{8,}+=*)", _generated),
    _Form("Cookie: and Set-Cookie:", "ookie", _COOKIES, mask=_mask_cookies),
    _Form("Bearer", "earer", r"[ \t]+([\w.~+/=-]{12,})", _generated),
    _Form("--token VALUE", "--", _OPTION, _generated),
    _Form("curl -u", "-u", r"(?:ser)?[ =][\"']?[^\s:\"']{1,99}:([^\s\"'`]{7,})", _generated),
    _Form("XML", ">", r"([^\s<>]{4,999}+)</([\w.:-]{1,60}+)>", _is_element),
)
_PATTERNS = {
    s: (re.compile(re.escape(s) + f.rest, re.ASCII), f.replace) for f in _FORMS for s in f.starts.split()
}
