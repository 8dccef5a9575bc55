// Who may operate, and as what.

import { missing, pageHead } from "../parts/pieces.js";

export async function access(root) {
  root.append(pageHead("Access", "Who operates this installation, and as what."), missing("named operators"));
}
