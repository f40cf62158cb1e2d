// One stream of the team's events for all tabs of this browser: over plain HTTP a
// browser opens six connections to an origin, and a stream holds one for good. The
// tab with the lock reads it and tells the others.
import { Failure, headers, url, whenAway } from './api'

export interface Event {
  seq: number
  sandboxID: string
  type: string
  reason?: string
  at: string
  data?: Record<string, string>
}

type Listener = (e: Event) => void

class Live {
  // status is what a person is told of the connection.
  status = $state<'off' | 'connecting' | 'live' | 'away'>('off')
  // back counts how often the server came back: lists that were loaded before are stale.
  back = $state(0)
  // offline says that the browser has lost its network while the page was open. That
  // it has none at first says nothing: the server may be on the same machine.
  offline = $state(false)

  private listeners = new Set<Listener>()
  private channel: BroadcastChannel | null = null
  private stopper: AbortController | null = null
  private last = -1

  on(f: Listener): () => void {
    this.listeners.add(f)
    return () => this.listeners.delete(f)
  }

  start() {
    this.stop()
    const stopper = (this.stopper = new AbortController())
    this.status = 'connecting'
    this.channel = new BroadcastChannel('cay-events')
    this.channel.onmessage = ({ data }) => {
      if (stopper.signal.aborted) return
      if (data.event) this.take(data.event)
      if (data.status) this.become(data.status)
      if (data.ask && this.leads) this.channel?.postMessage({ status: this.status })
    }
    this.ready = this.place(stopper.signal)
    const lead = async () => {
      await this.ready
      this.leads = true
      await this.read(stopper.signal)
      this.leads = false
    }
    if (navigator.locks) {
      this.channel.postMessage({ ask: true })
      navigator.locks.request('cay-events', { signal: stopper.signal }, lead).catch(() => {})
    } else void lead() // a page that is not trusted by its address has no locks
  }

  private leads = false

  // ready is when this tab knows the newest event. A list that is loaded after it
  // lacks only changes that later events tell.
  ready: Promise<void> = Promise.resolve()

  private async place(signal: AbortSignal) {
    for (let wait = 300; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
      try {
        const answer = await fetch(url('/cay/v1/events', { after: -1, limit: 1 }), { headers: headers(), signal, credentials: 'omit', cache: 'no-store' })
        if (answer.status === 401 || answer.status === 403) return
        if (answer.ok) return void (this.last = (await answer.json()).next)
      } catch {
        if (signal.aborted) return
      }
      if (this.status !== 'live') this.become('away')
      await new Promise((done) => setTimeout(done, wait))
    }
  }

  stop() {
    this.stopper?.abort()
    this.channel?.close()
    this.channel = this.stopper = null
    this.status = 'off'
    this.last = -1
  }

  // again is when the server, which is away, answers.
  again(): Promise<void> {
    return new Promise((done) => this.waiting.push(done))
  }

  private waiting: (() => void)[] = []

  private become(status: 'connecting' | 'live' | 'away') {
    if (status === 'live' && this.status === 'away') this.back++
    this.status = status
    if (status === 'live') for (const done of this.waiting.splice(0)) done()
    if (this.leads) this.channel?.postMessage({ status })
  }

  private take(e: Event) {
    if (e.seq <= this.last) return
    this.last = e.seq
    for (const f of this.listeners) f(e)
  }

  private wake: () => void = () => {}
  private open: AbortController | null = null

  // hurry has a stream that waits to be opened again be opened now.
  hurry() {
    this.wake()
  }

  // online follows the browser's network: what it has lost, no connection tells.
  online(on: boolean) {
    this.offline = !on
    if (on) this.hurry()
    else this.open?.abort()
  }

  private async read(signal: AbortSignal) {
    let wait = 500
    while (!signal.aborted) {
      try {
        const h = headers({ Accept: 'text/event-stream' })
        this.open = new AbortController()
        if (this.last >= 0) h['Last-Event-ID'] = String(this.last)
        const answer = await fetch(url('/cay/v1/events', this.last >= 0 ? {} : { after: -1 }), {
          headers: h,
          signal: AbortSignal.any([signal, this.open.signal]),
          credentials: 'omit',
          cache: 'no-store',
        })
        if (answer.status === 401 || answer.status === 403) {
          // an ordinary request tells why, and ends the session
          const { get } = await import('./api')
          await get('/cay/v1/caller').catch(() => {})
          if (signal.aborted) return
        }
        if (!answer.ok || !answer.body) throw new Failure(answer.status, 'no stream')
        this.become('live')
        wait = 500
        await this.parse(answer.body.pipeThrough(new TextDecoderStream()).getReader())
      } catch {
        if (signal.aborted) return
      }
      if (signal.aborted) return
      this.become('away')
      await new Promise<void>((done) => {
        this.wake = done
        setTimeout(done, wait * (0.75 + Math.random() / 2))
      })
      wait = Math.min(wait * 2, 8000)
    }
  }

  private async parse(from: ReadableStreamDefaultReader<string>) {
    let text = ''
    for (;;) {
      const { value, done } = await from.read()
      if (done) return
      text += value
      let end: number
      while ((end = text.indexOf('\n\n')) >= 0) {
        const block = text.slice(0, end)
        text = text.slice(end + 2)
        const data = block
          .split('\n')
          .filter((l) => l.startsWith('data: '))
          .map((l) => l.slice(6))
          .join('\n')
        if (!data) continue
        const event = JSON.parse(data) as Event
        this.take(event)
        this.channel?.postMessage({ event })
      }
    }
  }
}

export const live = new Live()

whenAway(() => {
  live.hurry()
  return live.offline ? 'The browser is offline.' : 'The server does not answer.'
})
window.addEventListener('online', () => live.online(true))
window.addEventListener('offline', () => live.online(false))
