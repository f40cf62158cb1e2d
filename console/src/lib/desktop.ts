// The desktop of a sandbox: RFB in binary messages of a websocket, and words of the
// viewers' control in its text messages; and recordings of it.
import { Failure, failureOf, headers, post, url } from './api'

export interface State {
  you: number
  mayControl: boolean
  controller: number
  asking: number
  viewers: { id: number; name: string; viewOnly: boolean; records: boolean }[]
  width: number
  height: number
}

export interface End {
  message: string
  code: string
}

// Channel is what noVNC reads and writes in place of a websocket.
export class Channel {
  binaryType = 'arraybuffer'
  protocol = ''
  readyState: number = WebSocket.CONNECTING
  onopen: ((e?: unknown) => void) | null = null
  onmessage: ((e: { data: ArrayBuffer }) => void) | null = null
  onclose: ((e: { code: number; reason: string; wasClean: boolean }) => void) | null = null
  onerror: ((e?: unknown) => void) | null = null
  constructor(private readonly out: (data: ArrayBuffer | ArrayBufferView) => void, private readonly end: () => void) {}
  send(data: ArrayBuffer | ArrayBufferView) {
    if (this.readyState === WebSocket.OPEN) this.out(data)
  }
  close() {
    if (this.readyState === WebSocket.CLOSED) return
    this.readyState = WebSocket.CLOSED
    this.end()
    setTimeout(() => this.onclose?.({ code: 1000, reason: '', wasClean: true })) // later, as a websocket tells it
  }
  opened() {
    this.readyState = WebSocket.OPEN
    this.onopen?.()
  }
}

// connect opens the websocket, with a ticket: a page can send no credential with it.
export async function connect(id: string, viewOnly: boolean, heard: (s: State) => void, over: (e: End | null) => void): Promise<{ channel: Channel; say: (what: string) => void }> {
  const { ticket } = await post('/cay/v1/tickets', { sandboxID: id, purpose: viewOnly ? 'desktop.view' : 'desktop' })
  const to = new URL(url(`/cay/v1/sandboxes/${encodeURIComponent(id)}/desktop`), location.href)
  to.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:'
  const socket = new WebSocket(to, ['cay', 'ticket.' + ticket])
  socket.binaryType = 'arraybuffer'
  const channel = new Channel((data) => socket.send(data as ArrayBuffer), () => socket.close())
  let end: End | null = null
  socket.onopen = () => channel.opened()
  socket.onmessage = (e) => {
    if (typeof e.data !== 'string') return channel.onmessage?.({ data: e.data })
    const word = JSON.parse(e.data)
    if (word.end) end = word.end
    else heard(word)
  }
  socket.onclose = () => {
    channel.close()
    over(end)
  }
  return { channel, say: (what) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify({ do: what })) }
}

// record reads a recording as it comes, until signal says so or the server ends it.
export async function record(id: string, signal: AbortSignal, grew: (bytes: number) => void): Promise<Blob> {
  const answer = await fetch(url(`/cay/v1/sandboxes/${encodeURIComponent(id)}/desktop/recording`), { headers: headers(), signal, redirect: 'error', credentials: 'omit', cache: 'no-store' })
  if (!answer.ok) throw await failureOf(answer)
  const parts: Uint8Array[] = []
  let bytes = 0
  const from = answer.body!.getReader()
  try {
    for (;;) {
      const { value, done } = await from.read()
      if (done) break
      parts.push(value)
      grew((bytes += value.length))
    }
  } catch (e) {
    if (!bytes) throw e // else it is as long as it came
  }
  return new Blob(parts as BlobPart[], { type: 'application/octet-stream' })
}

const magic = 'CAYRFB1\n'

export interface Part {
  at: number // milliseconds since the begin
  data: ArrayBuffer
}

// read takes a recording apart. One that was cut off ends with its last whole part.
export function read(recording: ArrayBuffer): Part[] {
  const view = new DataView(recording)
  if (recording.byteLength < magic.length || new TextDecoder().decode(recording.slice(0, magic.length)) !== magic) throw new Failure(-1, 'This is no recording of a desktop.')
  const out: Part[] = []
  for (let i = magic.length; i + 8 <= recording.byteLength; ) {
    const n = view.getUint32(i + 4)
    if (i + 8 + n > recording.byteLength) break
    out.push({ at: view.getUint32(i), data: recording.slice(i + 8, i + 8 + n) })
    i += 8 + n
  }
  return out
}
