// What the site's search finds, by its own scripts: node search.mjs SITE < questions, one a line.
import fs from "node:fs";
import path from "node:path";

const site = process.argv[2];
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find(name => /^search\..*js$/.test(name));
let listener, sent;
globalThis.self = globalThis.window = globalThis;
globalThis.location = {protocol: "http:"};
globalThis.addEventListener = (_, called) => { listener = called; };
(0, eval)(fs.readFileSync(path.join(folder, worker), "utf8"));
globalThis.Worker = class { postMessage(message) { sent = message; } };
(0, eval)(fs.readFileSync(path.join(site, "search-iframe-worker.js"), "utf8"));

const ask = message => new Promise(done => {
  globalThis.postMessage = answer => done(answer.data);
  listener({data: message});
});
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
await ask({type: 0, data: {...index, options: {suggest: true}}});
for (const question of fs.readFileSync(0, "utf8").trim().split("\n")) {
  new window.Worker("").postMessage({type: 2, data: question});
  const pages = (await ask(sent)).items.map(found => found[0].location.replace(/\.html.*/, ""));
  console.log(JSON.stringify([...new Set(pages)]));
}
