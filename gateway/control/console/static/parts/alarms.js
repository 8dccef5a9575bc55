// Conditions that need attention, a sentence each: who is affected, since when, and why.

import { fill, h } from "../dom.js";
import { moment } from "../format.js";
import { link } from "./pieces.js";

const PLACES = {
  first_token: ({ lane }) => [`#/requests?lane=${lane}&slowest=ttft`, "The slowest"],
  pace: ({ lane }) => [`#/requests?lane=${lane}&slowest=total`, "The slowest"],
  goodput: ({ lane }) => [`#/requests?lane=${lane}&slowest=total`, "The slowest"],
  waiting: ({ lane }) => [`#/requests?lane=${lane}&state=queued`, "Those that wait"],
  refusals: () => ["#/requests?outcome=rejected", "The refused"],
  no_worker: () => ["#/workers", "Workers"],
};

/** Returns `{element, update(alarms), store(since)}`. */
export function alarmList() {
  const element = h("div", { class: "alarms", "aria-live": "polite" });
  let [alarms, away, drawn] = [[], null, "[]"];

  function draw() {
    const shown = [...(away === null ? [] : [storeAway(away)]), ...alarms];
    const text = JSON.stringify(shown);
    if (text === drawn) return;
    drawn = text;
    fill(element, ...shown.map(sentence));
  }
  return {
    element,
    update(found) {
      alarms = found;
      draw();
    },
    store(since) {
      away = since;
      draw();
    },
  };
}

const storeAway = (since) => ({ kind: "store", severity: "bad", since, what: "The store does not answer",
  why: "the figures below are older, streams go on, and new requests may be refused with 503 quota_store_unavailable" });

function sentence(alarm) {
  const [href, label] = PLACES[alarm.kind]?.(alarm) ?? [];
  return h("p", { class: `alarm ${alarm.severity}` }, h("strong", {}, alarm.what), ", since ", moment(alarm.since), ": ", alarm.why, ". ", href && link(href, label));
}
