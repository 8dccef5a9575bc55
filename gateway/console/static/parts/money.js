// Amounts of money: the API counts in millionths of the installation's currency.

const MICRO = 1_000_000;

/** How a line of usage tells what it cost; null where this gateway has no prices. */
export function moneyOf(line) {
  const field = ["spend", "cost", "charge"].find((name) => line?.[name] != null);
  if (!field) return null;
  return { name: "Spend", shown: (each) => money(each[field]) };
}

/** An amount from millionths, to the cent, or to the millionth where it is less than one. */
export function money(micros) {
  if (micros == null) return "–";
  const digits = Math.abs(micros) >= MICRO / 100 || micros === 0 ? 2 : 6;
  return (micros / MICRO).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits });
}
