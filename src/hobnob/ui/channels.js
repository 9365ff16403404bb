// The channels view: how each account is doing, who asks to be let in, and what became of recent messages.

import { fill, h, svg } from "./dom.js";
import { formatAge } from "./format.js";
import { sessionLink } from "./message.js";
import { problem } from "./problem.js";

const REFRESH_MS = 5_000;
const STATES = {
  connected: "connected",
  starting: "connecting",
  reconnecting: "connecting again",
  stopped: "stopped",
};

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.accounts = h("section", { "aria-label": "Accounts" });
    this.login = h("section", { "aria-label": "Link a phone" });
    this.people = h("section", { "aria-label": "People" });
    this.messages = h("section", { "aria-label": "Recent messages" });
    this.el = h(
      "div",
      { class: "inspect-view" },
      h("h2", null, "Channels"),
      h("p", { class: "muted" }, "The chats in which people reach the agents."),
      this.error,
      this.accounts,
      this.login,
      this.people,
      this.messages,
    );
  }

  open() {
    this.#load();
    this.timer = setInterval(() => this.#load(), REFRESH_MS);
  }

  route() {}

  close() {
    clearInterval(this.timer);
  }

  async #load() {
    try {
      const [status, messages] = await Promise.all([
        this.connection.query("channels.status"),
        this.connection.query("channels.messages", { limit: 30 }),
      ]);
      this.#renderAccounts(status);
      this.#renderMessages(messages.messages);
      this.error.hidden = true;
    } catch (error) {
      fill(this.error, problem(error)).hidden = false;
      return;
    }
    try {
      this.#renderPeople(await this.connection.query("pairing.list"));
    } catch {
      fill(this.people); // it needs the scope operator.pairing
    }
  }

  #renderAccounts({ channelOrder, channels, channelAccounts }) {
    if (!channelOrder.length) {
      const add = h("code", null, "hobnob channels add telegram");
      fill(this.accounts, h("p", { class: "muted" }, "No channel is set up. For example: ", add));
      return;
    }
    const rows = channelOrder.flatMap((name) =>
      channelAccounts[name].map((account) =>
        h(
          "tr",
          { class: account.connected ? "changed" : "default" },
          h("td", null, h("b", null, name), account.accountId === "default" ? null : ` ${account.accountId}`),
          h("td", null, STATES[account.state] ?? account.state),
          h("td", null, account.identity?.name ?? ""),
          h("td", null, account.lastInboundAt ? formatAge(account.lastInboundAt) : ""),
          h("td", null, channels[name].queued ? String(channels[name].queued) : ""),
          h("td", null, account.lastError ?? "", " ", this.#linkButton(name, account)),
        ),
      ),
    );
    fill(this.accounts, table(["Channel", "State", "As", "Last message", "Queued", "Problem"], rows));
  }

  #renderPeople({ pending, approved }) {
    if (!pending.length && !approved.length) {
      fill(this.people);
      return;
    }
    const asks = pending.map((each) =>
      h(
        "tr",
        { class: "changed" },
        h("td", null, each.channel),
        h("td", null, each.senderName ?? "", " ", h("code", null, each.senderId)),
        h("td", null, "asks, code ", h("code", null, each.code)),
        h("td", null, this.#button("Let in", "pairing.approve", { code: each.code, channel: each.channel })),
      ),
    );
    const known = approved.map((each) => {
      const { channel, accountId, senderId } = each;
      return h(
        "tr",
        null,
        h("td", null, channel),
        h("td", null, each.senderName ?? "", " ", h("code", null, senderId)),
        h("td", null, each.owner ? "let in, as owner" : "let in"),
        h("td", null, this.#button("Remove", "pairing.revoke", { channel, accountId, senderId })),
      );
    });
    fill(this.people, h("h3", null, "People"), table(["Channel", "Sender", "State", ""], [...asks, ...known]));
  }

  #renderMessages(messages) {
    if (!messages.length) {
      fill(this.messages);
      return;
    }
    const rows = messages.map((each) =>
      h(
        "tr",
        { class: each.state === "refused" ? "default" : "changed" },
        h("td", null, each.channel),
        h("td", null, each.senderName ?? each.senderId),
        h(
          "td",
          null,
          each.state === "refused"
            ? h(
                "details",
                null,
                h("summary", null, "refused ", h("code", null, each.code)),
                h("p", null, each.why),
                each.fix ? h("p", null, "To allow it: ", h("code", null, each.fix)) : null,
              )
            : each.state,
        ),
        h("td", null, each.sessionKey && each.runId ? sessionLink(this.directory, each.sessionKey) : ""),
        h("td", null, formatAge(each.at)),
      ),
    );
    fill(
      this.messages,
      h("h3", null, "Recent messages"),
      table(["Channel", "From", "Became", "Session", "When"], rows),
    );
  }

  #linkButton(channel, { accountId, canLogin, connected }) {
    if (!canLogin || connected) return null;
    return h("button", { type: "button", class: "plain", onclick: () => this.#link(channel, accountId) }, "Link a phone");
  }

  /** Show the code that links a channel with a phone, until it was scanned. */
  async #link(channel, accountId) {
    const place = { channel, accountId };
    const title = h("h3", null, `Link ${channel}`);
    fill(this.login, title, h("p", { role: "status" }, "Connecting…"));
    try {
      let login = await this.connection.query("web.login.start", place);
      while (!login.connected && login.state !== "failed") {
        fill(this.login, title, h("p", { role: "status" }, login.message), login.qr ? qrCode(login) : null);
        login = await this.connection.query("web.login.wait", { ...place, qr: login.qr, timeoutMs: 20_000 });
      }
      fill(this.login, h("p", { role: "status" }, login.message));
    } catch (error) {
      fill(this.error, problem(error)).hidden = false;
      fill(this.login);
    }
    this.#load();
  }

  #button(label, method, params) {
    const act = async () => {
      try {
        await this.connection.query(method, params);
      } catch (error) {
        fill(this.error, problem(error)).hidden = false;
        return;
      }
      this.#load();
    };
    return h("button", { type: "button", class: "plain", onclick: act }, label);
  }
}

function qrCode({ qrModules }) {
  const border = 4;
  const size = qrModules.length + 2 * border;
  const dark = qrModules.flatMap((row, y) =>
    [...row].flatMap((module, x) => (module === "1" ? `M${x + border} ${y + border}h1v1h-1z` : [])),
  );
  return svg(
    "svg",
    { viewBox: `0 0 ${size} ${size}`, class: "qr-code", role: "img", "aria-label": "QR code" },
    svg("rect", { width: size, height: size, fill: "#fff" }),
    svg("path", { d: dark.join(""), fill: "#000" }),
  );
}

function table(names, rows) {
  return h(
    "table",
    { class: "settings-table" },
    h("thead", null, h("tr", null, names.map((name) => h("th", null, name)))),
    h("tbody", null, rows),
  );
}
