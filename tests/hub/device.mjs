// A second device: sends a task log to a hub, made from PROTOCOL.md alone. It enqueues nothing.
// node device.mjs DIR URL TOKEN [--down]
import { readFileSync, readdirSync, existsSync } from 'node:fs'

const [dir, url, token, down] = process.argv.slice(2)
const identity = JSON.parse(exact(readFileSync(`${dir}/taskq.json`, 'utf8')))
const NOWHERE = [0n, 0, 0, '']
let partBytes = 1 << 20

// Numbers that JavaScript cannot hold become text, and BigInt where they are used.
function exact(text) {
  return text.replace(/([[,:]\s*)(\d{16,})(?=\s*[,}\]])/g, '$1"$2"')
}

function stop(why) {
  console.error(`device: ${why}`)
  process.exit(1)
}

const place = ([segment, offset, frame, stem]) => `[${segment},${offset},${frame},"${stem}"]`
const read = ([segment, offset, frame, stem]) => [BigInt(segment), offset, frame, stem]
const same = (a, b) => place(a) === place(b)
const nameOf = (segment) => String(segment).padStart(20, '0')

// -- the log ------------------------------------------------------------------------------------

class Segment {
  constructor(name) {
    this.first = BigInt(name)
    this.data = readFileSync(`${dir}/log/${nameOf(this.first)}.log`)
    this.link = [this.data.readUInt32LE(12), this.data.readUInt32LE(60)]
    this.frames = [] // a position behind each whole frame, and whether it holds records
    for (let at = 64; at + 56 <= this.data.length; ) {
      if (this.data.readUInt32LE(at) !== 0xf3514b54) break
      const end = at + ((56 + this.data.readUInt32LE(at + 4) + 7) & ~7)
      if (end > this.data.length) break
      const stem = this.data.subarray(at, at + 56).toString('hex')
      this.frames.push({ at: [this.first, end, at, stem], full: this.data.readUInt32LE(at + 8) > 0 })
      at = end
    }
  }
  // A sync point that ends the log is not sent: a recovery may take it back.
  end(isLast) {
    const frames = isLast ? this.frames.filter((frame) => frame.full) : this.frames
    return frames.length ? frames.at(-1).at : null
  }
}

const names = readdirSync(`${dir}/log`).filter((name) => /^\d{20}\.log$/.test(name)).sort()
let segments = names.map((name) => new Segment(name.slice(0, 20)))
// One without frames counts for nothing.
while (segments.length && !segments.at(-1).end(true)) segments.pop()
const ends = segments.map((segment, n) => segment.end(n === segments.length - 1))
const last = ends.at(-1) ?? NOWHERE

// -- the line -----------------------------------------------------------------------------------

async function request(method, path, headers, body) {
  const head = { Authorization: `Bearer ${token}`, 'Taskq-Versions': '1', ...headers }
  const answer = await fetch(url + path, { method, headers: head, body })
  const text = await answer.text()
  const isJson = /[/+]json$/.test(answer.headers.get('content-type') ?? '')
  return { status: answer.status, text, values: isJson ? JSON.parse(exact(text)) : {} }
}

async function post(path, json) {
  const answer = await request('POST', path, { 'Content-Type': 'application/json' }, json)
  if (answer.status >= 300) stop(`${path}: ${answer.status} ${answer.text}`)
  return answer
}

// Send frames, as many at a time as fit; a larger one goes in pieces. `cut` says where whole frames end.
async function parts(session, from, to, data, cut, placeAt, before) {
  for (let held = 0; from < to; ) {
    const end = cut(from, Math.min(from + partBytes, to))
    const piece = data.subarray(from + held, Math.min(end, from + held + partBytes))
    const fields = `{"session":${session},"log_id":"${identity.log_id}","after":${place(placeAt(from))},` +
      `"held":${held},"before":"${from ? '' : before}"}`
    const headers = { 'Content-Type': 'application/vnd.taskq.frames', 'Taskq-Append': fields }
    const answer = await request('POST', '/append', headers, piece)
    if (answer.status === 413 && partBytes > 65536) partBytes = Math.max(partBytes >> 1, 65536)
    else if (answer.status !== 200) stop(`/append: ${answer.status} ${answer.text}`)
    else if (answer.values.held) held = answer.values.held
    else [from, held] = [end, 0]
  }
}

// -- a session ----------------------------------------------------------------------------------

const clock = process.env.CLOCK_NS ?? `${BigInt(Date.now()) * 1000000n}`
const synced = (await post('/sync',
  `{"log_id":"${identity.log_id}","created_ns":${identity.created_ns},` +
  `"incompat":${JSON.stringify(identity.features.incompat)},"end":${place(last)},` +
  `"parents":[${identity.parents.map((one) => `["${one.log_id}",${one.next_lsn}]`)}],` +
  `"grace_seconds":172800,"machine":"","clock_ns":${clock}}`)).values
const session = synced.session, at = read(synced.at)

const known = (segment, place = at) => segment.frames.some((frame) => same(frame.at, place))
const kin = read(synced.kin)
if (kin[0] >= (segments[0]?.first ?? kin[0] + 1n) && !segments.some((segment) => known(segment, kin)))
  stop('the hub has other records of a parent: nothing was sent, let a person look')
let from = segments.findIndex((segment) => segment.first === at[0])
const stands = from >= 0 && (at[1] === 0 || known(segments[from]))
const crc = Buffer.from(at[3].slice(104), 'hex')
const follows = segments.length && at[3] && segments[0].link[0] === at[2] &&
  segments[0].link[1] === crc.readUInt32LE(0)
if (at[0] === 0n || (follows && !stands)) from = 0
else if (!stands) stop('the hub has what does not stand here: nothing was sent, let a person look')

for (let n = from; n < segments.length; n++) {
  const segment = segments[n], end = ends[n]
  const begin = stands && n === from ? at[1] : 0
  const placeAt = (offset) => segment.frames.find((frame) => frame.at[1] === offset)?.at ?? [segment.first, 0, 0, '']
  const cut = (offset, limit) => {
    const behind = segment.frames.map((frame) => frame.at[1]).filter((place) => place > offset)
    return behind.filter((place) => place <= limit).at(-1) ?? behind[0]
  }
  await parts(session, begin, end[1], segment.data, cut, placeAt, ends[n - 1]?.[3] ?? '')
}

if (down) {
  const ask = `{"session":${session},"log_id":"${identity.log_id}","after":{},` +
    '"wait_seconds":0.0,"bytes_max":1048576}'
  const given = (await post('/down', ask)).text
  for (const job of given ? JSON.parse(given).jobs : []) console.log(job.task)
}
console.log(`in sync up to lsn ${identity.log_id} ${last[0]}:${last[1]}`)
