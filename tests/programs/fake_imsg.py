"""A program that speaks as `imsg rpc` does, with a file of JSON lines as the database of Messages.

Usage: fake_imsg.py FOLDER rpc [--db FILE]. A row of `FOLDER/rows.jsonl` is a message as imsg reports it; its
number is its line. What the bot sends is appended as a message of our own. Files in the folder cause trouble:
`down` ends the program, `lose` ends it after the next send without an answer, `old` leaves the guid out.
"""

import base64
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
ROWS = FOLDER / "rows.jsonl"
GROUP_CHAT = 7
_lock = threading.Lock()


def rows() -> list[dict[str, Any]]:
    if not ROWS.exists():
        return []
    complete = ROWS.read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line) | {"id": number} for number, line in enumerate(complete, 1)]


def write(line: dict[str, Any]) -> None:
    with _lock:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def shown(row: dict[str, Any], attachments: bool) -> dict[str, Any]:
    return row | {"attachments": row.get("attachments", []) if attachments else []}


def watch(subscription: int, since: int, attachments: bool) -> None:
    while True:
        for row in rows():
            if row["id"] > since:
                since = row["id"]
                message = shown(row, attachments)
                write(
                    {
                        "jsonrpc": "2.0",
                        "method": "message",
                        "params": {"subscription": subscription, "message": message},
                    }
                )
        time.sleep(0.02)


def watch_for_the_end() -> None:
    while not (FOLDER / "down").exists():
        time.sleep(0.02)
    os._exit(1)


def chats() -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for row in rows():
        chat = {"id": row["chat_id"], "identifier": row["chat_identifier"], "guid": row["chat_guid"]}
        found.pop(row["chat_id"], None)
        found[row["chat_id"]] = chat | {"name": "", "service": "iMessage", "is_group": row["is_group"]}
    return list(found.values())[::-1]


def send(params: dict[str, Any]) -> dict[str, Any]:
    text, file = params.get("text", ""), params.get("file", "")
    if not text and not file:
        raise ValueError("text or file is required")
    if "to" in params:
        known = [chat["id"] for chat in chats() if chat["identifier"] == params["to"]]
        chat = {"chat_id": known[0] if known else 900, "chat_identifier": params["to"], "is_group": False}
        chat["chat_guid"] = f"iMessage;-;{params['to']}"
    else:
        chat = {"chat_id": params["chat_id"], "chat_identifier": "chat7", "is_group": True}
        chat["chat_guid"] = "iMessage;+;chat7"
    guid = f"OWN-{time.time_ns()}"
    row = {"guid": guid, "sender": "me@example.com", "is_from_me": True, "text": text, **chat}
    row |= {"created_at": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()), "attachments": []}
    if file:
        content = base64.b64encode(Path(file).read_bytes()).decode()
        row["attachments"] = [{"transfer_name": Path(file).name, "original_path": file, "content": content}]
    with ROWS.open("a") as database:
        database.write(json.dumps(row) + "\n")
    if (FOLDER / "lose").exists():
        (FOLDER / "lose").unlink()
        os._exit(1)
    return {"ok": True} if (FOLDER / "old").exists() else {"ok": True, "guid": guid}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "chats.list":
        return {"chats": chats()[: params.get("limit", 20)]}
    if method == "messages.history":
        found = [row for row in rows() if row["chat_id"] == params["chat_id"]][::-1]
        attachments = params.get("attachments", False)
        return {"messages": [shown(row, attachments) for row in found[: params.get("limit", 50)]]}
    if method == "watch.subscribe":
        since = params.get("since_rowid", len(rows()))
        arguments = (1, since, params.get("attachments", False))
        threading.Thread(target=watch, args=arguments, daemon=True).start()
        return {"subscription": 1}
    if method == "send":
        return send(params)
    raise LookupError(method)


def main() -> None:
    assert sys.argv[2] == "rpc", sys.argv
    if (FOLDER / "down").exists():
        sys.exit("Messages is not available")
    (FOLDER / f"pid-{os.getpid()}").touch()
    threading.Thread(target=watch_for_the_end, daemon=True).start()
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            reply["result"] = answer(request["method"], request["params"])
        except LookupError as error:
            reply["error"] = {"code": -32601, "message": "Method not found", "data": str(error)}
        except ValueError as error:
            reply["error"] = {"code": -32602, "message": "Invalid params", "data": str(error)}
        write(reply)


main()
