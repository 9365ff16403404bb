"""Who may look at the page, and that it keeps to itself."""

import gzip
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from tests.browser.house import House, Visit

from hobnob.api.routes import page

Make = Callable[..., House]
Enter = Callable[..., Visit]


def get(url: str, **headers: str) -> Any:
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5)  # noqa: S310
    except urllib.error.HTTPError as answer:
        return answer


@pytest.mark.promise("page.link_signs_in")
def test_a_link_signs_in_and_leaves_no_token_in_the_address(house: Make, visit: Enter) -> None:
    tab = visit(house()).tab
    tab.wait_for_selector("text=No sessions yet")
    assert "token" not in tab.url
    assert tab.evaluate("history.length") <= 2
    assert tab.evaluate("Object.keys(localStorage)") == []
    tab.reload()
    tab.wait_for_selector("text=No sessions yet")


def test_a_pasted_token_signs_in_and_a_wrong_one_is_told_what_to_do(house: Make, visit: Enter) -> None:
    gateway = house()
    one = visit(gateway)
    one.tab.get_by_role("button", name="Sign out").click()
    one.tab.get_by_label("Token of the gateway").fill("wrong-token-wrong-token")
    one.tab.keyboard.press("Enter")
    one.see("that is not the gateway's token")
    one.see("state directory")
    one.tab.get_by_label("Token of the gateway").fill(gateway.token)
    one.tab.keyboard.press("Enter")
    one.see("No sessions yet")


@pytest.mark.promise("page.token_stays")
def test_a_token_is_never_part_of_a_request(house: Make, visit: Enter) -> None:
    gateway = house()
    one = visit(gateway)
    one.see("No sessions yet")
    assert len(one.requests) > 5
    assert [url for url in one.requests if gateway.token in url] == []


@pytest.mark.promise("page.one_gateway")
def test_no_address_makes_the_page_talk_to_another_gateway(house: Make, visit: Enter) -> None:
    gateway = house()
    one = visit(gateway)
    for address in ("#gateway=ws://evil.example", "#/s/agent%3Amain%3Amain?gatewayUrl=ws://evil.example"):
        one.tab.goto("about:blank")
        one.tab.goto(gateway.page + address)
        one.tab.wait_for_selector(".light.live")
    sockets = [url for url in one.requests if url.startswith("ws")]
    assert len(sockets) == 3
    assert set(sockets) == {gateway.page.replace("http", "ws")}
    assert get(f"{gateway.page}?gateway=ws://evil.example").status == 400


@pytest.mark.promise("page.closed_policy")
def test_the_page_is_served_under_a_policy_that_lets_nothing_else_in(house: Make) -> None:
    gateway = house()
    for name in ("", *(f"ui/{file}" for file in page._files())):
        answer = get(gateway.page + name)
        told = answer.headers
        assert (answer.status, told["X-Content-Type-Options"], told["Referrer-Policy"]) == (
            200,
            "nosniff",
            "no-referrer",
        )
        rules = dict(rule.split(" ", 1) for rule in told["Content-Security-Policy"].split("; "))
        assert (
            rules["default-src"]
            == rules["base-uri"]
            == rules["frame-ancestors"]
            == rules["form-action"]
            == "'none'"
        )
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert "unsafe" not in told["Content-Security-Policy"]
        assert get(gateway.page + name, **{"If-None-Match": told["ETag"]}).status == 304


def test_only_files_of_the_page_are_served(house: Make) -> None:
    gateway = house()
    for name in ("ui/", "ui/nothing.js", "ui/..%2f__init__.py", "ui/%2e%2e/errors.py", "ui/.hidden"):
        assert get(gateway.page + name).status == 404, name


@pytest.mark.promise("page.quick")
def test_all_of_the_page_is_less_than_150_kilobytes_on_its_way(house: Make) -> None:
    gateway = house()
    sent = [get(gateway.page + f"ui/{name}", **{"Accept-Encoding": "gzip"}) for name in page._files()]
    assert {answer.headers["Content-Encoding"] for answer in sent} == {"gzip"}
    bodies = [answer.read() for answer in sent]
    assert [gzip.decompress(body) for body in bodies] == [file.body for file in page._files().values()]
    assert sum(map(len, bodies)) < 150_000


@pytest.mark.promise("page.quick")
def test_the_first_answer_names_every_file_that_is_needed_to_begin(house: Make, visit: Enter) -> None:
    """A file that only another file names is fetched one round trip later."""
    one = visit(house())
    one.see("No sessions yet")
    asked = {url.removeprefix(one.house.page) for url in one.requests if "/ui/" in url}
    named = re.findall(r'(?:href|src)="/([^"]+)"', page._files()["index.html"].body.decode())
    assert "ui/page.js" in asked
    assert asked - set(named) == set()


@pytest.mark.promise("page.quick")
def test_something_is_shown_before_the_gateway_says_a_word(house: Make, visit: Enter) -> None:
    one = visit(house())
    one.tab.route_web_socket("**", lambda silent: None)
    one.tab.reload()
    one.see("Connecting…", "main")


def test_no_file_of_the_page_holds_script_in_markup_or_another_address() -> None:
    files = page._files()
    html = files["index.html"].body.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", html)
    for file in files.values():
        outside = re.findall(rb"""(?:src|href|import|from|url\()\s*[=(]?\s*["']?https?://""", file.body)
        assert outside == []


@pytest.mark.promise("page.text_is_text")
def test_the_browser_lets_no_text_become_markup(house: Make, visit: Enter) -> None:
    one = visit(house())
    one.see("No sessions yet")
    with pytest.raises(Exception, match="TrustedHTML"):
        one.tab.evaluate("() => { document.body.innerHTML = '<b>x</b>' }")
    one.problems.clear()
