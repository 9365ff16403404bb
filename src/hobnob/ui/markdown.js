// Renders Markdown as DOM nodes, never as HTML text: headings, lists, quotes, tables, code. Linear time.

import { h } from "./dom.js";
import { excerpt } from "./format.js";
import { inline } from "./markdown-inline.js";

const MAX_DEPTH = 8; // of nested lists and quotes; deeper ones are shown as text
const MAX_COLUMNS = 40;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+•]|\d{1,9}[.)])(?: +|$)/;
const TASK = /^\[([ xX])\] +/;
const ALIGNMENT = /^(:?)-+(:?)$/;

/** Markdown text as a list of block elements. */
export function renderMarkdown(text, options = {}) {
  let inCode = false;
  const lines = text
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => {
      if (/^\s*(```|~~~)/.test(line)) inCode = !inCode;
      // Tabs that indent a list; those in code are kept.
      return inCode ? line : line.replace(/^[ \t]+/, (margin) => margin.replaceAll("\t", "    "));
    });
  return blocks(lines, 0, options);
}

/** The words of a Markdown text without its signs on one line, cut to `maxChars`. */
export function preview(text, maxChars) {
  const source = String(text ?? "").slice(0, 4 * maxChars);
  const box = h("div", null, renderMarkdown(source, { dropUnclosed: true }));
  for (const block of box.querySelectorAll("p, h3, h4, h5, h6, li, th, td, pre")) block.append(" ");
  return excerpt(box.textContent, maxChars);
}

function blocks(lines, depth, options) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const parse = blockAt(lines, at, depth) ?? paragraph;
    const [element, end] = parse(lines, at, depth, options);
    found.push(element);
    at = end;
  }
  return found;
}

/** The parser of the block that starts on a line; null for a paragraph. */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return codeBlock;
  if (HEADING.test(line)) return heading;
  if (isRule(line)) return rule;
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote;
  if (depth < MAX_DEPTH && ITEM.test(line)) return list;
  if (alignments(lines, at)) return table;
  return null;
}

function codeBlock(lines, at) {
  const [, fence] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !closesFence(lines[end], fence)) end += 1;
  const code = h("code", null, lines.slice(at + 1, end).join("\n"));
  return [h("pre", { class: "code", tabindex: "0" }, code), end + 1];
}

function closesFence(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

function heading(lines, at, depth, options) {
  const [, signs, rest] = HEADING.exec(lines[at]);
  let text = rest.trimEnd();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trimEnd();
  // The page's own headings are h1 and h2.
  return [h(`h${Math.min(signs.length + 2, 6)}`, null, inline(text, options)), at + 1];
}

const rule = (lines, at) => [h("hr"), at + 1];

function isRule(line) {
  if (!/^ {0,3}[-*_]/.test(line)) return false;
  const signs = line.replaceAll(" ", "");
  return signs.length >= 3 && signs === signs[0].repeat(signs.length);
}

function quote(lines, at, depth, options) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [h("blockquote", null, blocks(inner, depth + 1, options)), end];
}

function list(lines, at, depth, options) {
  const [, margin, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const items = [];
  let end = at;
  for (;;) {
    const start = ITEM.exec(lines[end] ?? "");
    const sameKind = start && /\d/.test(start[2]) === ordered && !isRule(lines[end]);
    if (!sameKind || start[1].length > margin.length + 1 || start[1].length + 1 < margin.length) break;
    const [item, next] = listItem(lines, end, start, depth, options);
    items.push(item);
    end = next;
  }
  const first = ordered ? parseInt(marker, 10) : 1;
  return [h(ordered ? "ol" : "ul", first === 1 ? null : { start: first }, items), end];
}

/** An item: its first line, and the lines below that are indented or continue its paragraph. */
function listItem(lines, at, start, depth, options) {
  const margin = start[1].length;
  const inner = [lines[at].slice(start[0].length)];
  let end = at + 1;
  for (let blank = 0; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) {
      blank += 1;
      continue;
    }
    const indent = line.length - line.trimStart().length;
    const continues = indent > margin + 1 || (!blank && !blockAt(lines, end, depth));
    if (!continues) break;
    while (blank > 0) {
      inner.push("");
      blank -= 1;
    }
    inner.push(line.slice(Math.min(indent, start[0].length)));
  }
  while (!lines[end - 1].trim()) end -= 1;
  const task = TASK.exec(inner[0]);
  if (task) inner[0] = inner[0].slice(task[0].length);
  const content = itemContent(blocks(inner, depth + 1, options));
  if (!task) return [h("li", null, content), skipBlank(lines, end)];
  const checked = task[1] !== " ";
  const mark = { class: "task", role: "img", "aria-label": checked ? "done" : "open" };
  return [h("li", null, h("span", mark, checked ? "☑" : "☐"), " ", content), skipBlank(lines, end)];
}

/** Blank lines between items do not end a list. */
function skipBlank(lines, at) {
  let end = at;
  while (end < lines.length && !lines[end].trim()) end += 1;
  return ITEM.test(lines[end] ?? "") ? end : at;
}

/** A leading paragraph of an item goes on the line of its marker. */
function itemContent(elements) {
  const [first, ...rest] = elements;
  return first?.localName === "p" ? [...first.childNodes, ...rest] : elements;
}

function table(lines, at, depth, options) {
  const columns = alignments(lines, at);
  const row = (tag, line) =>
    h(
      "tr",
      null,
      cells(line)
        .slice(0, columns.length)
        .map((text, index) => h(tag, { class: columns[index] }, inline(text, options))),
    );
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => row("td", line));
  const parts = [h("thead", null, row("th", lines[at])), h("tbody", null, rows)];
  // A wide table scrolls by itself; the page does not.
  const label = { class: "table", tabindex: "0", role: "group", "aria-label": "Table" };
  return [h("div", label, h("table", null, parts)), end];
}

/** The alignment class of each column when a table starts on a line; else null. */
function alignments(lines, at) {
  const next = lines[at + 1];
  if (!next || !lines[at].includes("|") || !/^[\s|:-]+$/.test(next) || !next.includes("-")) return null;
  const marks = cells(next).map((cell) => ALIGNMENT.exec(cell));
  const fits = marks.length === cells(lines[at]).length && marks.length <= MAX_COLUMNS;
  if (!fits || !marks.every(Boolean)) return null;
  return marks.map(([, left, right]) => (right ? (left ? "center" : "right") : undefined));
}

/** The cells of a table row; `\|` is a sign in a cell. */
function cells(line) {
  const found = [""];
  const text = line.trim();
  for (let at = text.startsWith("|") ? 1 : 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") {
      found[found.length - 1] += "|";
      at += 1;
    } else if (text[at] !== "|") found[found.length - 1] += text[at];
    else if (at + 1 < text.length) found.push("");
  }
  return found.map((cell) => cell.trim());
}

function paragraph(lines, at, depth, options) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !blockAt(lines, end, depth)) end += 1;
  return [h("p", null, inline(lines.slice(at, end).join("\n"), options)), end];
}
