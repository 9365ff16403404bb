"""From settings to models."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args

import pytest

from hobnob.config.fields import Api
from hobnob.errors import BadInput, ModelKeyMissing, UnknownModel
from hobnob.models import Finished, Model, ModelInfo, Request
from hobnob.models.catalog import PRESETS, BuiltIn

HELLO = [
    {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]},
    b"data: [DONE]\n\n",
]
LOCAL = {
    "models": [{"id": "small", "contextWindow": 8192, "maxTokens": 512, "reasoning": True}, {"id": "big"}]
}


def request(model: str = "m") -> Request:
    return Request(model=model, system="", messages=[{"role": "user", "content": "Hi"}])


async def ask(model: Model) -> Any:
    async with aclosing(model.stream(request())) as stream:  # type: ignore[type-var]
        return [event async for event in stream][-1]


async def test_a_listed_model_is_described_as_the_settings_say(catalog: Any) -> None:
    models = await catalog({"local": {"baseUrl": "http://127.0.0.1:1", **LOCAL}})
    small = ModelInfo(
        name="local/small", provider="local", id="small", context_window=8192, max_tokens=512, reasoning=True
    )
    assert models.info("local/small") == small
    assert [info.name for info in models.known()] == ["rehearsal/rehearsal", "local/small", "local/big"]


async def test_a_provider_that_lists_nothing_takes_any_model(catalog: Any) -> None:
    models = await catalog({"local": {"baseUrl": "http://127.0.0.1:1"}})
    assert models.info("local/org/some-model").id == "org/some-model"


@pytest.mark.parametrize("name", ["nobody/x", "local/none", "local/", "local", "", "/"])
async def test_an_unknown_model_is_refused_with_what_there_is(catalog: Any, name: str) -> None:
    models = await catalog({"local": {"baseUrl": "http://127.0.0.1:1", **LOCAL}})
    with pytest.raises(UnknownModel) as refusal:
        models.model(name)
    assert refusal.value.code == "model.unknown" and isinstance(refusal.value, BadInput)
    assert repr(name) in refusal.value.message
    for valid in ("local/small", "local/big", "anthropic/<model>", "models.providers"):
        assert valid in refusal.value.fix


async def test_a_provider_of_ones_own_needs_an_address(catalog: Any) -> None:
    models = await catalog({"mine": {}})
    with pytest.raises(UnknownModel) as refusal:
        models.model("mine/x")
    assert refusal.value.fix == "hobnob config set models.providers.mine.baseUrl https://HOST/v1"


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.env])
async def test_a_known_provider_needs_only_its_key_in_the_environment(catalog: Any, name: str) -> None:
    variable = PRESETS[name].env[0]
    with pytest.raises(ModelKeyMissing) as refusal:
        (await catalog({}, {})).model(f"{name}/x")
    assert variable in refusal.value.fix and f"models.providers.{name}.apiKey" in refusal.value.fix
    (await catalog({}, {variable: "k"})).model(f"{name}/x")
    (await catalog({name: {"apiKey": "k"}}, {})).model(f"{name}/x")


async def test_ollama_needs_nothing(catalog: Any) -> None:
    assert (await catalog({}, {})).model("ollama/llama3.2") is not None


@pytest.mark.parametrize(
    ("name", "given", "path"),
    [
        ("anthropic", {}, "/v1/messages"),
        ("google", {}, "/models/m:streamGenerateContent"),
        ("openai", {}, "/chat/completions"),
        ("openai", {"api": "openai-responses"}, "/responses"),
        ("groq", {}, "/chat/completions"),
        ("anthropic", {"api": "openai-completions"}, "/chat/completions"),
    ],
)
async def test_a_known_provider_behind_another_address_keeps_its_format(
    catalog: Any, provider: Any, name: str, given: Any, path: str
) -> None:
    provider.answers(401, {})
    models = await catalog({name: {"baseUrl": provider.url, **given}}, {PRESETS[name].env[0]: "from-env"})
    await ask(models.model(f"{name}/m"))
    assert provider.seen[0].path == path
    assert "from-env" in str(provider.seen[0].headers)


async def test_a_provider_without_a_key_gets_no_header_for_it(catalog: Any, provider: Any) -> None:
    provider.streams(HELLO)
    models = await catalog({"local": {"baseUrl": provider.url}})
    assert isinstance(await ask(models.model("local/m")), Finished)
    assert "Authorization" not in provider.seen[0].headers


async def test_calls_one_after_the_other_use_one_connection(catalog: Any, provider: Any) -> None:
    models = await catalog({"local": {"baseUrl": provider.url}})
    for _ in range(3):
        provider.streams(HELLO)
        assert isinstance(await ask(models.model("local/m")), Finished)
    assert len({seen.port for seen in provider.seen}) == 1


async def test_a_connection_whose_stream_closes_a_little_late_is_kept(catalog: Any, provider: Any) -> None:
    models = await catalog({"local": {"baseUrl": provider.url}})
    for _ in range(2):
        end = asyncio.Event()
        asyncio.get_running_loop().call_later(0.03, end.set)
        provider.streams(HELLO, end=end)
        assert isinstance(await ask(models.model("local/m")), Finished)
    assert len({seen.port for seen in provider.seen}) == 1


async def test_a_provider_gets_at_most_its_number_of_calls_at_a_time(catalog: Any, provider: Any) -> None:
    models = await catalog({"local": {"baseUrl": provider.url, "maxConcurrent": 2}})
    ends = [asyncio.Event() for _ in range(3)]
    for end in ends:
        provider.streams(HELLO[:1], end=end)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(ask(models.model(f"local/{i}"))) for i in range(3)]
        await provider.has_seen(2)
        assert await nothing_else_arrives(provider, 2)
        ends[0].set()
        await provider.has_seen(3)
        ends[1].set()
        ends[2].set()
    assert all(isinstance(task.result(), Finished) for task in running)


async def test_a_call_left_early_gives_its_place_to_the_next(catalog: Any, provider: Any) -> None:
    models = await catalog({"local": {"baseUrl": provider.url, "maxConcurrent": 1}})
    provider.streams([{"choices": [{"index": 0, "delta": {"content": "Hi"}}]}], then="hang")
    provider.streams(HELLO)
    async with aclosing(models.model("local/m").stream(request())) as stream:
        await anext(stream)
    assert isinstance(await ask(models.model("local/m")), Finished)


async def test_failed_calls_give_their_place_back(catalog: Any, provider: Any) -> None:
    models = await catalog({"local": {"baseUrl": provider.url, "maxConcurrent": 1}})
    for _ in range(3):
        provider.answers(500, {})
        await ask(models.model("local/m"))
    assert len(provider.seen) == 3


async def test_a_built_in_model_is_found_by_its_name(catalog: Any) -> None:
    class Echo:
        async def stream(self, request: Request) -> Any:
            yield Finished({"role": "assistant", "content": []})

    info = ModelInfo(name="echo/echo", provider="echo", id="echo")
    models = await catalog({}, built_in={"echo/echo": BuiltIn(info, lambda _: Echo())})
    assert models.info("echo/echo") is models.known()[0] is info
    assert isinstance(await ask(models.model("echo/echo")), Finished)


async def test_the_key_is_in_no_repr(catalog: Any, provider: Any) -> None:
    models = await catalog({"local": {"baseUrl": provider.url, "apiKey": "sk-hidden"}})
    model = models.model("local/m")
    provider.streams(HELLO)
    await ask(model)
    assert "sk-hidden" not in f"{models!r}{model!r}{vars(models)!r}{vars(model)!r}"


async def nothing_else_arrives(provider: Any, count: int) -> bool:
    """Whether the provider still has `count` requests after another connection was served to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.url.rsplit(":", 1)[1]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return len(provider.seen) == count


def test_the_page_about_models_lists_every_preset_and_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    for name, preset in PRESETS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert all(f"`{word}`" in row for word in (*preset.env, preset.api))
    assert all(f"`{api}`" in page or f'"{api}"' in page for api in get_args(Api))
