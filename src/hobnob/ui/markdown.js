// Renders a small Markdown subset (code, lists, headings, bold, links) as DOM nodes, never as HTML text.

import { h } from "./dom.js";

const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(https?:\/\/[^\s<>"'`)\]]+[^\s<>"'`)\].,;:!?])/g;
const BULLET = /^\s*(?:[-*•]|\d{1,3}[.)])\s+/;
const FENCE = /^\s*```/;

/** Markdown text as a list of block elements. */
export function renderMarkdown(text) {
  const blocks = [];
  let lines = [];
  let code = null;
  const flush = () => {
    if (lines.length) blocks.push(...textBlocks(lines));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line)) {
      if (code) blocks.push(codeBlock(code));
      else flush();
      code = code ? null : [];
    } else if (code) code.push(line);
    else lines.push(line);
  }
  if (code) blocks.push(codeBlock(code));
  flush();
  return blocks;
}

function codeBlock(lines) {
  return h("pre", { class: "code", tabindex: "0" }, h("code", null, lines.join("\n")));
}

function textBlocks(lines) {
  const blocks = [];
  let block = null;
  for (const line of lines) {
    const heading = /^#{1,4}\s+(.*)/.exec(line);
    if (!line.trim()) block = null;
    else if (heading) {
      blocks.push(h("p", { class: "heading" }, inline(heading[1])));
      block = null;
    } else if (BULLET.test(line)) {
      if (block?.localName !== "ul") blocks.push((block = h("ul")));
      block.append(h("li", null, ...listItem(line)));
    } else if (block?.localName === "p") block.append("\n", ...inline(line));
    else blocks.push((block = h("p", null, inline(line))));
  }
  return blocks;
}

function listItem(line) {
  const ordinal = /^\s*(\d{1,3}[.)])\s+/.exec(line);
  const rest = inline(line.replace(BULLET, ""));
  return ordinal ? [h("span", { class: "number" }, `${ordinal[1]} `), ...rest] : rest;
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > end) nodes.push(text.slice(end, match.index));
    const [whole, code, strong, link] = match;
    if (code) nodes.push(h("code", null, code.slice(1, -1)));
    else if (strong) nodes.push(h("strong", null, strong.slice(2, -2)));
    else if (link) nodes.push(h("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, link));
    end = match.index + whole.length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}
