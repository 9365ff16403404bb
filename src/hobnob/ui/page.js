// Entry point: sign-in, then the views, routed by the URL fragment. The token stays in this tab.

import { Approvals } from "./approvals.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { Directory } from "./directory.js";
import { fill, h, icon, notifyScreenReader, svg } from "./dom.js";
import { plural } from "./format.js";
import { problem } from "./problem.js";
import { SessionList } from "./sessions.js";

const TOKEN_KEY = "hobnob.token";
const THEME_KEY = "hobnob.theme";
const OFFLINE_NOTICE_MS = 4000; // longer than a restart takes
const VIEWS = [
  { name: "sessions", title: "Sessions", href: "#/" },
  { name: "exchanges", title: "Exchanges", load: () => import("./exchanges.js") },
  { name: "agents", title: "Agents", load: () => import("./agents.js") },
  { name: "channels", title: "Channels", load: () => import("./channels.js") },
  { name: "jobs", title: "Jobs", load: () => import("./jobs.js") },
  { name: "nodes", title: "Nodes", load: () => import("./nodes.js") },
  { name: "gateways", title: "Gateways", load: () => import("./gateways.js"), ifShared: true },
  { name: "trust", title: "Trust", load: () => import("./trust.js") },
  { name: "explain", title: "Explain", load: () => import("./explain.js") },
  { name: "settings", title: "Settings", load: () => import("./settings.js") },
  { name: "log", title: "Log", load: () => import("./log.js") },
];
const PHONE_VIEWS = 2; // the others are in a menu on a phone

/** The token of a sign-in link; removed from the address bar before anything else runs. */
function tokenFromAddress() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", `${location.pathname}#/`);
  try {
    return decodeURIComponent(match[1]);
  } catch {
    return match[1];
  }
}

const linkToken = tokenFromAddress();
if (linkToken) sessionStorage.setItem(TOKEN_KEY, linkToken);
applyTheme(localStorage.getItem(THEME_KEY) ?? "auto");
const app = document.getElementById("app");
const token = sessionStorage.getItem(TOKEN_KEY);
if (token) connect(token);
else signIn();

// A sign-in link opened in a tab that already shows the page changes only the fragment.
addEventListener("hashchange", () => {
  const newToken = tokenFromAddress();
  if (newToken === null) return;
  sessionStorage.setItem(TOKEN_KEY, newToken);
  location.reload();
});

function logo() {
  return svg(
    "svg",
    { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" },
    svg("circle", { cx: 12, cy: 13.5, r: 8, class: "logo-one" }),
    svg("circle", { cx: 20.5, cy: 19, r: 8, class: "logo-two" }),
  );
}

const noGateway = () =>
  problem({
    message: `No gateway answers at ${location.host}.`,
    code: "gateway.unreachable",
    fix: "Start one with `hobnob serve`.",
  });

// -- sign in

function signIn(error = null) {
  const input = h("input", {
    type: "password",
    name: "token",
    autocomplete: "off",
    required: true,
    "aria-describedby": "token-help",
    placeholder: "Token",
  });
  const submit = (event) => {
    event.preventDefault();
    const text = input.value.trim().replace(/^.*#token=/, "");
    if (!text) return;
    sessionStorage.setItem(TOKEN_KEY, text);
    connect(text);
  };
  const errorEl = error ? h("p", { class: "error", role: "alert" }, problem(error)) : null;
  fill(
    app,
    h(
      "main",
      { class: "sign-in" },
      h(
        "form",
        { onsubmit: submit },
        logo(),
        h("h1", null, "Hobnob"),
        h("p", { class: "lead" }, "See who talks to whom."),
        h("label", { class: "field" }, h("span", null, "Gateway token"), input),
        errorEl,
        h("button", { class: "primary", type: "submit" }, "Sign in"),
        h(
          "p",
          { class: "muted", id: "token-help" },
          "In a terminal, ",
          h("code", null, "hobnob serve"),
          " prints a sign-in link. The token is also in the file ",
          h("code", null, "token"),
          " of the state directory, usually ",
          h("code", null, "~/.hobnob/token"),
          ". It is kept in this tab only.",
        ),
      ),
    ),
  );
  input.focus();
}

function connect(token) {
  let shell = null;
  const connection = new Connection(token, (state, error) => {
    if (state === "refused") {
      sessionStorage.removeItem(TOKEN_KEY);
      shell?.close();
      signIn(error);
    } else if (state === "live" && !shell) {
      shell = new AppShell(connection);
      shell.open();
    } else shell?.showConnectionState(state);
  });
  const status = h("p", { role: "status" }, "Connecting…");
  fill(app, h("main", { class: "sign-in waiting" }, logo(), status));
  setTimeout(() => fill(status, noGateway()), OFFLINE_NOTICE_MS);
  connection.open();
}

// -- views

class AppShell {
  constructor(connection) {
    this.connection = connection;
    this.directory = new Directory();
    const { directory } = this;
    this.list = new SessionList({ connection, directory, onOpen: (key) => this.#openSession(key) });
    this.approvals = directory.approvals = new Approvals({ connection, directory });
    this.approvals.onChange(() => this.#showApprovals());
    this.approvalLink = h("a", { class: "approval-link", hidden: true });
    this.pane = h("div", { class: "pane" });
    this.main = h("main", { id: "main" });
    this.connectionState = h("span", { class: "connection-state live", role: "status" }, "live");
    this.offlineNotice = h(
      "p",
      { class: "offline-notice", role: "alert", hidden: true },
      noGateway(),
      " This page reconnects by itself.",
    );
    this.nav = this.#buildNav();
    const buttons = this.#actions().map(([name, label, onclick]) =>
      h("button", { class: "ghost wide-only", "aria-label": label, title: label, onclick }, icon(name)),
    );
    const home = h(
      "a",
      { class: "home", href: "#/", "aria-label": "Hobnob" },
      logo(),
      h("span", null, "hobnob"),
    );
    this.bar = h(
      "header",
      { class: "bar" },
      h("h1", { class: "visually-hidden" }, "Hobnob"),
      home,
      this.nav,
      h("div", { class: "bar-end" }, this.approvalLink, this.connectionState, buttons),
    );
    this.view = null;
    this.onHashChange = () => this.#route();
    this.onKeydown = (event) => this.#onKeydown(event);
  }

  #actions() {
    return [
      ["keys", "Keyboard shortcuts (?)", () => this.#showShortcuts()],
      ["theme", "Change theme", () => this.#cycleTheme()],
      ["signOut", "Sign out", () => this.#signOut()],
    ];
  }

  /** The links to the views. On a phone all but the first two, and the actions of the bar, are in a menu. */
  #buildNav() {
    const links = VIEWS.map(({ name, title, href = `#/${name}`, ifShared = false }) =>
      h("a", { href, "data-view": name, hidden: ifShared }, title),
    );
    const [, ...forPhones] = this.#actions(); // a phone has no keyboard shortcuts
    const actions = forPhones.map(([, label, onclick]) =>
      h("button", { class: "phone-only", onclick }, label),
    );
    const toggle = () => this.#toggleMore(this.moreButton.getAttribute("aria-expanded") !== "true");
    this.moreButton = h("button", { class: "more-button", "aria-expanded": "false", onclick: toggle });
    const more = h(
      "div",
      { class: "more-views" },
      this.moreButton,
      h("div", { class: "more-list" }, links.slice(PHONE_VIEWS), actions),
    );
    more.addEventListener("focusout", (event) => {
      if (!more.contains(event.relatedTarget)) this.#toggleMore(false);
    });
    return h("nav", { "aria-label": "Views" }, links.slice(0, PHONE_VIEWS), more);
  }

  #toggleMore(open) {
    this.moreButton.setAttribute("aria-expanded", String(open));
  }

  /** Mark the current view; on a phone the menu button shows the name of a view in the menu. */
  #markCurrent(view) {
    for (const link of this.nav.querySelectorAll("a")) {
      if (link.dataset.view === view.name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const inMenu = VIEWS.indexOf(view) >= PHONE_VIEWS;
    this.moreButton.classList.toggle("current", inMenu);
    fill(this.moreButton, inMenu ? view.title : "More", icon("down"));
    this.#toggleMore(false);
  }

  async open() {
    fill(app, this.bar, this.offlineNotice, this.main);
    addEventListener("hashchange", this.onHashChange);
    addEventListener("keydown", this.onKeydown);
    const [agents, metadata] = await Promise.all([
      this.connection.query("agents.list"),
      this.connection.query("chat.metadata"),
    ]);
    this.directory.load(agents, metadata);
    this.list.open();
    this.approvals.load();
    this.#route();
    this.#showGateways();
  }

  /** The view of the gateways is for a database that several can share. */
  async #showGateways() {
    try {
      const { shared } = await this.connection.query("gateways.list");
      this.nav.querySelector("[data-view=gateways]").hidden = !shared;
    } catch {
      // it needs a credential for all agents
    }
  }

  close() {
    removeEventListener("hashchange", this.onHashChange);
    removeEventListener("keydown", this.onKeydown);
    this.view?.close?.();
  }

  showConnectionState(state) {
    const labels = { live: "live", lost: "reconnecting…", connecting: "connecting…" };
    this.connectionState.className = `connection-state ${state}`;
    this.connectionState.textContent = labels[state] ?? state;
    if (state === "live") {
      clearTimeout(this.offlineTimer);
      this.offlineTimer = 0;
      this.offlineNotice.hidden = true;
    } else this.offlineTimer ||= setTimeout(() => (this.offlineNotice.hidden = false), OFFLINE_NOTICE_MS);
  }

  /** The bar links to the session of the oldest command that waits for approval. */
  #showApprovals() {
    const { first, pending } = this.approvals;
    this.approvalLink.hidden = !first;
    if (!first) return;
    const label = `${plural(pending.size, "command")} ${pending.size === 1 ? "needs" : "need"} approval`;
    this.approvalLink.href = `#/s/${encodeURIComponent(first.request.sessionKey)}`;
    this.approvalLink.setAttribute("aria-label", label);
    fill(
      this.approvalLink,
      icon("warn"),
      h("span", { class: "wide-only" }, label),
      h("b", null, pending.size),
    );
  }

  #openSession(key) {
    location.hash = `#/s/${encodeURIComponent(key)}`;
  }

  async #route() {
    const [, name = "", ...rest] = location.hash.split("/").map((part) => decodeURIComponent(part));
    const routeId = (this.routeId = (this.routeId ?? 0) + 1);
    const view = VIEWS.find((each) => each.load && each.name === name) ?? VIEWS[0];
    this.#markCurrent(view);
    if (!view.load) {
      this.#showSessions(name === "s" ? rest : []);
      return;
    }
    const module = await view.load();
    if (routeId !== this.routeId) return;
    if (this.viewName === view.name) {
      this.view.route(rest);
      return;
    }
    this.#closeView();
    this.viewName = view.name;
    this.view = new module.View({ connection: this.connection, directory: this.directory });
    fill(this.main, this.view.el);
    this.main.className = view.name;
    document.title = `${view.title} · Hobnob`;
    this.view.open(rest);
  }

  #showSessions([key, seq, oldTranscriptId]) {
    if (this.viewName !== "sessions") {
      this.#closeView();
      this.viewName = "sessions";
      this.main.className = "sessions";
      fill(this.main, this.list.el, this.pane);
      this.list.render();
    }
    this.main.classList.toggle("open", Boolean(key));
    this.list.select(key ?? null);
    this.view?.close();
    this.view = null;
    if (!key) {
      document.title = "Hobnob";
      fill(
        this.pane,
        h(
          "div",
          { class: "empty" },
          logo(),
          h("h2", null, "Choose a session"),
          h(
            "p",
            null,
            "Pick one on the left, or press ",
            h("kbd", null, "j"),
            " and ",
            h("kbd", null, "Enter"),
            ".",
          ),
        ),
      );
      return;
    }
    document.title = `${this.directory.sessionName(key)} · Hobnob`;
    this.view = new Conversation({
      connection: this.connection,
      directory: this.directory,
      key,
      seq: Number(seq) || null,
      oldTranscriptId: oldTranscriptId ?? null,
      onBack: () => (location.hash = "#/"),
      onDeleted: () => {
        notifyScreenReader("The session was deleted.");
        location.hash = "#/";
      },
    });
    fill(this.pane, this.view.el);
    this.view.open();
  }

  #closeView() {
    this.view?.close?.();
    this.view = null;
  }

  #onKeydown(event) {
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && !typing) {
      if (this.viewName === "sessions" && location.hash.startsWith("#/s/")) location.hash = "#/";
      else if (this.viewName === "exchanges") this.view.escape();
      return;
    }
    if (typing) return;
    const action = {
      "/": () => (this.viewName === "sessions" ? this.list.filters.search.focus() : (location.hash = "#/")),
      j: () => this.#moveSelection(1),
      k: () => this.#moveSelection(-1),
      c: () => this.view?.composer?.focus(),
      n: () => this.list.startSession(),
      "?": () => this.#showShortcuts(),
      ...Object.fromEntries(
        VIEWS.map(({ name }, index) => [index + 1, () => (location.hash = index ? `#/${name}` : "#/")]),
      ),
    }[event.key];
    if (action) {
      event.preventDefault();
      action();
    } else if (event.key === "Enter" && event.target === document.body && this.viewName === "sessions")
      this.list.openActive();
  }

  #moveSelection(by) {
    if (this.viewName === "sessions") {
      this.list.rowsEl.focus({ preventScroll: true });
      this.list.move(by);
    } else this.view?.move?.(by);
  }

  #showShortcuts() {
    const shortcuts = [
      ["j  k", "next, previous"],
      ["Enter", "open"],
      ["/", "search sessions"],
      ["c", "write a message"],
      ["n", "new session"],
      ["Esc", "back"],
      [VIEWS.map((_, index) => index + 1).join("  "), "views"],
    ];
    const rows = shortcuts.map(([key, what]) => [
      h(
        "dt",
        null,
        key.split("  ").map((one) => h("kbd", null, one)),
      ),
      h("dd", null, what),
    ]);
    const box = h(
      "dialog",
      { "aria-label": "Keyboard shortcuts", onclose: () => box.remove() },
      h("h3", null, "Keyboard shortcuts"),
      h("dl", { class: "facts" }, rows),
      h("div", { class: "buttons" }, h("button", { class: "primary", onclick: () => box.close() }, "Close")),
    );
    document.body.append(box);
    box.showModal();
  }

  #cycleTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? "auto";
    const next = {
      auto: dark ? "light" : "dark",
      light: dark ? "dark" : "auto",
      dark: dark ? "auto" : "light",
    }[now];
    localStorage.setItem(THEME_KEY, next);
    applyTheme(next);
    notifyScreenReader(`Theme: ${next}.`);
  }

  #signOut() {
    sessionStorage.removeItem(TOKEN_KEY);
    this.connection.close();
    this.close();
    history.replaceState(null, "", `${location.pathname}#/`);
    signIn();
  }
}

function applyTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
