// Shows a page anew every two seconds, unless somebody reads or writes in it just then; "/" finds, buttons copy.
"use strict";
const EVERY_MS = 2000;
const main = document.getElementById("main");
const opened = (root) => [...root.querySelectorAll("details")].map((one) => one.open);
const prepare = () => main.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
let shown = opened(main).join();
const fresh = document.getElementById("fresh");
let updated = Date.now(), trouble = "";
// Tells how old the page is, and why it is not renewed: what is shown must not pass for what is.
function tell() {
  const seconds = Math.round((Date.now() - updated) / 1000);
  fresh.hidden = false;
  fresh.className = trouble ? "standing bad" : "note";
  const [said, age] = fresh.children;
  if (said.textContent !== trouble) said.textContent = trouble;  // read aloud once, and not each second
  age.textContent = trouble ? `This is how it was ${seconds} s ago.` : `updated ${seconds} s ago`;
}
async function renew() {
  const busy = main.contains(document.activeElement) || opened(main).join() !== shown || !getSelection().isCollapsed;
  if (!document.hidden && (trouble || !busy)) {
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!busy) {
          main.replaceChildren(...page.getElementById("main").childNodes);
          shown = opened(main).join();
          prepare();
          updated = Date.now();
        }
        trouble = "";
      } else if (answer.status === 401) trouble = "This browser is not known any more: open the address that the server printed at its start.";
      else trouble = `The server answers ${answer.status}; it is asked again every ${EVERY_MS / 1000} s.`;
    } catch { trouble = `The server does not answer; it is asked again every ${EVERY_MS / 1000} s.`; }
  }
  setTimeout(renew, EVERY_MS);
}
prepare();
if ("live" in document.body.dataset) { setTimeout(renew, EVERY_MS); setInterval(tell, 1000); }
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
