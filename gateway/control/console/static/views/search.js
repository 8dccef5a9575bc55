// The search dialog: pages at once, then what the gateway finds. Arrow keys choose, Enter opens.

import { get } from "../api.js";
import { fill, freshId, h, named } from "../dom.js";
import { openDialog } from "../parts/dialog.js";

const WAITS_MS = 120;
const MOST_PAGES = 6;
/** A tenant's key; only its public id is sent. */
const SECRET = /^fl-([a-z2-7]{16})-/;
const PLACES = {
  request: ({ id }) => `requests/${encodeURIComponent(id)}`,
  tenant: ({ id }) => `tenants/${encodeURIComponent(id)}`,
  key: ({ tenant }) => `tenants/${encodeURIComponent(tenant)}?tab=keys`,
  worker: ({ id }) => `workers?worker=${encodeURIComponent(id)}`,
  model: ({ id }) => `models?model=${encodeURIComponent(id)}`,
};

/** `pages`: a list of `{path, name}`. */
export function openSearch(pages) {
  return openDialog("Search", (close) => {
    const listId = freshId("found");
    const list = h("ul", { id: listId, class: "found", role: "listbox", "aria-label": "Results" });
    const said = h("p", { class: "hint", role: "status" });
    const input = h("input", { type: "search", role: "combobox", autocomplete: "off", spellcheck: "false", maxlength: 200, autofocus: true,
      "aria-label": "Search", "aria-controls": listId, "aria-expanded": "true", "aria-autocomplete": "list",
      placeholder: "Request id, tenant, key, worker, model or page", oninput: ask, onkeydown: press });
    let options = [];
    let chosen = 0;
    let asked = new AbortController();
    let timer = 0;
    let isWaiting = false;
    let goes = false;

    function ask() {
      const text = input.value.trim();
      asked.abort();
      asked = new AbortController();
      clearTimeout(timer);
      goes = false;
      isWaiting = text !== "";
      show(pagesOf(pages, text), isWaiting ? "Searching…" : "");
      if (isWaiting) timer = setTimeout(() => read(text, asked.signal), WAITS_MS);
    }
    async function read(text, signal) {
      let note = "";
      let found = pagesOf(pages, text);
      try {
        const { data } = await get("/search", { q: SECRET.exec(text)?.[1] ?? text }, signal);
        const places = data.map((each) => ({ ...each, place: PLACES[each.kind](each) }));
        const isFirst = ({ id }) => id.toLowerCase().startsWith(text.toLowerCase());
        found = [...found.filter(isFirst), ...places, ...found.filter((each) => !isFirst(each))];
        note = found.length ? `${found.length} found` : "Nothing is found. A request, key or response is found by its whole id.";
      } catch (error) {
        if (signal.aborted) return;
        note = `Not searched: ${error.message}`;
      }
      isWaiting = false;
      show(found, note);
      if (goes) go();
    }
    function show(found, note) {
      options = found;
      fill(list, ...found.map((each, i) => option(each, `${listId}-${i}`, () => go(i))));
      said.textContent = note;
      choose(0);
    }
    function choose(at) {
      chosen = Math.max(0, Math.min(at, options.length - 1));
      [...list.children].forEach((each, i) => each.setAttribute("aria-selected", String(i === chosen)));
      const active = list.children[chosen];
      active?.scrollIntoView({ block: "nearest" });
      if (active) input.setAttribute("aria-activedescendant", active.id);
      else input.removeAttribute("aria-activedescendant");
    }
    function go(at = chosen) {
      if (!options[at]) return;
      location.hash = `#/${options[at].place}`;
      close(true);
    }
    function press(event) {
      const step = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: options.length, PageUp: 0 }[event.key];
      if (step !== undefined) choose(step);
      else if (event.key === "Escape") close(); // the browser would only clear the field
      else if (event.key !== "Enter") return;
      else if (isWaiting) goes = true; // opened once the answer is here
      else go();
      event.preventDefault();
    }
    show(pagesOf(pages, ""), "");
    return [input, list, said];
  });
}

function pagesOf(pages, text) {
  const wanted = text.toLowerCase();
  return pages.filter(({ name }) => name.toLowerCase().includes(wanted)).slice(0, MOST_PAGES).map(({ path, name }) => ({ kind: "page", id: name, place: path }));
}

function option({ kind, id, name, tenant }, elementId, onclick) {
  return h("li", { id: elementId, role: "option", "aria-selected": "false", onclick },
    h("span", { class: "badge" }, kind), named(id, kind === "page" ? "name" : "id"),
    h("span", { class: "muted" }, name && name !== id ? named(name) : null, tenant ? [" of ", named(tenant)] : null));
}
