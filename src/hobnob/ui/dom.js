// DOM helpers. Strings become text nodes: nothing here parses HTML.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Create an element with attributes, listeners (`onclick`) and children; skips null and false children. */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return build(document.createElementNS(SVG_NAMESPACE, tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child);
  }
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Coalesce calls: `work` runs once in the next frame. */
export function oncePerFrame(work) {
  let scheduled = false;
  const run = () => {
    scheduled = false;
    work();
  };
  return () => {
    if (scheduled) return;
    scheduled = true;
    // A background tab gets no animation frames but has to keep up.
    if (document.hidden) setTimeout(run, 100);
    else requestAnimationFrame(run);
  };
}

/** Coalesce calls: `work` runs at most once in `ms`, at the end of the interval. */
export function throttled(work, ms) {
  let timer = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      work();
    }, ms);
  };
}

/** Put a text into the page's live region. */
export function notifyScreenReader(text) {
  document.getElementById("live-region").textContent = text;
}

const ICON_PATHS = {
  back: "M15 5l-7 7 7 7",
  stop: "M7 7h10v10H7z",
  send: "M5 12h13M12 5l7 7-7 7",
  more: "M5 11.2a.8.8 0 1 0 0 1.6.8.8 0 0 0 0-1.6zM12 11.2a.8.8 0 1 0 0 1.6.8.8 0 0 0 0-1.6zM19 11.2a.8.8 0 1 0 0 1.6.8.8 0 0 0 0-1.6z",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  tool: "M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z",
  tree: "M6 4v16M6 9h6M6 17h6M15 9h4M15 17h4",
  down: "M6 9l6 6 6-6",
  plus: "M12 5v14M5 12h14",
  theme: "M12 4a8 8 0 1 0 0 16V4z",
  signOut: "M14 5h5v14h-5M3 12h11M10 8l4 4-4 4",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
  clip: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l7-7",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  keys: "M4 7h16v10H4zM8 14h8M7 10.5h.01M11 10.5h.01M15 10.5h.01",
};

/** An icon in the colour of the text. */
export function icon(name) {
  const path = svg("path", { d: ICON_PATHS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, path);
}
