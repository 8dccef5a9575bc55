// Formats of figures and times, with their units.

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const precise = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
/** Stands for a value that is not known. */
export const NOTHING = "–";

export const count = (value) => (value == null ? NOTHING : whole.format(value));
/** Whole numbers below a million, compact above. */
export const amount = (value) => (value == null ? NOTHING : Math.abs(value) < 1e6 ? whole.format(value) : compact.format(value));
export const short = (value) => (value == null ? NOTHING : compact.format(value));
export const rate = (value) => (value == null ? NOTHING : value < 100 ? one.format(value) : compact.format(value));
export const percent = (share) => (share == null ? NOTHING : `${one.format(100 * share)} %`);

export function duration(ms) {
  if (ms == null || Number.isNaN(ms)) return NOTHING;
  if (ms > 0 && ms < 0.1) return `${precise.format(1000 * ms)} µs`;
  if (ms < 10) return `${one.format(ms)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${one.format(ms / 1000)} s`;
  if (ms < 3_600_000) return `${one.format(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${one.format(ms / 3_600_000)} h`;
  return `${Math.floor(ms / 86_400_000)} d`;
}

export function bytes(value) {
  if (value == null) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, value > 0 ? Math.floor(Math.log2(value) / 10) : 0);
  return `${one.format(value / 1024 ** at)} ${units[at]}`;
}

/** A limit, state or code as words. */
export const words = (name) => String(name ?? "").replaceAll("_", " ");

export const plural = (n, one_, many = `${one_}s`) => `${count(n)} ${n === 1 ? one_ : many}`;

const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const isToday = (moment) => day.format(moment) === day.format(new Date());

/** A Unix time, without the date if it is today. The title has the full time. */
export function moment(seconds) {
  if (seconds == null) return NOTHING;
  const at = new Date(seconds * 1000);
  const shown = document.createElement("time");
  shown.dateTime = at.toISOString();
  shown.title = at.toISOString();
  shown.textContent = isToday(at) ? clock.format(at) : `${day.format(at)}, ${clock.format(at).slice(0, 5)}`;
  return shown;
}

const stamp = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A Unix time with its date, and to the second. */
export function dated(seconds) {
  const shown = moment(seconds);
  if (seconds != null) shown.textContent = stamp.format(new Date(seconds * 1000));
  return shown;
}

const short_ = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
export const shortMoment = (seconds) => short_.format(new Date(seconds * 1000));

/** A Unix time relative to now. */
export function ago(seconds) {
  if (seconds == null) return NOTHING;
  const ms = Date.now() - seconds * 1000;
  const shown = document.createElement("time");
  shown.dateTime = shown.title = new Date(seconds * 1000).toISOString();
  shown.textContent = ms >= 0 ? (ms < 1000 ? "now" : `${duration(ms)} ago`) : `in ${duration(-ms)}`;
  return shown;
}
