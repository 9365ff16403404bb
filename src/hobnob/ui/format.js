// Formats numbers, amounts, times and text for display.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const timeWithSecondsFormat = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const dateTimeFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const weekdayFormat = new Intl.DateTimeFormat(undefined, {
  weekday: "short",
  day: "numeric",
  month: "short",
});
const dateFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const numberFormat = new Intl.NumberFormat();

export const formatTime = (ms) => timeFormat.format(ms);
export const formatTimeWithSeconds = (ms) => timeWithSecondsFormat.format(ms);
export const formatDateTime = (ms) => dateTimeFormat.format(ms);
export const formatNumber = (value) => numberFormat.format(value);

/** `1 message`, `2 messages`. */
export const plural = (value, noun) => `${formatNumber(value)} ${noun}${value === 1 ? "" : "s"}`;

/** 1234 as `1.2k`. */
export function formatCount(value) {
  if (value < 1000) return String(value);
  if (value < 1e6) return `${roundShort(value / 1e3)}k`;
  return `${roundShort(value / 1e6)}M`;
}

const roundShort = (value) => (value < 100 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value));

/** Dollars; small amounts get more digits. */
export function formatMoney(usd) {
  if (!usd) return "$0";
  if (usd < 0.0001) return "<$0.0001";
  return `$${usd < 0.01 ? usd.toFixed(4) : usd < 100 ? usd.toFixed(2) : Math.round(usd)}`;
}

export function formatDuration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < MINUTE) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min ${Math.round((ms % MINUTE) / 1000)} s`;
  return `${Math.floor(ms / HOUR)} h ${Math.round((ms % HOUR) / MINUTE)} min`;
}

export function formatBytes(value) {
  if (value < 1024) return `${value} B`;
  if (value < 1024 * 1024) return `${roundShort(value / 1024)} KB`;
  return `${roundShort(value / 1024 / 1024)} MB`;
}

/** Time since `ms`; a date from one week on. */
export function formatAge(ms, now = Date.now()) {
  const age = now - ms;
  if (age < 10_000) return "now";
  if (age < MINUTE) return `${Math.floor(age / 1000)} s`;
  if (age < HOUR) return `${Math.floor(age / MINUTE)} min`;
  if (age < DAY) return `${Math.floor(age / HOUR)} h`;
  if (age < 7 * DAY) return `${Math.floor(age / DAY)} d`;
  return dateFormat.format(ms);
}

/** The heading above the first message of a day. */
export function formatDay(ms, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (ms >= midnight) return "Today";
  if (ms >= midnight - DAY) return "Yesterday";
  return now - ms < 300 * DAY ? weekdayFormat.format(ms) : dateFormat.format(ms);
}

/** Text on one line, cut to `maxChars`. */
export function excerpt(text, maxChars = 140) {
  const line = String(text ?? "")
    .replace(/\s+/g, " ")
    .trim();
  return line.length > maxChars ? `${line.slice(0, maxChars - 1)}…` : line;
}
