// Elements. Whatever comes from outside becomes a text node or an attribute's value, never markup.

/** An element. Attributes: `onclick` and the like are listeners, `true` sets an empty one, null and false set none. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...present(children));
  return made;
}

/** The same of SVG. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...present(children));
  return made;
}

function present(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replaces what stands in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...present(children));
  return parent;
}

/** Sets a text only where it is another one: a screen reader and a selection stay undisturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const LONGEST_NAME = 120;

/** A name that somebody else chose: isolated, so that its direction stays its own, and cut where it is very long. */
export function named(text, className = "name") {
  const whole = String(text ?? "");
  const letters = [...whole.slice(0, 2 * LONGEST_NAME)];
  const isLong = letters.length > LONGEST_NAME;
  const shown = isLong ? `${letters.slice(0, LONGEST_NAME).join("")}…` : whole;
  return h("bdi", { class: className, title: isLong ? `${whole.length} characters` : null }, shown);
}

let ids = 0;
export const freshId = (prefix) => `${prefix}-${++ids}`;

/** One child for each item, kept from refresh to refresh so that focus and selection stay where they are. */
export function keyed(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = String(keyOf(item));
    const child = known.get(key) ?? make(item);
    child.dataset.key = key;
    update(child, item);
    return child;
  });
  const stands = wanted.length === parent.children.length && wanted.every((child, i) => child === parent.children[i]);
  if (!stands) keepingFocus(parent, () => parent.replaceChildren(...wanted));
}

const FOCUSABLE = "a[href], button, input, select, textarea, summary";

/** Changes what is inside of an element; focus goes back to what stands where it was. */
export function keepingFocus(parent, change) {
  const held = parent.contains(document.activeElement) ? document.activeElement : null;
  const at = held ? [...parent.querySelectorAll(FOCUSABLE)].indexOf(held) : -1;
  change();
  if (at < 0 || document.activeElement === held) return;
  (parent.contains(held) ? held : parent.querySelectorAll(FOCUSABLE)[at])?.focus();
}

/** Says something to who does not see the page. */
function announce(text) {
  const place = document.getElementById("said");
  place.textContent = "";
  requestAnimationFrame(() => (place.textContent = text));
}

/** A short word at the edge of the page, for some seconds. */
export function toast(text, tone = "good") {
  const shown = h("p", { class: `toast ${tone}` }, text);
  document.getElementById("toasts").append(shown);
  announce(text);
  setTimeout(() => shown.remove(), 6000);
}
