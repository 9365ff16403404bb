// The settings view: every setting in effect with its value and where it comes from. Read-only.

import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { problem } from "./problem.js";

export class View {
  constructor({ connection }) {
    this.connection = connection;
    this.rows = [];
    this.search = h("input", {
      type: "search",
      placeholder: "Search settings",
      "aria-label": "Search settings by path or value",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#render(),
    });
    this.showDefaults = h("input", { type: "checkbox", onchange: () => this.#render() });
    this.source = h("p", { class: "muted" });
    this.count = h("p", { class: "muted", role: "status" });
    this.content = h("div", { class: "setting-groups" });
    this.el = h(
      "div",
      { class: "inspect-view" },
      h("h2", null, "Settings"),
      this.source,
      h(
        "div",
        { class: "inspect-filters" },
        this.search,
        h("label", { class: "check" }, this.showDefaults, "Show defaults"),
      ),
      this.count,
      this.content,
    );
  }

  async open() {
    try {
      const { path, settings } = await this.connection.query("config.get");
      this.rows = settings;
      fill(
        this.source,
        "In effect in this gateway, from ",
        h("code", null, path ?? "no file: all defaults"),
        ". Secrets are masked. Change them in the file.",
      );
      this.#render();
    } catch (error) {
      fill(this.content, h("p", { class: "error", role: "alert" }, problem(error)));
    }
  }

  route() {}

  close() {}

  #render() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = this.showDefaults.checked || words.length > 0;
    const shown = this.rows.filter(({ path, value, origin }) => {
      const text = `${path} ${valueText(value)}`.toLowerCase();
      return (all || origin !== "default") && words.every((word) => text.includes(word));
    });
    const total = all ? `of ${this.rows.length}` : `of ${this.rows.length}, those that are not defaults`;
    this.count.textContent = `${plural(shown.length, "setting")} ${total}.`;
    const groups = Map.groupBy(shown, ({ path }) => path.split(/[.[]/, 1)[0]);
    fill(
      this.content,
      [...groups].map(([section, rows]) => group(section, rows)),
    );
  }
}

function group(section, rows) {
  const head = h("tr", null, h("th", null, "Setting"), h("th", null, "Value"), h("th", null, "From"));
  return h(
    "section",
    { "aria-label": section },
    h("h3", null, section),
    h(
      "table",
      { class: "settings-table" },
      h("thead", null, head),
      h(
        "tbody",
        null,
        rows.map(({ path, value, origin }) =>
          h(
            "tr",
            { class: origin === "default" ? "default" : "changed" },
            h("td", null, h("code", null, path)),
            h(
              "td",
              null,
              value === null ? h("span", { class: "muted" }, "(unset)") : h("code", null, valueText(value)),
            ),
            h("td", null, origin),
          ),
        ),
      ),
    ),
  );
}

const valueText = (value) =>
  value === null ? "(unset)" : typeof value === "string" ? value : JSON.stringify(value);
