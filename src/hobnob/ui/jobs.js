// The jobs view: scheduled jobs with their next and last runs; add, edit, run now, switch off, remove.

import { dialog, field, select } from "./dialog.js";
import { fill, h, throttled } from "./dom.js";
import { formatAge, formatDuration } from "./format.js";
import { problem } from "./problem.js";

const RELOAD_MS = 300;
const RUNS = 10;
const SIGNS = { ok: "✓", error: "✗", skipped: "–", running: "…" };

export class View {
  constructor({ connection, directory }) {
    Object.assign(this, { connection, directory });
    this.list = h("ul", { class: "job-list", "aria-label": "Jobs" });
    this.state = h("p", { class: "muted" });
    this.notice = h("p", { class: "error", role: "alert", hidden: true });
    this.history = h("section", { class: "job-history", "aria-label": "Latest runs", "aria-live": "polite" });
    const add = h("button", { class: "primary", onclick: () => this.#edit(null) }, "New job");
    this.el = h(
      "div",
      { class: "inspect-view" },
      h("h2", null, "Jobs"),
      this.state,
      h("div", { class: "inspect-filters" }, add),
      this.notice,
      this.list,
      this.history,
    );
    this.reload = throttled(() => this.#load(), RELOAD_MS);
  }

  open(rest) {
    this.unsubscribers = [
      this.connection.on("cron", () => this.reload()),
      this.connection.on("reconnected", () => this.reload()),
    ];
    this.route(rest);
  }

  close() {
    for (const stop of this.unsubscribers ?? []) stop();
  }

  /** `#/jobs/<id>` also shows the latest runs of a job. */
  route([id = null]) {
    this.selected = id;
    this.#load();
  }

  async #load() {
    const request = (this.request = (this.request ?? 0) + 1);
    const [status, { jobs }, runs] = await Promise.all([
      this.connection.query("cron.status"),
      this.connection.query("cron.list", { includeDisabled: true }),
      this.connection.query("cron.runs", { limit: RUNS, ...(this.selected ? { id: this.selected } : { scope: "all" }) }),
    ]);
    if (request !== this.request) return;
    fill(
      this.state,
      status.enabled
        ? "Work that starts by itself: the same as "
        : "The scheduler is off (cron.enabled), so no job starts. See ",
      h("code", null, "hobnob cron list --all"),
      ".",
    );
    fill(this.list, jobs.length ? jobs.map((job) => this.#item(job)) : h("li", { class: "muted" }, "No jobs yet."));
    this.#showRuns(runs.entries, jobs);
  }

  #item(job) {
    const { id, name, enabled, state, scheduleText, agentId, source } = job;
    const running = state.runningAtMs !== undefined;
    const next = enabled ? (job.nextRunAt ?? (running ? "after this run" : "none")) : "off";
    const failed = state.autoDisabled ? `Disabled: ${state.autoDisabled.reason}.` : (job.lastRunError ?? "");
    return h(
      "li",
      { class: `job ${enabled ? "" : "off"}`, "data-job": id },
      h(
        "div",
        { class: "job-head" },
        h("b", null, h("a", { href: `#/jobs/${encodeURIComponent(id)}` }, name)),
        h("span", { class: "badge system" }, this.directory.agentName(agentId)),
        source === "settings" ? h("span", { class: "badge system" }, "from the settings") : null,
      ),
      h("p", { class: "job-task" }, job.payload.message ?? job.payload.text),
      h(
        "dl",
        { class: "job-facts" },
        fact("Schedule", scheduleText),
        fact("Next run", next),
        fact("Last run", running ? "running now" : lastRun(job)),
        fact("Answer", job.deliveryPreview.detail),
        job.readsPreview ? fact("Reads", job.readsPreview) : null,
      ),
      failed ? h("p", { class: "error" }, failed) : null,
      h(
        "div",
        { class: "job-buttons" },
        this.#button("Run now", () => this.#run(job), running),
        source === "settings"
          ? null
          : [
              this.#button("Edit", () => this.#edit(job)),
              this.#button(enabled ? "Switch off" : "Switch on", () =>
                this.connection.call("cron.update", { id, patch: { enabled: !enabled } }),
              ),
              this.#button("Remove", () => this.#remove(job)),
            ],
      ),
    );
  }

  #button(label, work, disabled = false) {
    const onclick = async () => {
      this.notice.hidden = true;
      try {
        await work();
      } catch (error) {
        this.notice.hidden = false;
        fill(this.notice, problem(error));
      }
      this.reload();
    };
    return h("button", { class: "plain", disabled, onclick }, label);
  }

  async #run({ id }) {
    const answer = await this.connection.call("cron.run", { id });
    if (answer.ran === false) throw new Error(`The job was not started: ${answer.reason}`);
  }

  #remove({ id, name }) {
    const text = h("p", null, `“${name}” and the session of its runs are removed. The history of its runs stays.`);
    const action = () => this.connection.call("cron.remove", { id });
    dialog("Remove this job?", text, { confirmLabel: "Remove", danger: true, action });
  }

  #edit(job) {
    const zone = job?.timeZone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
    const name = h("input", { name: "name", value: job?.name ?? "", autocomplete: "off" });
    const task = h("textarea", {
      name: "task",
      rows: 4,
      required: true,
      value: job?.payload.message ?? job?.payload.text ?? "",
    });
    const when = h("input", {
      name: "when",
      required: true,
      autocomplete: "off",
      value: job ? whenText(job.schedule) : "0 8 * * 1-5",
    });
    const tz = h("input", { name: "zone", value: zone, autocomplete: "off" });
    const mode = select(
      "delivery",
      [
        ["announce", "to the chat where people last wrote"],
        ["none", "nowhere: it stays in the history"],
      ],
      job?.delivery.mode === "none" ? "none" : "announce",
    );
    const agent = select(
      "agent",
      this.directory.agents.map(({ id }) => [id, this.directory.agentName(id)]),
      job?.agentId ?? this.directory.defaultAgent,
    );
    const action = () => {
      const schedule = scheduleOf(when.value.trim(), tz.value.trim(), job?.schedule);
      const text = task.value.trim();
      const payload =
        job?.payload.kind === "systemEvent" ? { kind: "systemEvent", text } : { kind: "agentTurn", message: text };
      const changes = { name: name.value.trim() || null, schedule, payload };
      if (!job || mode.value !== job.delivery.mode) changes.delivery = { mode: mode.value };
      if (job) return this.connection.call("cron.update", { id: job.id, patch: changes });
      return this.connection.call("cron.add", { ...changes, agentId: agent.value });
    };
    dialog(
      job ? "Edit job" : "New job",
      [
        field("Task", task, "What the agent should do. Nobody answers its questions while it works."),
        field("When", when, "A cron expression (0 8 * * 1-5), an interval (30m) or a time (2026-11-20T08:00)."),
        field("Time zone", tz),
        job ? null : field("Agent", agent),
        field("Answer", mode),
        field("Name", name, "By default the beginning of the task."),
      ],
      { confirmLabel: job ? "Save" : "Add", action },
    );
  }

  #showRuns(entries, jobs) {
    const of = this.selected && jobs.find(({ id }) => id === this.selected);
    fill(
      this.history,
      h("h3", null, of ? `Latest runs of ${of.name}` : "Latest runs"),
      of ? h("p", null, h("a", { href: "#/jobs" }, "Runs of all jobs")) : null,
      entries.length
        ? h(
            "ul",
            { class: "run-list" },
            entries.map((run) => runItem(run)),
          )
        : h("p", { class: "muted" }, "No runs yet."),
    );
  }
}

const fact = (name, value) => [h("dt", null, name), h("dd", null, value)];

const lastRun = ({ lastRunStatus, lastRunAtMs }) =>
  lastRunStatus ? `${lastRunStatus}, ${formatAge(lastRunAtMs)}` : "never";

/** A schedule as people type it. */
function whenText({ kind, at, everyMs, expr }) {
  if (kind === "cron") return expr;
  return kind === "at" ? at : `${everyMs}ms`;
}

function scheduleOf(text, tz, before) {
  const zone = tz ? { tz } : {};
  if (before && text === whenText(before) && (before.tz ?? tz) === tz) return before;
  const interval = /^(\d+)\s*(ms|s|m|h|d|w)$/i.exec(text);
  const units = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
  if (interval) return { kind: "every", everyMs: Number(interval[1]) * units[interval[2].toLowerCase()], ...zone };
  if (text.startsWith("@") || text.split(/\s+/).length > 2) return { kind: "cron", expr: text, ...zone };
  return { kind: "at", at: text, ...zone };
}

function runItem(run) {
  const sign = h("span", { class: "sign", role: "img", "aria-label": run.status }, SIGNS[run.status]);
  const took = run.durationMs === undefined ? "" : ` in ${formatDuration(run.durationMs)}`;
  const text = run.error ?? run.deliveryError ?? run.summary ?? "";
  const link = run.sessionKey
    ? h("a", { href: `#/s/${encodeURIComponent(run.sessionKey)}` }, run.jobName)
    : run.jobName;
  return h(
    "li",
    { class: run.status === "error" ? "no" : "yes" },
    sign,
    h(
      "span",
      null,
      link,
      h("small", null, ` ${formatAge(run.runAtMs)}${took}, ${run.trigger}, ${run.deliveryStatus}`),
      h("span", { class: "run-text" }, text.slice(0, 400)),
    ),
  );
}
