// Sign-in with the admin key or a token, or with an identity provider if one is configured.

import { SignedOut } from "../api.js";
import { fill, h, named } from "../dom.js";
import { field, form } from "../parts/dialog.js";
import { signIn, singleSignOn } from "../session.js";

export function showSignIn(main, begin, reason) {
  const key = field({
    name: "key",
    label: "Admin key or token",
    type: "password",
    hint: "Signs this browser in for eight hours. The key itself is not stored.",
    required: true,
  });
  key.control.autocomplete = "current-password";
  const reasonShown = h("p", { class: "note", role: "status" }, reason);
  const others = h("div", { class: "other-ways" });
  const sheet = form({
    fields: [key],
    action: "Sign in",
    async send({ key: given }) {
      key.control.value = "";
      try {
        await begin(await signIn(given));
      } catch (error) {
        if (!(error instanceof SignedOut)) throw error;
        key.fail("This key is not accepted.");
        key.control.focus();
      }
    },
  });
  const card = h("section", { class: "card sign-in" }, h("h1", {}, "Sign in"), reasonShown, sheet, others);
  fill(main, card);
  key.control.focus();
  const provider = singleSignOn();
  if (provider) fill(others, h("p", {}, "or"), h("a", { class: "button", href: provider.url }, "Sign in with ", named(provider.name)));
}
