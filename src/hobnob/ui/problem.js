// Errors in the words of the command line: what happened, the rule, and what to change.

import { h } from "./dom.js";

// What to do as a command, as `hobnob` says it. The gateway's own `fix` names a tool or a setting.
const COMMAND_FIXES = {
  "session.not_found": "`hobnob sessions list` shows the sessions.",
  "session.archived": "`hobnob sessions restore KEY` restores it.",
  "send_policy.denied": "`hobnob explain owner send KEY` shows which rule and how to change it.",
};

/** A setting with the value that would allow something. */
export const assignment = ({ path, value }) => `${path} = ${JSON.stringify(value)}`;

/** An error of a request, or the result of a refused tool call: its message, rule and fix. */
export function problem({ message, code, fix }) {
  const change = COMMAND_FIXES[code] ?? fixText(fix);
  return h(
    "span",
    { class: "problem" },
    message,
    code ? [" ", h("code", null, code)] : null,
    change ? h("span", { class: "fix" }, withCode(change)) : null,
  );
}

function fixText(fix) {
  if (!Array.isArray(fix)) return fix;
  return fix.map((each) => (typeof each === "string" ? each : assignment(each))).join("; ");
}

/** The text with commands between backticks as code. */
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", null, part) : part));
}
