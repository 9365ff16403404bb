// The page: sign in, then show what the address says. The token stays in this tab.

import { Conversation } from "./conversation.js";
import { announce, fill, h, icon, svg } from "./dom.js";
import { Questions } from "./questions.js";
import { SessionList } from "./sessions.js";
import { Wire } from "./wire.js";
import { People } from "./words.js";

const TOKEN = "hobnob.token";
const THEME = "hobnob.theme";
const ABSENT_MS = 4000; // a restart takes less
const VIEWS = [
  ["sessions", "Sessions", "#/"],
  ["exchanges", "Exchanges", "#/exchanges"],
  ["explain", "Explain", "#/explain"],
];

/** The token of a sign-in link. Taken out of the address bar before anything else happens. */
function tokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", `${location.pathname}#/`);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

const given = tokenFromAddress();
if (given) sessionStorage.setItem(TOKEN, given);
dress(localStorage.getItem(THEME) ?? "auto");
const app = document.getElementById("app");
const token = sessionStorage.getItem(TOKEN);
if (token) enter(token);
else signIn();

// A link opened in a tab that has the page already changes only the fragment.
addEventListener("hashchange", () => {
  const another = tokenFromAddress();
  if (another === null) return;
  sessionStorage.setItem(TOKEN, another);
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

// -- sign in

function signIn(problem = null) {
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
    sessionStorage.setItem(TOKEN, text);
    enter(text);
  };
  const said = problem
    ? h("p", { class: "problem", role: "alert" }, problem.message, problem.fix ? ` ${problem.fix}` : "")
    : null;
  fill(
    app,
    h(
      "main",
      { class: "door" },
      h(
        "form",
        { onsubmit: submit },
        logo(),
        h("h1", null, "Hobnob"),
        h("p", { class: "lead" }, "See who talks to whom."),
        h("label", { class: "field" }, h("span", null, "Token of the gateway"), input),
        said,
        h("button", { class: "primary", type: "submit" }, "Sign in"),
        h(
          "p",
          { class: "quiet", id: "token-help" },
          "In a terminal, ",
          h("code", null, "hobnob serve"),
          " prints a link that signs you in. The token is also in the file ",
          h("code", null, "token"),
          " of the state directory, usually ",
          h("code", null, "~/.hobnob/token"),
          ". It stays in this tab.",
        ),
      ),
    ),
  );
  input.focus();
}

function enter(secret) {
  let shell = null;
  const wire = new Wire(secret, (state, problem) => {
    if (state === "refused") {
      sessionStorage.removeItem(TOKEN);
      shell?.close();
      signIn(problem);
    } else if (state === "live" && !shell) {
      shell = new Shell(wire);
      shell.open();
    } else shell?.connection(state);
  });
  const status = h("p", { role: "status" }, "Connecting…");
  fill(app, h("main", { class: "door waiting" }, logo(), status));
  setTimeout(
    () => fill(status, "The gateway does not answer yet. ", h("code", null, "hobnob serve"), " starts it."),
    ABSENT_MS,
  );
  wire.open();
}

// -- the page

class Shell {
  constructor(wire) {
    this.wire = wire;
    this.people = new People();
    this.list = new SessionList({ wire, people: this.people, onOpen: (key) => this.#go(key) });
    this.questions = new Questions({ wire, people: this.people });
    this.pane = h("div", { class: "pane" });
    this.main = h("main", { id: "main" });
    this.light = h("span", { class: "light live", role: "status" }, "live");
    this.absent = h(
      "p",
      { class: "absent", role: "alert", hidden: true },
      "The gateway does not answer. This page goes on by itself when it is back; ",
      h("code", null, "hobnob serve"),
      " starts it.",
    );
    this.nav = h(
      "nav",
      { "aria-label": "Views" },
      VIEWS.map(([name, text, href]) => h("a", { href, "data-view": name }, text)),
    );
    const theme = h(
      "button",
      { class: "ghost", "aria-label": "Light or dark", title: "Light or dark", onclick: () => this.#theme() },
      icon("theme"),
    );
    const keys = h(
      "button",
      { class: "ghost wide-only", "aria-label": "Keys", title: "Keys (?)", onclick: () => this.#help() },
      icon("keys"),
    );
    const leave = h(
      "button",
      { class: "ghost", "aria-label": "Sign out", title: "Sign out", onclick: () => this.#leave() },
      icon("leave"),
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
      h("h1", { class: "unseen" }, "Hobnob"),
      home,
      this.nav,
      h("div", { class: "bar-end" }, this.light, keys, theme, leave),
    );
    this.view = null;
    this.routed = () => this.#route();
    this.pressed = (event) => this.#key(event);
  }

  async open() {
    fill(app, this.bar, h("div", { class: "notices" }, this.absent, this.questions.el), this.main);
    addEventListener("hashchange", this.routed);
    addEventListener("keydown", this.pressed);
    const [{ agents }, metadata] = await Promise.all([
      this.wire.ask("agents.list"),
      this.wire.ask("chat.metadata"),
    ]);
    this.people.learn(agents, metadata);
    this.list.open();
    this.questions.load();
    this.#route();
  }

  close() {
    removeEventListener("hashchange", this.routed);
    removeEventListener("keydown", this.pressed);
    this.view?.close?.();
  }

  connection(state) {
    const words = { live: "live", lost: "reconnecting…", connecting: "connecting…" };
    this.light.className = `light ${state}`;
    this.light.textContent = words[state] ?? state;
    if (state === "live") {
      clearTimeout(this.missing);
      this.missing = 0;
      this.absent.hidden = true;
    } else this.missing ||= setTimeout(() => (this.absent.hidden = false), ABSENT_MS);
  }

  #go(key) {
    location.hash = `#/s/${encodeURIComponent(key)}`;
  }

  async #route() {
    const [, name = "", ...rest] = location.hash.split("/").map((part) => decodeURIComponent(part));
    const mine = (this.turn = (this.turn ?? 0) + 1);
    const view = name === "exchanges" || name === "explain" ? name : "sessions";
    for (const link of this.nav.children) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (view === "sessions") {
      this.#sessions(name === "s" ? rest : []);
      return;
    }
    const module = await import(view === "exchanges" ? "./exchanges.js" : "./explain.js");
    if (mine !== this.turn) return;
    if (this.shown === view) {
      this.view.route(rest);
      return;
    }
    this.#leaveView();
    this.shown = view;
    this.view = new module.View({ wire: this.wire, people: this.people });
    fill(this.main, this.view.el);
    this.main.className = view;
    document.title = `${view === "exchanges" ? "Exchanges" : "Explain"} · Hobnob`;
    this.view.open(rest);
  }

  #sessions([key, at, transcript]) {
    if (this.shown !== "sessions") {
      this.#leaveView();
      this.shown = "sessions";
      this.main.className = "sessions";
      fill(this.main, this.list.el, this.pane);
      this.list.draw();
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
    document.title = `${this.people.session(key)} · Hobnob`;
    this.view = new Conversation({
      wire: this.wire,
      people: this.people,
      key,
      at: Number(at) || null,
      transcript: transcript ?? null,
      onBack: () => (location.hash = "#/"),
      onGone: () => {
        announce("The session was deleted.");
        location.hash = "#/";
      },
    });
    fill(this.pane, this.view.el);
    this.view.open();
  }

  #leaveView() {
    this.view?.close?.();
    this.view = null;
  }

  #key(event) {
    const typing = event.target.closest?.("input, textarea, select, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && !typing) {
      if (this.shown === "sessions" && location.hash.startsWith("#/s/")) location.hash = "#/";
      else if (this.shown === "exchanges") this.view.escape();
      return;
    }
    if (typing) return;
    const act = {
      "/": () => (this.shown === "sessions" ? this.list.filters.search.focus() : (location.hash = "#/")),
      j: () => this.#move(1),
      k: () => this.#move(-1),
      c: () => this.view?.composer?.focus(),
      1: () => (location.hash = "#/"),
      2: () => (location.hash = "#/exchanges"),
      3: () => (location.hash = "#/explain"),
      "?": () => this.#help(),
    }[event.key];
    if (act) {
      event.preventDefault();
      act();
    } else if (event.key === "Enter" && event.target === document.body && this.shown === "sessions")
      this.list.openActive();
  }

  #move(by) {
    if (this.shown === "sessions") {
      this.list.box.focus({ preventScroll: true });
      this.list.move(by);
    } else this.view?.move?.(by);
  }

  #help() {
    const keys = [
      ["j  k", "next, previous"],
      ["Enter", "open"],
      ["/", "find a session"],
      ["c", "write"],
      ["Esc", "back"],
      ["1  2  3", "sessions, exchanges, explain"],
    ];
    const rows = keys.map(([key, what]) => [
      h(
        "dt",
        null,
        key.split("  ").map((one) => h("kbd", null, one)),
      ),
      h("dd", null, what),
    ]);
    const box = h(
      "dialog",
      { "aria-label": "Keys", onclose: () => box.remove() },
      h("h3", null, "Keys"),
      h("dl", { class: "facts" }, rows),
      h("div", { class: "buttons" }, h("button", { class: "primary", onclick: () => box.close() }, "Close")),
    );
    document.body.append(box);
    box.showModal();
  }

  #theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? "auto";
    const next = {
      auto: dark ? "light" : "dark",
      light: dark ? "dark" : "auto",
      dark: dark ? "auto" : "light",
    }[now];
    localStorage.setItem(THEME, next);
    dress(next);
    announce(`Colours: ${next}.`);
  }

  #leave() {
    sessionStorage.removeItem(TOKEN);
    this.wire.close();
    this.close();
    history.replaceState(null, "", `${location.pathname}#/`);
    signIn();
  }
}

function dress(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
