// Shows a page anew every two seconds, unless somebody reads or writes in it just then; "/" finds, buttons copy.
"use strict";
const EVERY_MS = 2000;
const main = document.getElementById("main");
const opened = (root) => [...root.querySelectorAll("details")].map((one) => one.open);
const prepare = () => main.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
let shown = opened(main).join();
async function renew() {
  const busy = main.contains(document.activeElement) || opened(main).join() !== shown || !getSelection().isCollapsed;
  if (!document.hidden && !busy) {
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main.replaceChildren(...page.getElementById("main").childNodes);
        shown = opened(main).join();
        prepare();
      }
    } catch { /* it was stopped: what is shown stays */ }
  }
  setTimeout(renew, EVERY_MS);
}
prepare();
if ("live" in document.body.dataset) setTimeout(renew, EVERY_MS);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
  event.preventDefault();
  const field = document.getElementById("q");
  if (field) field.focus(); else location.href = document.querySelector("nav a[href$='/jobs']").href;
});
document.querySelector("[data-slide]")?.addEventListener("change", (event) => event.target.form.submit());
main.addEventListener("click", async (event) => {
  if (!event.target.matches("[data-copy]")) return;
  await navigator.clipboard.writeText(event.target.previousElementSibling.textContent);
  event.target.textContent = "Copied";
});
