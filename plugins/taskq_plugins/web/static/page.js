// Shows a page anew every two seconds, or as seldom as its server's time asks for, unless somebody reads or writes in it
// just then; leads anywhere from the box at the top; tells what a slider and a picture point at; buttons copy.
"use strict";
const EVERY_MS = 2000;
const main = document.getElementById("main"), field = document.getElementById("q"), goals = document.getElementById("goals");
const opened = (root) => [...root.querySelectorAll("details")].map((item) => item.open);
// Moments are in UTC as the server writes them, and in its titles; here they are in the browser's zone.
const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
function localise(item) {
  const at = new Date((item.dateTime ?? item.dataset.t).replace(" ", "T"));
  const here = new Date(at - at.getTimezoneOffset() * 60000).toISOString().replace("T", " ");
  const shape = /(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d(\.\d+)?)?/;
  item.textContent = item.textContent.replace(shape, (all, date) => date ? here.slice(0, all.length) : here.slice(11, 11 + all.length));
  if (item.title) item.title = `${here.slice(0, 19)} ${zone.formatToParts(at).pop().value}\n${item.title}`;
}
function prepare() {
  main.querySelectorAll("[data-copy], .all").forEach((item) => { item.hidden = false; });
  main.querySelectorAll("[datetime], [data-t]").forEach(localise);
  main.querySelectorAll("[data-heat]").forEach((item) => {
    const at = new Date(item.dataset.heat.replace(" ", "T"));
    item.setAttribute("x", at.getHours() * 50 + 60);
    item.setAttribute("y", (at.getDay() + 6) % 7 * 28);
  });
}
const named = document.getElementById("zone");
if (named) named.textContent = `Times are in ${zone.formatToParts().pop().value} (${zone.resolvedOptions().timeZone})`;
let shown = opened(main).join();
const fresh = document.getElementById("fresh");
let updated = Date.now(), trouble = "", every = EVERY_MS;
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
        // Less than a hundredth of a processor, whatever a page costs: the browser takes its part, too.
        every = Math.max(EVERY_MS, 150 * Number(/dur=([\d.]+)/.exec(answer.headers.get("Server-Timing"))?.[1] ?? 0));
      } else if (answer.status === 401) trouble = "This browser is not known any more: open the address that the server printed at its start.";
      else trouble = `The server answers ${answer.status}; it is asked again every ${EVERY_MS / 1000} s.`;
    } catch { trouble = `The server does not answer; it is asked again every ${EVERY_MS / 1000} s.`; }
  }
  setTimeout(renew, trouble ? EVERY_MS : every);
}
document.documentElement.classList.add("js");
prepare();
if ("live" in document.body.dataset) { setTimeout(renew, EVERY_MS); setInterval(tell, 1000); }
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]):not([type=range]), select, textarea");
  if (!field || !((event.key === "/" && !typing) || (event.key.toLowerCase() === "k" && (event.metaKey || event.ctrlKey)))) return;
  event.preventDefault();
  field.focus();
  field.select();
});
// The places that the letters in the box may mean, as the server tells them.
let asked = 0;
async function lead() {
  const number = ++asked, url = field.form.dataset.goals;
  const answer = await fetch(`${url}${url.includes("?") ? "&" : "?"}q=${encodeURIComponent(field.value)}`).catch(() => null);
  const text = answer?.ok ? await answer.text() : "";
  if (number !== asked || !text || goals.contains(document.activeElement)) return;  // late, or somebody is about to choose
  goals.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  goals.hidden = !goals.children.length;
}
field?.addEventListener("input", lead);
field?.addEventListener("focus", lead);
field?.form.addEventListener("keydown", (event) => {
  const places = [field, ...goals.querySelectorAll("a")], at = places.indexOf(event.target);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") { goals.hidden = true; field.focus(); }
  if (!step || goals.hidden) return;
  event.preventDefault();
  places[(at + step + places.length) % places.length].focus();
});
document.addEventListener("focusin", (event) => { if (goals && !field.form.contains(event.target)) goals.hidden = true; });
document.addEventListener("click", (event) => { if (goals && !field.form.contains(event.target)) goals.hidden = true; });
const slider = document.querySelector("[data-slide]");
slider?.addEventListener("input", () => {
  const words = slider.dataset.slide.split("|")[-slider.value];
  slider.form.querySelector("output").textContent = words;
  slider.setAttribute("aria-valuetext", words);
});
slider?.addEventListener("change", () => slider.form.submit());
// A picture tells the figures of a minute to pointers and to the arrow keys, and leads there.
function point(figure, column) {
  figure.querySelector(".here")?.classList.remove("here");
  column.classList.add("here");
  figure.parentElement.querySelector(".told").textContent = column.querySelector("title").textContent;
}
const visit = (column) => { location.href = `${column.closest("[data-figures]").dataset.figures}?at=${encodeURIComponent(column.dataset.at)}`; };
main.addEventListener("pointerover", (event) => {
  const column = event.target.closest("[data-figures] g");
  if (column) point(column.closest("[data-figures]"), column);
});
main.addEventListener("keydown", (event) => {
  if (!event.target.matches("[data-figures]")) return;
  const columns = [...event.target.querySelectorAll("g")], at = columns.findIndex((item) => item.matches(".here"));
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Enter" && at >= 0) visit(columns[at]);
  if (!step) return;
  event.preventDefault();
  point(event.target, columns[at < 0 ? columns.length - 1 : Math.min(Math.max(at + step, 0), columns.length - 1)]);
});
main.addEventListener("click", async (event) => {
  const column = event.target.closest("[data-figures] g");
  if (column) visit(column);
  if (event.target.matches("[data-all]")) event.target.form.querySelectorAll("[name=id]").forEach((box) => { box.checked = event.target.checked; });
  if (!event.target.matches("[data-copy]")) return;
  await navigator.clipboard.writeText(event.target.previousElementSibling.textContent);
  event.target.textContent = "Copied";
});
