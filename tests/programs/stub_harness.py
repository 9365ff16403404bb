"""A harness for tests, on the protocol's own package: it does what the words of its prompt say.

`STUB_LOG` names a file to which it writes what happens to it. Arguments change how it behaves as a process.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import acp
from acp import schema

MODELS, LEVELS = ("small", "large"), ("low", "high")
_children: list[Any] = []


def log(what: str) -> None:
    with open(os.environ["STUB_LOG"], "a") as file:
        file.write(what + "\n")


def select(option_id: str, category: str, values: tuple[str, ...], current: str) -> Any:
    options = [schema.SessionConfigSelectOption(value=value, name=value.upper()) for value in values]
    return schema.SessionConfigOptionSelect(
        type="select", id=option_id, name=option_id, category=category, current_value=current, options=options
    )


class Stub:
    def __init__(self) -> None:
        self.connection: Any = None
        self.cancelled = asyncio.Event()
        self.chosen = {"model": "small", "effort": "low"}
        self.said = ""

    def on_connect(self, connection: Any) -> None:
        self.connection = connection

    async def initialize(self, protocol_version: int, client_capabilities: Any, **_: Any) -> Any:
        log(f"initialize fs={client_capabilities.fs.read_text_file} terminal={client_capabilities.terminal}")
        log(f"env {json.dumps(sorted(os.environ))}")
        loads = "--load" in sys.argv
        mcp = schema.McpCapabilities(http="--http" in sys.argv)
        capabilities = schema.AgentCapabilities(load_session=loads, mcp_capabilities=mcp)
        return acp.InitializeResponse(protocol_version=protocol_version, agent_capabilities=capabilities)

    def options(self) -> list[Any]:
        if "--plain" in sys.argv:
            return []
        return [
            select("model", "model", MODELS, self.chosen["model"]),
            select("effort", "thought_level", LEVELS, self.chosen["effort"]),
        ]

    def modes(self) -> Any:
        known = [schema.SessionMode(id=mode, name=mode) for mode in ("auto", "ask")]
        return schema.SessionModeState(current_mode_id="auto", available_modes=known)

    async def new_session(self, cwd: str, mcp_servers: list[Any], **_: Any) -> Any:
        log(f"new_session {cwd}")
        self.servers = mcp_servers
        return acp.NewSessionResponse(
            session_id=f"stub-{os.getpid()}", config_options=self.options(), modes=self.modes()
        )

    async def load_session(self, session_id: str, **_: Any) -> Any:
        log(f"load_session {session_id}")
        if "--forgets" in sys.argv:
            raise acp.RequestError.internal_error({"details": "No previous sessions found"})
        await self.connection.session_update(session_id, acp.update_agent_message_text("old words"))
        return acp.LoadSessionResponse(config_options=self.options(), modes=self.modes())

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> Any:
        log(f"mode {mode_id}")
        return acp.SetSessionModeResponse()

    async def set_config_option(self, config_id: str, session_id: str, value: Any, **_: Any) -> Any:
        log(f"{config_id} {value}")
        self.chosen[config_id] = value
        return acp.SetSessionConfigOptionResponse(config_options=self.options())

    async def cancel(self, session_id: str, **_: Any) -> None:
        log("cancel")
        self.cancelled.set()

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> Any:
        self.said = prompt[0].text
        log(f"prompt {json.dumps(self.said)}")
        self.session_id = session_id
        word, _, rest = self.said.split("\n\n")[-1].partition(" ")
        act = getattr(self, f"do_{word}", None)
        answer = await act(rest) if act else await self.say(f"You said: {rest}")
        if isinstance(answer, acp.PromptResponse):
            return answer
        return acp.PromptResponse(stop_reason="end_turn")

    async def tell(self, update: Any) -> None:
        await self.connection.session_update(self.session_id, update)

    async def say(self, text: str, message_id: str | None = None) -> None:
        update = acp.update_agent_message_text(text)
        update.message_id = message_id
        await self.tell(update)

    # -- what a prompt can ask for

    async def do_work(self, _: str) -> Any:
        """A thought, a call whose arguments come later, its result, an answer, and what it cost."""
        await self.tell(acp.update_agent_thought_text("Let me see."))
        await self.say("Looking. ")
        await self.tell(acp.start_tool_call("c1", "Read notes", kind="read", status="pending"))
        await self.tell(acp.update_tool_call("c1", raw_input={"path": "notes.txt"}))
        content = [acp.tool_content(acp.text_block("three lines"))]
        await self.tell(acp.update_tool_call("c1", status="completed", content=content))
        await self.say("There are ")
        await self.say("three.")
        cost = schema.Cost(amount=0.25, currency="USD")
        await self.tell(schema.UsageUpdate(session_update="usage_update", used=90, size=1000, cost=cost))
        usage = schema.Usage(input_tokens=70, output_tokens=20, total_tokens=90)
        return acp.PromptResponse(stop_reason="end_turn", usage=usage)

    async def do_may(self, rest: str) -> Any:
        """Ask for permission with a request that itself says little, as some harnesses do."""
        kind, *offered = rest.split()
        await self.tell(acp.start_tool_call("p1", f"Do {kind}", kind=kind, status="pending"))
        options = [
            schema.PermissionOption(option_id=f"id-{i}", name="x", kind=name)
            for i, name in enumerate(offered)
        ]
        asked = schema.ToolCallUpdate(tool_call_id="p1")
        answer = await self.connection.request_permission(
            session_id=self.session_id, tool_call=asked, options=options
        )
        picked = getattr(answer.outcome, "option_id", None)
        chosen = next((o.kind for o in options if o.option_id == picked), "cancelled")
        status = "completed" if chosen.startswith("allow") else "failed"
        await self.tell(acp.update_tool_call("p1", status=status))
        await self.say(f"answer: {chosen}")
        if "--sulks" in sys.argv and status == "failed":
            return acp.PromptResponse(stop_reason="cancelled")

    async def do_ask(self, rest: str) -> None:
        """Ask for permission for each of these tool calls, exactly as they are written."""
        offered = [{"optionId": kind, "name": "x", "kind": kind} for kind in ("allow_once", "reject_once")]
        answers, asked = [], {"sessionId": self.session_id, "options": offered}
        for call in json.loads(rest):
            asked["toolCall"] = {"toolCallId": "p1"} | call
            answer = await self.connection._conn.send_request("session/request_permission", asked)
            answers.append(answer["outcome"]["optionId"].removesuffix("_once"))
        await self.say(" ".join(answers))

    async def do_stop(self, reason: str) -> Any:
        await self.say("as far as I came")
        return acp.PromptResponse(stop_reason=reason)

    async def do_warn(self, _: str) -> None:
        await self.say("Warning: no metadata. ", "m1")
        await self.say("The answer.", "m2")

    async def do_shell(self, _: str) -> None:
        """A terminal of its own, whose output comes in pieces beside the protocol."""
        shown = [schema.TerminalToolCallContent(type="terminal", terminal_id="t")]
        await self.tell(acp.start_tool_call("t1", "ls", kind="execute", raw_input={"c": "ls"}, content=shown))
        for piece in ("one\n", "two\n"):
            update = acp.update_tool_call("t1")
            update.field_meta = {"terminal_output_delta": {"data": piece, "terminal_id": "t"}}
            await self.tell(update)
        await self.tell(acp.update_tool_call("t1", status="completed"))

    async def do_last(self, _: str) -> None:
        await self.say("Said before.")
        await self.tell(acp.start_tool_call("c1", "Write", kind="edit", status="in_progress"))

    async def do_hang(self, rest: str) -> Any:
        """Say something and work until called off."""
        await self.say("half of it")
        await self.tell(acp.start_tool_call("h1", "Build", kind="execute", status="in_progress"))
        log("hanging")
        if rest == "deaf":
            await asyncio.Event().wait()
        await self.cancelled.wait()
        return acp.PromptResponse(stop_reason="cancelled")

    async def do_noise(self, _: str) -> None:
        """Lines that are none of the protocol's, and updates it does not know."""
        out = sys.stdout.buffer
        out.write(b"Welcome!\n5\n[1]\n{broken\n" + b"x" * 20_000 + b"\n")
        new = {"sessionId": self.session_id, "update": {"sessionUpdate": "brand_new", "words": "?"}}
        out.write(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": new}).encode() + b"\n")
        out.flush()
        await self.say("through the noise")

    async def do_flood(self, _: str) -> None:
        while True:
            await self.say("x" * 50_000)

    async def do_tools(self, rest: str) -> None:
        """Call tools of the MCP server it was given, one after the other, and say what they return."""
        import httpx2
        from mcp import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        [server] = self.servers
        log(f"server {server.name} {type(server).__name__}")
        if hasattr(server, "url"):
            headers = {header.name: header.value for header in server.headers}
            http = httpx2.AsyncClient(headers=headers, timeout=60)
            transport: Any = streamable_http_client(server.url, http_client=http)
        else:
            env = dict(os.environ) | {variable.name: variable.value for variable in server.env}
            transport = stdio_client(StdioServerParameters(command=server.command, args=server.args, env=env))
        results = []
        async with Client(transport, cache=None) as client:
            for name, arguments in json.loads(rest):
                results.append((await client.call_tool(name, arguments)).structured_content)
        await self.say(json.dumps(results))

    async def do_die(self, _: str) -> None:
        await self.say("famous last")
        await asyncio.sleep(0)
        sys.stderr.write(f"panic with {os.environ.get('API_KEY')}\n")
        sys.stderr.flush()
        os._exit(3)

    async def do_orphan(self, _: str) -> None:
        """Die while a child holds the output open."""
        _children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        log(f"child {_children[0].pid}")
        os._exit(4)

    async def do_daemon(self, _: str) -> None:
        """Leave a child behind that is in no group of ours."""
        code = "import time; time.sleep(600)"
        _children.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        log(f"child {_children[0].pid}")
        await self.say("left one")


def main() -> None:
    log(f"pid {os.getpid()}")
    if "--loud" in sys.argv:
        sys.stderr.write("complaint\n" * 30_000)
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asyncio.run(acp.run_agent(Stub()))
    if "--stubborn" in sys.argv:
        while True:
            time.sleep(600)


if __name__ == "__main__":
    main()
