// The dialog that starts a session: which agent, and under which name.

import { dialog, field, select } from "./dialog.js";
import { h } from "./dom.js";

/** `onOpen(key)` opens the session. A token that may not create sessions opens main sessions only. */
export function newSessionDialog({ connection, directory, onOpen }) {
  const mayName = connection.hasScope("operator.write");
  const agents = directory.agents.map(({ id }) => [id, directory.agentName(id)]);
  const agent = select("agent", agents, directory.defaultAgent);
  const name = h("input", {
    name: "label",
    maxlength: "512",
    autocomplete: "off",
    placeholder: "for example: street party",
  });
  const action = async () => {
    const label = name.value.trim();
    let key = `agent:${agent.value}:main`;
    if (mayName && label)
      ({ key } = await connection.call("sessions.create", { agentId: agent.value, label }));
    onOpen(key);
  };
  const hint = "Without a name, the agent's main session opens.";
  dialog("New session", [mayName ? field("Name", name, hint) : null, field("Agent", agent)], {
    confirmLabel: mayName ? "Create" : "Open",
    action,
  });
}
