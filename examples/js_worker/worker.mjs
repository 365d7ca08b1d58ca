// A worker in plain JavaScript: node 18 or later, no packages. It runs the tasks below until it is stopped.
//
//   taskq web DIR --port 8765 --allow-actions --token-file token &
//   TASKQ_URL=http://127.0.0.1:8765 TASKQ_TOKEN=$(cat token) node examples/js_worker/worker.mjs
//
// A job is {id, task, queue, attempt, headers, payload}; the arguments of a call stand in payload.data.

const { TASKQ_URL: url, TASKQ_TOKEN: token, TASKQ_QUEUE: queue = "js" } = process.env;
const LEASE_SECONDS = 30;

const tasks = {
  "text.upper": async ({ text }) => text.toUpperCase(),
  "orders.total": async ({ prices }) => prices.reduce((sum, price) => sum + price, 0),
};

async function post(path, body = {}, signal = undefined) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const answer = await fetch(`${url}/api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(told.detail), { status: answer.status });
  return told;
}

async function run(job) {
  const claim = `claims/${job.token}`;
  // A job that takes longer than its lease goes to others unless the lease is extended; 409 says that it was cancelled.
  const beat = setInterval(() => post(`${claim}/extend`, { seconds: LEASE_SECONDS }).catch(() => {}), (LEASE_SECONDS * 1000) / 3);
  try {
    const task = tasks[job.task];
    if (!task) throw new Error(`this worker has no task ${job.task}`);
    const data = (await task(job.payload.data)) ?? null;
    await post(`${claim}/ack`, { result: { encoding: "json", data } });
    console.log(`succeeded ${job.task} ${job.id}`);
  } catch (error) {
    if (error.status === 409) return console.log(`lost ${job.task} ${job.id}: ${error.message}`);
    // The first line is what failures are told apart by: the class, and what it says.
    await post(`${claim}/nack`, { reason: `${error.name}: ${error.message}\n${error.stack}` }).catch(() => {});
    console.log(`failed ${job.task} ${job.id}: ${error.message}`);
  } finally {
    clearInterval(beat);
  }
}

// Whoever hangs up while it waits has claimed nothing.
const stopping = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stopping.abort());
while (!stopping.signal.aborted) {
  try {
    const jobs = await post("claims", { queues: [queue], count: 8, wait: 20, lease: LEASE_SECONDS }, stopping.signal);
    await Promise.all(jobs.map(run));
  } catch (error) {
    if (stopping.signal.aborted) break;
    console.error(`${error.message}: asking again in a second`);
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}
