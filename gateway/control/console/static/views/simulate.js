// The real scheduler in virtual time over a trace, recorded here or uploaded.

import { change, getIfThere, upload } from "../api.js";
import { fill, h, toast } from "../dom.js";
import { ago, bytes } from "../format.js";
import { field, form } from "../parts/dialog.js";
import { card, loading, missing, pageHead } from "../parts/pieces.js";
import { simulated } from "../parts/simulated.js";
import { mayChange } from "../session.js";

const UPLOAD_MS = 600_000;
const RUN_MS = 900_000;

export async function simulate(root, { signal }) {
  root.append(pageHead("Simulate", "The real scheduler in virtual time over a trace of requests: the effect of other loads or fewer workers on each lane."));
  const first = await getIfThere("/traces", { limit: 100 }, signal);
  if (first === null) return void root.append(missing("simulations"));

  if (!mayChange()) return void root.append(h("p", { class: "card empty" }, "Your role may not run simulations: that requires an operator."));

  const trace = field({ name: "trace", label: "Trace", type: "select", options: [], required: true });
  const file = h("input", { type: "file", "aria-label": "Send a trace", onchange: send });
  const told = h("p", { class: "hint", "aria-live": "polite" }, "Or upload one: recorded by Fairlane, in Mooncake's format, or CSV with arrival_s, prompt_tokens, output_tokens.");
  const place = h("div", { class: "stack", "aria-live": "polite" });
  show(first.data);

  function show(traces, chosen = traces[0]?.name) {
    const options = traces.map(({ name, kind, bytes: size, changed_at: at }) => h("option", { value: name, selected: name === chosen }, `${kind} ${ago(at).textContent}, ${bytes(size)} (${name})`));
    fill(trace.control, ...(options.length ? options : [h("option", { value: "" }, "none is here yet")]));
  }
  async function send() {
    const [chosen] = file.files;
    if (!chosen) return;
    fill(told, `Sending ${bytes(chosen.size)}…`);
    try {
      const made = await upload("/traces", chosen, UPLOAD_MS);
      show((await getIfThere("/traces", { limit: 100 }, signal)).data, made.name);
      fill(told, "The trace is uploaded and selected above.");
      toast("The trace is sent.");
    } catch (error) {
      fill(told, h("span", { class: "error" }, error.message));
    }
    file.value = "";
  }
  async function run(values) {
    fill(place, loading());
    try {
      fill(place, simulated(await change("POST", "/simulations", asked(values), { patience: RUN_MS }), signal));
    } catch (error) {
      fill(place);
      throw error;
    }
  }
  root.append(card(null, form({
    action: "Simulate",
    layout: "two",
    fields: [
      { ...trace, element: h("div", { class: "field" }, trace.element, file, told) },
      field({ name: "loads", label: "Loads", value: "1", hint: "Multiples of the recorded speed: up to five, separated by commas." }),
      field({ name: "workers", label: "Workers", type: "number", hint: "Empty: the current number of workers." }),
      field({ name: "hardware", label: "Hardware", hint: "For example h100-8b; empty: the measurements of a live worker." }),
      field({ name: "start_s", label: "Leave out the first", type: "number", hint: "seconds of the trace" }),
      field({ name: "duration_s", label: "Play", type: "number", hint: "seconds from there; empty: all" }),
      field({ name: "latency_share", label: "Share of the latency lane", type: "number", value: 0.3, hint: "0 to 1, used if the trace names no lanes." }),
      field({ name: "tenants", label: "Tenants", type: "number", value: 8, hint: "Used if the trace names none." }),
      field({ name: "bad_rows", label: "Unusable rows", type: "select", options: [["skip", "leave them out"], ["fail", "refuse the trace"]] }),
    ],
    send: run,
  })), place);
}

/** The body of the call, without empty fields. */
function asked(values) {
  const loads = String(values.loads ?? "1").split(",").map((each) => (Number.isFinite(Number(each)) ? Number(each) : each.trim()));
  return Object.fromEntries(Object.entries({ ...values, loads }).filter(([, value]) => value !== null));
}

