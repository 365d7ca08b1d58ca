// Shows the page anew every two seconds, unless somebody reads or writes in it just then.
"use strict";
const EVERY_MS = 2000;
async function renew() {
  const main = document.getElementById("main");
  const busy = main.contains(document.activeElement) || main.querySelector("details[open]") || !getSelection().isCollapsed;
  if (!document.hidden && !busy) {
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main.replaceChildren(...page.getElementById("main").childNodes);
      }
    } catch { /* it was stopped: what is shown stays */ }
  }
  setTimeout(renew, EVERY_MS);
}
setTimeout(renew, EVERY_MS);
