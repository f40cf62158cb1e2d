// The server's API, below /api of the console's own origin.

const key = 'cay.session'
const teamKey = 'cay.team'

// Failure is an error that the server tells, or that it does not answer: then its
// status is 0.
export class Failure extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code = '',
  ) {
    super(message)
  }
  get away() {
    return this.status === 0 || (this.status >= 502 && this.status <= 504 && !this.code)
  }
}

// The token lies in this tab alone, or for as long as it lasts in this browser.
export function token(): string | null {
  return sessionStorage.getItem(key) ?? localStorage.getItem(key)
}

export function keep(value: string, stay: boolean) {
  forget()
  ;(stay ? localStorage : sessionStorage).setItem(key, value)
}

export function forget() {
  sessionStorage.removeItem(key)
  localStorage.removeItem(key)
  sessionStorage.removeItem(teamKey)
}

export function team(): string {
  return sessionStorage.getItem(teamKey) ?? localStorage.getItem(teamKey) ?? ''
}

export function chooseTeam(id: string) {
  sessionStorage.setItem(teamKey, id)
  localStorage.setItem(teamKey, id)
}

let onEnded: (why: Failure) => void = () => {}

// whenEnded is told when the server says that the session is over.
export function whenEnded(f: (why: Failure) => void) {
  onEnded = f
}

let onAway = () => 'The server does not answer.'

// whenAway is told when no answer comes, and says why.
export function whenAway(f: () => string) {
  onAway = f
}

export type Query = Record<string, string | number | boolean | undefined | string[]>

export function url(path: string, query?: Query): string {
  const q = new URLSearchParams()
  for (const [name, value] of Object.entries(query ?? {})) {
    if (Array.isArray(value)) value.length && q.set(name, value.join(','))
    else if (value !== undefined && value !== '') q.set(name, String(value))
  }
  const text = q.toString()
  return '/api' + path + (text ? '?' + text : '')
}

export function headers(more: Record<string, string> = {}): Record<string, string> {
  const out: Record<string, string> = { ...more }
  const t = token()
  if (t) out.Authorization = 'Bearer ' + t
  const of = team()
  if (of) out['X-Team-ID'] = of
  return out
}

// send makes a request and returns an answer that is no error.
export async function send(
  method: string,
  path: string,
  o: { body?: unknown; query?: Query; signal?: AbortSignal; headers?: Record<string, string>; raw?: BodyInit } = {},
): Promise<Response> {
  const h = headers(o.headers)
  if (o.body !== undefined) h['Content-Type'] = 'application/json'
  let answer: Response
  try {
    answer = await fetch(url(path, o.query), {
      method,
      headers: h,
      body: o.raw ?? (o.body === undefined ? undefined : JSON.stringify(o.body)),
      signal: o.signal,
      redirect: 'error',
      credentials: 'omit',
      cache: 'no-store',
    })
  } catch (e) {
    if (o.signal?.aborted) throw e
    throw new Failure(0, onAway())
  }
  if (answer.ok) return answer
  const fail = await failureOf(answer)
  if (answer.status === 401 && token()) onEnded(fail)
  throw fail
}

export async function failureOf(answer: Response): Promise<Failure> {
  let message = `The server answers ${answer.status}.`
  let code = ''
  try {
    const text = await answer.text()
    // The interpreter says what is wrong as a sentence.
    if ((answer.headers.get('content-type') ?? '').startsWith('text/plain') && text.length < 2000) message = text.trim() || message
    const body = JSON.parse(text)
    if (typeof body.message === 'string') message = body.message
    code = body.error_code ?? (typeof body.code === 'string' ? body.code : '')
  } catch {
    // no JSON: the status says what there is to say
  }
  return new Failure(answer.status, message, code)
}

async function json(answer: Response) {
  const text = await answer.text()
  return text && (answer.headers.get('content-type') ?? '').startsWith('application/json') ? JSON.parse(text) : undefined
}

export const get = async <T = any>(path: string, query?: Query, signal?: AbortSignal): Promise<T> => json(await send('GET', path, { query, signal }))
export const post = async <T = any>(path: string, body?: unknown, query?: Query): Promise<T> => json(await send('POST', path, { body: body ?? {}, query }))
export const put = async <T = any>(path: string, body: unknown): Promise<T> => json(await send('PUT', path, { body }))
export const patch = async <T = any>(path: string, body: unknown): Promise<T> => json(await send('PATCH', path, { body }))
export const del = async <T = any>(path: string, body?: unknown): Promise<T> => json(await send('DELETE', path, { body }))
