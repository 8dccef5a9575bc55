// Amounts of money, which the API counts in billionths of the installation's currency.

const NANO = 1_000_000_000;
let currency = "";

/** Sets the currency of all amounts. */
export const setCurrency = (code) => (currency = code);
export const currencyName = () => currency || "the currency";

export const isMoney = (limit) => limit.startsWith("spend_");

/** Formats billionths to the cent, or to four digits below one. */
export function money(nanos) {
  if (nanos == null) return "–";
  const value = nanos / NANO;
  const format = value === 0 || Math.abs(value) >= 1 ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumSignificantDigits: 4 };
  return `${value.toLocaleString("en", format)}${currency ? ` ${currency}` : ""}`;
}

/** Converts between an amount in a form and billionths. Invalid input is returned unchanged. */
export const fromNanos = (nanos) => (typeof nanos === "number" ? nanos / NANO : nanos);
export const toNanos = (value) => (typeof value === "number" ? Number((value * NANO).toPrecision(15)) : value);
