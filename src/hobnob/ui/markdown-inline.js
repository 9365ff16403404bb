// Inline Markdown (code, emphasis, links) as DOM nodes. Linear time: each character is moved a bounded number of times.

import { h } from "./dom.js";

const MAX_DEPTH = 16; // of nested emphasis; deeper signs stay text
const MAX_URL_CHARS = 2000;
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
const SPECIAL = /[\\`*_~[\]]|!\[|<(?:https?:|mailto:)|\b(?:https?:\/\/|mailto:)/gi;
const BARE_URL = /[^\s<>"`[\]]{1,2001}/y;
const ANGLE_URL = /<([^\s<>]{1,2000})>/y;
// One level of parentheses in the address, and a title that is not shown.
const LINK_TARGET =
  /\]\(\s{0,3}<?((?:[^\s()<>]|\([^\s()<>]*\)){0,2000})>?(?:\s{1,3}"[^"\n]{0,200}")?\s{0,3}\)/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const TAGS = { "*1": "em", _1: "em", "*2": "strong", _2: "strong", "~2": "s" };

/** The nodes of a text. With `dropUnclosed`, a sign without its counterpart is left out: for cut texts. */
export function inline(text, { dropUnclosed = false } = {}) {
  const parser = new InlineParser(text, dropUnclosed);
  return parser.parse();
}

/** A link that opens in its own tab; only its text when the address is not a web or mail address. */
function externalLink(url, children) {
  let address = null;
  try {
    address = new URL(url);
  } catch {
    // Not an absolute address.
  }
  if (!PROTOCOLS.has(address?.protocol)) return children;
  const { href } = address;
  return [h("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, children)];
}

class InlineParser {
  constructor(text, dropUnclosed) {
    this.text = text;
    this.dropUnclosed = dropUnclosed;
    // Open emphasis and brackets; `sign` is the text shown when it is never closed.
    this.stack = [{ sign: "", nodes: [] }];
    this.backticks = backtickRuns(text);
  }

  parse() {
    const { text } = this;
    let end = 0;
    SPECIAL.lastIndex = 0;
    for (let match; (match = SPECIAL.exec(text)); SPECIAL.lastIndex = end) {
      const at = match.index;
      if (at > end) this.#add(text.slice(end, at));
      end = this.#special(match[0], at);
    }
    if (end < text.length) this.#add(text.slice(end));
    this.#unwind(1, this.dropUnclosed);
    return this.stack[0].nodes;
  }

  #add(nodes) {
    const { nodes: siblings } = this.stack.at(-1);
    for (const node of [nodes].flat()) siblings.push(node);
  }

  /** Handle the special characters at `at`; returns the position after them. */
  #special(sign, at) {
    const { text } = this;
    switch (sign[0]) {
      case "\\":
        return this.#escape(at);
      case "`":
        return this.#code(at);
      case "*":
      case "_":
      case "~":
        return this.#emphasis(at);
      case "[":
      case "!":
        return this.#open("[", sign, at + sign.length);
      case "]":
        return this.#closeBracket(at);
      case "<": {
        ANGLE_URL.lastIndex = at;
        const match = ANGLE_URL.exec(text);
        this.#add(match ? externalLink(match[1], [match[1]]) : "<");
        return match ? ANGLE_URL.lastIndex : at + 1;
      }
      default:
        return this.#bareUrl(sign, at);
    }
  }

  #escape(at) {
    const next = this.text[at + 1] ?? "";
    const escapes = next !== "" && next <= "\x7f" && PUNCTUATION.test(next);
    this.#add(escapes ? next : "\\");
    return at + (escapes ? 2 : 1);
  }

  #code(at) {
    const length = runLength(this.text, at);
    const closers = this.backticks.get(length);
    while (closers.length && closers.at(-1) <= at) closers.pop();
    const close = closers.at(-1);
    const from = at + length;
    if (close === undefined) {
      if (!this.dropUnclosed) this.#add(this.text.slice(at, from));
      return from;
    }
    const code = this.text.slice(from, close).replaceAll("\n", " ");
    const padded = code.startsWith(" ") && code.endsWith(" ") && code.trim();
    this.#add(h("code", null, padded ? code.slice(1, -1) : code));
    return close + length;
  }

  #emphasis(at) {
    const { text } = this;
    const sign = text[at];
    let count = runLength(text, at);
    const end = at + count;
    if (sign === "~" && count !== 2) {
      this.#add(text.slice(at, end));
      return end;
    }
    const { canOpen, canClose } = flanking(sign, text[at - 1], text[end]);
    while (canClose && count > 0) {
      const index = this.#opener(sign, count);
      if (index < 0) break;
      const { length } = this.stack[index].sign;
      this.#close(index, (nodes) => [h(TAGS[sign + length], null, nodes)]);
      count -= length;
    }
    while (canOpen && count > 0) {
      const length = Math.min(count, 2);
      this.#open(sign, sign.repeat(length), end);
      count -= length;
    }
    if (count > 0) this.#add(sign.repeat(count));
    return end;
  }

  /** The open sign that a run of `count` signs closes: one of the same length, else the last that fits. */
  #opener(sign, count) {
    const same = this.stack.findLastIndex((open) => open.sign === sign.repeat(count));
    return same >= 0
      ? same
      : this.stack.findLastIndex((open) => open.sign[0] === sign && open.sign.length <= count);
  }

  #open(kind, sign, end) {
    if (this.stack.length > MAX_DEPTH) this.#add(sign);
    else this.stack.push({ kind, sign, nodes: [] });
    return end;
  }

  #closeBracket(at) {
    const index = this.stack.findLastIndex((open) => open.kind === "[");
    LINK_TARGET.lastIndex = at;
    const target = index < 0 ? null : LINK_TARGET.exec(this.text);
    if (!target) {
      if (index >= 0) this.#unwind(index, false);
      this.#add("]");
      return at + 1;
    }
    const url = target[1];
    this.#close(index, (nodes) => externalLink(url, withoutLinks(nodes.length ? nodes : [url])));
    // No link inside a link.
    for (const open of this.stack) if (open.kind === "[") open.kind = "text";
    return LINK_TARGET.lastIndex;
  }

  #bareUrl(scheme, at) {
    BARE_URL.lastIndex = at;
    const [found] = BARE_URL.exec(this.text);
    const url = trimUrl(found);
    const isLink = url.length > scheme.length && url.length <= MAX_URL_CHARS;
    this.#add(isLink ? externalLink(url, [url]) : found);
    return at + (isLink ? url : found).length;
  }

  /** Close the open sign at `index`; signs opened after it stay text. */
  #close(index, wrap) {
    this.#unwind(index + 1, false);
    const { nodes } = this.stack.pop();
    this.#add(wrap(nodes));
  }

  /** Turn the signs from `index` on back into text, in one pass from below. */
  #unwind(index, drop) {
    const target = this.stack[index - 1].nodes;
    for (const { sign, nodes } of this.stack.splice(index)) {
      if (!drop || sign[0] === "[") target.push(sign);
      for (const node of nodes) target.push(node);
    }
  }
}

/** The starts of all runs of backticks by length, last first. */
function backtickRuns(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  for (const starts of runs.values()) starts.reverse();
  return runs;
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** Whether a run of signs between two characters can open or close emphasis. */
function flanking(sign, before = " ", after = " ") {
  const [spaceBefore, spaceAfter] = [before, after].map((char) => /\s/.test(char));
  const [signBefore, signAfter] = [before, after].map((char) => PUNCTUATION.test(char));
  const left = !spaceAfter && (!signAfter || spaceBefore || signBefore);
  const right = !spaceBefore && (!signBefore || spaceAfter || signAfter);
  if (sign !== "_") return { canOpen: left, canClose: right };
  return { canOpen: left && (!right || signBefore), canClose: right && (!left || signAfter) };
}

/** A bare address without the punctuation of the sentence around it. */
function trimUrl(url) {
  let opens = 0;
  for (const char of url) opens += char === "(" ? 1 : char === ")" ? -1 : 0;
  let end = url.length;
  for (; end > 0; end -= 1) {
    const last = url[end - 1];
    if (last === ")" && opens < 0) opens += 1;
    else if (!".,;:!?'*_~|".includes(last)) break;
  }
  return url.slice(0, end);
}

function withoutLinks(nodes) {
  const box = h("span", null, nodes);
  for (const link of box.querySelectorAll("a")) link.replaceWith(...link.childNodes);
  return [...box.childNodes];
}
