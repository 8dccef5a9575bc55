// DOM elements. Data becomes text nodes or attribute values, never markup.

/** Creates an element. `on…` attributes are listeners, `true` sets an empty attribute, null and false set none. */
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

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...present(children));
  return made;
}

function present(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replaces an element's children. */
export function fill(parent, ...children) {
  parent.replaceChildren(...present(children));
  return parent;
}

/** Sets a text only if it has changed, so that screen readers and selections are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const LONGEST_NAME = 120;

/** A user-chosen name: isolated, so that its text direction does not affect the rest, and truncated if very long. */
export function named(text, className = "name") {
  const whole = String(text ?? "");
  const letters = [...whole.slice(0, 2 * LONGEST_NAME)];
  const isLong = letters.length > LONGEST_NAME;
  const shown = isLong ? `${letters.slice(0, LONGEST_NAME).join("")}…` : whole;
  return h("bdi", { class: className, title: isLong ? `${whole.length} characters` : null }, shown);
}

let ids = 0;
export const freshId = (prefix) => `${prefix}-${++ids}`;

/** Keeps one child per item across updates, so that focus and selection are preserved. */
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

/** Changes an element's content and restores the focus to the same position. */
export function keepingFocus(parent, change) {
  const held = parent.contains(document.activeElement) ? document.activeElement : null;
  const at = held ? [...parent.querySelectorAll(FOCUSABLE)].indexOf(held) : -1;
  change();
  if (at < 0 || document.activeElement === held) return;
  (parent.contains(held) ? held : parent.querySelectorAll(FOCUSABLE)[at])?.focus();
}

/** Announces a text to screen readers. */
function announce(text) {
  const place = document.getElementById("said");
  place.textContent = "";
  requestAnimationFrame(() => (place.textContent = text));
}

/** Shows a short message for some seconds. */
export function toast(text, tone = "good") {
  const shown = h("p", { class: `toast ${tone}` }, text);
  document.getElementById("toasts").append(shown);
  announce(text);
  setTimeout(() => shown.remove(), 6000);
}
