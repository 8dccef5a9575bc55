// Amounts of money, which the API counts in billionths of the installation's currency.

const NANO = 1_000_000_000;

export const isMoney = (limit) => limit.startsWith("spend_");

/** Formats billionths to the cent, or to four digits below one. */
export function money(nanos, currency = "") {
  if (nanos == null) return "–";
  const value = nanos / NANO;
  const format = value === 0 || Math.abs(value) >= 1 ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumSignificantDigits: 4 };
  return `${value.toLocaleString("en", format)}${currency ? ` ${currency}` : ""}`;
}
