"""Sign-in, the files of the page and their security headers."""

import gzip
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab

from hobnob.api.routes import page as page_files


def get(url: str, **headers: str) -> Any:
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5)  # noqa: S310
    except urllib.error.HTTPError as response:
        return response


@pytest.mark.promise("page.link_signs_in")
def test_a_link_signs_in_and_leaves_no_token_in_the_address(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    page = open_tab(start_gateway()).page
    page.wait_for_selector("text=No sessions yet")
    assert "token" not in page.url
    assert page.evaluate("history.length") <= 2
    assert page.evaluate("Object.keys(localStorage)") == []
    page.reload()
    page.wait_for_selector("text=No sessions yet")


def test_a_pasted_token_signs_in_and_a_wrong_one_shows_a_fix(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway()
    tab = open_tab(server)
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_label("Gateway token").fill("wrong-token-wrong-token")
    tab.page.keyboard.press("Enter")
    tab.wait_for_text("the token is wrong")
    tab.wait_for_text("state directory")
    tab.page.get_by_label("Gateway token").fill(server.token)
    tab.page.keyboard.press("Enter")
    tab.wait_for_text("No sessions yet")


@pytest.mark.promise("page.token_stays")
def test_a_token_is_never_part_of_a_request(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway()
    tab = open_tab(server)
    tab.wait_for_text("No sessions yet")
    assert len(tab.requests) > 5
    assert [url for url in tab.requests if server.token in url] == []


@pytest.mark.promise("page.one_gateway")
def test_no_url_makes_the_page_connect_to_another_gateway(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway()
    tab = open_tab(server)
    for address in ("#gateway=ws://evil.example", "#/s/agent%3Amain%3Amain?gatewayUrl=ws://evil.example"):
        tab.page.goto("about:blank")
        tab.page.goto(server.url + address)
        tab.page.wait_for_selector(".connection-state.live")
    sockets = [url for url in tab.requests if url.startswith("ws")]
    assert len(sockets) == 3
    assert set(sockets) == {server.url.replace("http", "ws")}
    assert get(f"{server.url}?gateway=ws://evil.example").status == 400


@pytest.mark.promise("page.closed_policy")
def test_every_file_is_served_with_a_strict_content_security_policy(start_gateway: StartGateway) -> None:
    server = start_gateway()
    for name in ("", *(f"ui/{file}" for file in page_files._files())):
        response = get(server.url + name)
        headers = response.headers
        assert (response.status, headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == (
            200,
            "nosniff",
            "no-referrer",
        )
        rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
        assert (
            rules["default-src"]
            == rules["base-uri"]
            == rules["frame-ancestors"]
            == rules["form-action"]
            == "'none'"
        )
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert get(server.url + name, **{"If-None-Match": headers["ETag"]}).status == 304


def test_only_files_of_the_page_are_served(start_gateway: StartGateway) -> None:
    server = start_gateway()
    for name in ("ui/", "ui/nothing.js", "ui/..%2f__init__.py", "ui/%2e%2e/errors.py", "ui/.hidden"):
        assert get(server.url + name).status == 404, name


@pytest.mark.promise("page.quick")
def test_all_files_together_transfer_less_than_150_kilobytes(start_gateway: StartGateway) -> None:
    server = start_gateway()
    files = page_files._files()
    responses = [get(f"{server.url}ui/{name}", **{"Accept-Encoding": "gzip"}) for name in files]
    assert {response.headers["Content-Encoding"] for response in responses} == {"gzip"}
    bodies = [response.read() for response in responses]
    assert [gzip.decompress(body) for body in bodies] == [file.body for file in files.values()]
    assert sum(map(len, bodies)) < 150_000


@pytest.mark.promise("page.quick")
def test_index_html_preloads_every_module_of_the_first_view(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    """A module that only another module imports is fetched one round trip later."""
    tab = open_tab(start_gateway())
    tab.wait_for_text("No sessions yet")
    requested = {url.removeprefix(tab.server.url) for url in tab.requests if "/ui/" in url}
    named = re.findall(r'(?:href|src)="/([^"]+)"', page_files._files()["index.html"].body.decode())
    assert "ui/page.js" in requested
    assert requested - set(named) == set()


@pytest.mark.promise("page.quick")
def test_the_page_shows_something_before_the_gateway_responds(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway())
    tab.page.route_web_socket("**", lambda socket: None)
    tab.page.reload()
    tab.wait_for_text("Connecting…", "main")


def test_no_file_contains_inline_script_or_a_foreign_url() -> None:
    files = page_files._files()
    html = files["index.html"].body.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", html)
    for file in files.values():
        foreign = re.findall(rb"""(?:src|href|import|from|url\()\s*[=(]?\s*["']?https?://""", file.body)
        assert foreign == []


@pytest.mark.promise("page.text_is_text")
def test_trusted_types_block_inner_html(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway())
    tab.wait_for_text("No sessions yet")
    with pytest.raises(Exception, match="TrustedHTML"):
        tab.page.evaluate("() => { document.body.innerHTML = '<b>x</b>' }")
    tab.errors.clear()
