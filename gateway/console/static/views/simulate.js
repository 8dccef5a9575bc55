// The scheduler that serves, in virtual time over a trace.

import { missing, pageHead } from "../parts/pieces.js";

export async function simulate(root) {
  root.append(pageHead("Simulate", "The scheduler that serves, in virtual time over a trace of requests."), missing("simulations"));
}
