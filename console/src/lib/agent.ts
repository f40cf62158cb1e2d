// The agent of a sandbox: its processes and files; and its interpreter. They are
// reached below /agent of the console's own origin, with the sandbox's tokens and
// never with the session.
import { Failure, failureOf, post, token } from './api'

const agentPort = '49983'
const interpPort = '49999'
export const user = 'user'

interface Access {
  state: string
  envdAccessToken?: string
  trafficAccessToken?: string
}

// Tokens of sandboxes, as each session got them.
const known = new Map<string, Promise<Access>>()
const name = (id: string) => token() + ' ' + id

// access asks for the token of a sandbox, which neither wakes nor extends it.
function access(id: string): Promise<Access> {
  const of = name(id)
  let a = known.get(of)
  if (!a) {
    a = post<Access>(`/cay/v1/sandboxes/${id}/access`)
    known.set(of, a)
    a.catch(() => known.delete(of))
  }
  return a
}

function headersFor(a: Access, id: string, port: string, as: string): Record<string, string> {
  const out: Record<string, string> = { 'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': port }
  if (a.envdAccessToken) out['X-Access-Token'] = a.envdAccessToken
  if (port === agentPort) out.Authorization = 'Basic ' + btoa(as + ':')
  else if (a.trafficAccessToken) out['E2b-Traffic-Access-Token'] = a.trafficAccessToken
  return out
}

async function call(id: string, path: string, init: RequestInit & { as?: string; port?: string } = {}, again = true): Promise<Response> {
  const port = init.port ?? agentPort
  const h = new Headers(init.headers)
  for (const [name, value] of Object.entries(headersFor(await access(id), id, port, init.as ?? user))) h.set(name, value)
  let answer: Response
  try {
    answer = await fetch('/agent' + path, { ...init, headers: h, redirect: 'error', credentials: 'omit', cache: 'no-store' })
  } catch (e) {
    if (init.signal?.aborted) throw e
    throw new Failure(0, 'The connection to the sandbox broke.')
  }
  if (answer.ok) return answer
  const fail = await failureOf(answer)
  const asked = fail.code.startsWith('command_') // code without a yes: another try asks anew
  if ((fail.status === 401 || (fail.status === 403 && port !== agentPort && !asked)) && again) {
    known.delete(name(id)) // a rollback or a fork may have changed it
    return call(id, path, init, false)
  }
  throw fail
}

// unary makes a call of the Connect protocol, in JSON.
export async function unary<T = any>(id: string, method: string, body: unknown, as?: string): Promise<T> {
  const answer = await call(id, '/' + method, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Connect-Protocol-Version': '1' },
    body: JSON.stringify(body),
    as,
  })
  return answer.json()
}

// stream makes a call whose answer goes on: each message has a byte of flags and
// four of its length before it. begun is told the head of the answer.
export async function* stream(
  id: string, method: string, body: unknown, signal: AbortSignal, o: { headers?: Record<string, string>; begun?: (head: Headers) => void } = {},
): AsyncGenerator<any> {
  const text = new TextEncoder().encode(JSON.stringify(body))
  const frame = new Uint8Array(5 + text.length)
  new DataView(frame.buffer).setUint32(1, text.length)
  frame.set(text, 5)
  const answer = await call(id, '/' + method, {
    method: 'POST',
    headers: { 'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': '1', ...o.headers },
    body: frame,
    signal,
  })
  o.begun?.(answer.headers)
  const from = answer.body!.getReader()
  let have = new Uint8Array(0)
  const decoder = new TextDecoder()
  try {
    for (;;) {
      const { value, done } = await from.read().catch((e) => {
        if (signal.aborted) throw e
        throw new Failure(0, 'The connection to the sandbox broke.')
      })
      if (done) throw new Failure(0, 'The connection to the sandbox broke.')
      const more = new Uint8Array(have.length + value.length)
      more.set(have)
      more.set(value, have.length)
      have = more
      while (have.length >= 5) {
        const size = new DataView(have.buffer, have.byteOffset).getUint32(1)
        if (size > 64 << 20) throw new Failure(0, 'The sandbox sent what is no message.')
        if (have.length < 5 + size) break
        const message = JSON.parse(decoder.decode(have.subarray(5, 5 + size)) || '{}')
        const last = have[0] & 2
        have = have.slice(5 + size)
        if (!last) {
          yield message
          continue
        }
        if (message.error) throw new Failure(500, message.error.message ?? message.error.code, message.error.code)
        return
      }
    }
  } finally {
    from.cancel().catch(() => {})
  }
}

export interface Entry {
  name: string
  type: string
  path: string
  size?: string | number
  permissions?: string
  owner?: string
  group?: string
  modifiedTime?: string
  symlinkTarget?: string
  isSymlink?: boolean
}

export const isDir = (e: Entry) => e.type === 'FILE_TYPE_DIRECTORY'

// entriesOf takes what a guest lists, which may name a path twice, or none.
function entriesOf(list: unknown): Entry[] {
  const by = new Map<string, Entry>()
  for (const e of Array.isArray(list) ? list : []) if (typeof e?.path === 'string' && typeof e.name === 'string') by.set(e.path, e)
  return [...by.values()]
}

export const files = {
  list: async (id: string, path: string, as?: string): Promise<Entry[]> => entriesOf((await unary(id, 'filesystem.Filesystem/ListDir', { path, depth: 1 }, as)).entries),
  stat: async (id: string, path: string, as?: string): Promise<Entry> => (await unary(id, 'filesystem.Filesystem/Stat', { path }, as)).entry,
  mkdir: (id: string, path: string, as?: string) => unary(id, 'filesystem.Filesystem/MakeDir', { path }, as),
  move: (id: string, source: string, destination: string, as?: string) => unary(id, 'filesystem.Filesystem/Move', { source, destination }, as),
  remove: (id: string, path: string, as?: string) => unary(id, 'filesystem.Filesystem/Remove', { path }, as),
  read: (id: string, path: string, as?: string, signal?: AbortSignal) => call(id, '/files?' + new URLSearchParams({ path, username: as ?? user }), { signal, as }),
  tar: (id: string, path: string, as?: string, signal?: AbortSignal) => call(id, '/files/tar?' + new URLSearchParams({ path, username: as ?? user }), { signal, as }),
  write: (id: string, path: string, body: Blob | string, as?: string, signal?: AbortSignal) =>
    call(id, '/files?' + new URLSearchParams({ path, username: as ?? user }), { method: 'POST', headers: { 'Content-Type': 'application/octet-stream' }, body, signal, as }),
}

// upload writes a file and tells how much of it is sent, which fetch does not.
export async function upload(id: string, path: string, body: Blob, as: string, sent: (bytes: number) => void, signal: AbortSignal, again = true): Promise<void> {
  const of = name(id)
  const h = headersFor(await access(id), id, agentPort, as)
  const answer = await new Promise<Response>((done, fail) => {
    const r = new XMLHttpRequest()
    r.open('POST', '/agent/files?' + new URLSearchParams({ path, username: as }))
    for (const [name, value] of Object.entries({ ...h, 'Content-Type': 'application/octet-stream' })) r.setRequestHeader(name, value)
    r.upload.onprogress = (e) => sent(e.loaded)
    r.onload = () => done(new Response(r.status === 204 ? null : r.responseText, { status: r.status, headers: { 'content-type': r.getResponseHeader('content-type') ?? '' } }))
    r.onerror = () => fail(new Failure(0, 'The connection to the sandbox broke.'))
    r.onabort = () => fail(new Failure(0, 'It was cancelled.'))
    const stop = () => r.abort()
    signal.addEventListener('abort', stop)
    r.onloadend = () => signal.removeEventListener('abort', stop)
    if (signal.aborted) return fail(new Failure(0, 'It was cancelled.'))
    r.send(body)
  })
  if (answer.status === 401 && again) {
    known.delete(of)
    return upload(id, path, body, as, sent, signal, false)
  }
  if (!answer.ok) throw await failureOf(answer)
}

const piece = 32 << 20

// blob reads an answer and tells how much of it has come. Each piece goes to the
// browser at once, which keeps large ones on disk: the page's memory has one.
export async function blob(answer: Response, came: (bytes: number) => void, signal: AbortSignal): Promise<Blob> {
  const from = answer.body!.getReader()
  const pieces: Blob[] = []
  let some: Uint8Array<ArrayBuffer>[] = []
  let held = 0
  let all = 0
  for (;;) {
    const { value, done } = await from.read().catch(() => {
      throw new Failure(0, signal.aborted ? 'It was cancelled.' : 'The connection to the sandbox broke.')
    })
    if (done) return new Blob([...pieces, ...some])
    some.push(value)
    held += value.length
    came((all += value.length))
    if (held < piece) continue
    pieces.push(new Blob(some))
    some = []
    held = 0
  }
}

export interface Context {
  id: string
  language: string
  cwd: string
}

// interp is the code interpreter, where the template has one.
export const interp = {
  // there says whether it answers: a template without one has nothing at its port.
  there: async (id: string): Promise<boolean> => {
    try {
      await call(id, '/health', { port: interpPort })
      return true
    } catch (e) {
      if ((e as Failure).status === 503) return true // it starts
      if ((e as Failure).status >= 500 || (e as Failure).status === 404) return false
      throw e
    }
  },
  contexts: async (id: string): Promise<Context[]> => (await call(id, '/contexts', { port: interpPort })).json(),
  create: async (id: string, language: string): Promise<Context> => (await interpPost(id, '/contexts', { language })).json(),
  restart: (id: string, context: string) => interpPost(id, `/contexts/${encodeURIComponent(context)}/restart`, {}),
  // run runs code and gives its events; the code is interrupted when signal says so.
  async *run(id: string, body: { code: string; language?: string; context_id?: string }, signal: AbortSignal): AsyncGenerator<any> {
    const answer = await interpPost(id, '/execute', body, signal)
    const from = answer.body!.pipeThrough(new TextDecoderStream()).getReader()
    let parts: string[] = [] // of a line: a result of megabytes comes in many
    try {
      for (;;) {
        const { value, done } = await from.read().catch((e) => {
          if (signal.aborted) throw e
          throw new Failure(0, 'The connection to the sandbox broke.')
        })
        if (done) throw new Failure(0, 'The connection to the sandbox broke.')
        const lines = value.split('\n')
        for (const [i, part] of lines.entries()) {
          parts.push(part)
          if (i === lines.length - 1) break
          const text = parts.join('')
          parts = []
          if (!text.trim()) continue
          const event = JSON.parse(text)
          if (event.type === 'end_of_execution') return
          yield event
        }
      }
    } finally {
      from.cancel().catch(() => {})
    }
  },
}

function interpPost(id: string, path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  return call(id, path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), signal, port: interpPort })
}

export function encode(bytes: Uint8Array): string {
  let s = ''
  for (let i = 0; i < bytes.length; i += 0x8000) s += String.fromCharCode(...bytes.subarray(i, i + 0x8000))
  return btoa(s)
}

export function decode(text: string): Uint8Array {
  const s = atob(text)
  const out = new Uint8Array(s.length)
  for (let i = 0; i < s.length; i++) out[i] = s.charCodeAt(i)
  return out
}

// save hands bytes to the person as a file.
export function save(blob: Blob, name: string) {
  const a = document.createElement('a')
  a.href = URL.createObjectURL(blob)
  a.download = name.replace(/[\u0000-\u001f\u202a-\u202e\u2066-\u2069/\\]/g, '_')
  a.click()
  setTimeout(() => URL.revokeObjectURL(a.href), 60000)
}
