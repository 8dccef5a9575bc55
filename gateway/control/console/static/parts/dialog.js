// Dialogs and forms. The API's error for a field is shown at that field.

import { ApiError } from "../api.js";
import { fill, freshId, h } from "../dom.js";
import { fromNanos, toNanos } from "./money.js";

/** Opens a dialog and resolves when it is closed. `body(close)` creates its content. */
export function openDialog(title, body, kind = null) {
  const titleId = freshId("dialog");
  return new Promise((resolve) => {
    let result;
    const close = (value) => {
      result = value;
      dialog.close();
    };
    const dialog = h("dialog", { "aria-labelledby": titleId, class: kind }, h("h2", { id: titleId }, title));
    dialog.append(...[body(close)].flat());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    window.addEventListener("hashchange", () => dialog.close(), { once: true });
  });
}

/** Confirms an action that cannot be undone or that stops traffic. */
export function confirm(title, text, action, kind = "danger") {
  return openDialog(title, (close) => [
    h("p", {}, text),
    h("div", { class: "buttons" },
      h("button", { type: "button", class: "quiet", onclick: () => close(false) }, "Cancel"),
      h("button", { type: "button", class: kind, onclick: () => close(true) }, action)),
  ]);
}

/**
 * A form field: `{name, label, type?, hint?, value?, options?, required?}`. Types: text, number, money (billionths, shown
 * in the currency), password, select, checkbox, checkboxes, textarea, datetime-local. Returns `{element, name, read(),
 * fail(text)}`.
 */
export function field({ name, label, type = "text", hint = null, value = null, options = [], required = false, ...rest }) {
  const id = freshId("field");
  const error = h("p", { class: "field-error", id: `${id}-error` });
  const note = hint && h("p", { class: "hint", id: `${id}-hint` }, hint);
  const told = `${note ? `${id}-hint ` : ""}${id}-error`;
  const control = makeControl({ id, type, value, options, required, told, label, rest });
  const focused = control.matches("fieldset") ? control.querySelector("input") : control;
  const isGroup = control.matches("fieldset");
  const element = h("div", { class: `field type-${type}` },
    type === "checkbox" || isGroup ? null : h("label", { for: id }, label, required && h("span", { class: "required" }, " (required)")),
    control,
    type === "checkbox" ? h("label", { for: id }, label) : null,
    note,
    error);
  return {
    element,
    name,
    control: focused,
    read: () => READERS[type]?.(control) ?? readText(control),
    fail(text) {
      error.textContent = text;
      if (text) focused.setAttribute("aria-invalid", "true");
      else focused.removeAttribute("aria-invalid");
    },
  };
}

function makeControl({ id, type, value, options, required, told, label, rest }) {
  const shared = { id, required, "aria-describedby": told, ...rest };
  if (type === "select") {
    return h("select", shared, ...options.map(([key, text]) => h("option", { value: key, selected: key === (value ?? "") }, text)));
  }
  if (type === "textarea") {
    const made = h("textarea", { rows: 4, ...shared });
    made.value = value ?? "";
    return made;
  }
  if (type === "checkbox") return h("input", { type, ...shared, checked: Boolean(value) });
  if (type === "checkboxes") {
    return h("fieldset", { id, "aria-describedby": told }, h("legend", {}, label), ...options.map(([key, text]) =>
      h("label", { class: "check" }, h("input", { type: "checkbox", value: key, checked: (value ?? []).includes(key) }), text)));
  }
  const isNumber = ["number", "money"].includes(type);
  const made = h("input", { type: isNumber ? "text" : type, inputmode: isNumber ? "decimal" : null, autocomplete: "off", spellcheck: "false", ...shared });
  made.value = (WRITERS[type]?.(value) ?? value) ?? "";
  return made;
}

/** A Unix time as the browser's field has it, in the local zone. */
function local(seconds) {
  if (!Number.isFinite(seconds) || seconds === null) return null;
  const at = new Date(Math.floor(seconds) * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

const WRITERS = { money: fromNanos, "datetime-local": local };
const readText = (control) => (control.value.trim() === "" ? null : control.value.trim());
const READERS = {
  number: (control) => asNumber(readText(control)),
  money: (control) => toNanos(asNumber(readText(control))),
  checkbox: (control) => control.checked,
  checkboxes: (control) => [...control.querySelectorAll("input:checked")].map((box) => box.value),
  "datetime-local": (control) => (control.value ? new Date(control.value).getTime() / 1000 : null),
};

const GROUPED = /^\d{1,3}([,_'\s]\d{3})+$/;

/** Parses a number. Invalid input is returned unchanged, so that the API reports the error. */
function asNumber(text) {
  const plain = text && GROUPED.test(text) ? text.replaceAll(/\D/g, "") : text;
  return plain && Number.isFinite(Number(plain)) ? Number(plain) : text;
}

/** The field of an error: `limits.tokens_per_day` falls back to the field `tokens_per_day`. */
function blamed(fields, param) {
  if (!param) return null;
  const path = param.replaceAll(/\[(\d+)\]/g, ".$1").split(".");
  const names = path.map((_, i) => path.slice(i).join(".")).concat(path.toReversed());
  for (const name of names) {
    const found = fields.find((each) => each.name === name);
    if (found) return found;
  }
  return null;
}

/**
 * A form. `send(values)` submits it; its error is shown at the field that it names, else above the buttons. `body` is
 * an element that contains the fields already. `consequence(values)` returns what the values would stop: a sentence
 * that has to be confirmed first, or null.
 */
export function form({ fields, action, send, consequence = () => null, body = null, cancel = null, kind = "primary", layout = "" }) {
  const failure = h("p", { class: "error", role: "alert" });
  const submit = h("button", { type: "submit", class: kind }, action);
  const made = h("form", { novalidate: true, class: `form ${layout}`, onsubmit }, ...(body ? [body] : fields.map(({ element }) => element)),
    failure,
    h("div", { class: "buttons" }, cancel && h("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel"), submit));

  async function onsubmit(event) {
    event.preventDefault();
    fields.forEach((each) => each.fail(""));
    fill(failure);
    const absent = fields.find((each) => each.control.required && each.control.value.trim() === "");
    if (absent) return refuse(absent, "This is required.");
    submit.disabled = true;
    try {
      const values = Object.fromEntries(fields.map((each) => [each.name, each.read()]));
      const stops = consequence(values);
      if (!stops || (await confirm(`${action}?`, stops, action))) await send(values);
    } catch (error) {
      const place = error instanceof ApiError ? blamed(fields, error.param) : null;
      const text = error instanceof ApiError ? error.message : `The gateway did not answer: ${error.message}`;
      if (place) refuse(place, text);
      else fill(failure, text);
    } finally {
      submit.disabled = false;
    }
    return undefined;
  }

  function refuse(place, text) {
    place.fail(text);
    place.control.focus();
  }
  return made;
}

/** A form in a dialog. Resolves with the result of `send`, or undefined if it was closed. */
export function formDialog(title, { intro = null, send, ...rest }) {
  return openDialog(title, (close) => [
    intro && h("p", { class: "note" }, intro),
    form({ ...rest, cancel: () => close(undefined), send: async (values) => close((await send(values)) ?? true) }),
  ].filter(Boolean));
}
