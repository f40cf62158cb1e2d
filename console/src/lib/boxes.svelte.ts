// The team's sandboxes, loaded once and kept by its events.
import { Failure, get, send } from './api'
import { live, type Event } from './live.svelte'

export interface Box {
  sandboxID: string
  templateID: string
  alias?: string
  state: string
  startedAt: string
  endAt: string
  cpuCount: number
  memoryMB: number
  diskSizeMB: number
  metadata?: Record<string, string>
  // Of one that is over.
  reason?: string
  endedAt?: string
  refused?: number
}

const ended = 200 // how many that are over are kept

class Boxes {
  list = $state.raw<Box[]>([])
  over = $state.raw<Box[]>([])
  ready = $state(false)
  error = $state.raw<Failure | null>(null)

  private all = new Map<string, Box>()
  private gone = new Map<string, Box>()
  private stale = new Set<string>()
  private drawn = false
  private begun = false
  private asked: ReturnType<typeof setTimeout> | undefined

  // begin loads the list, once.
  begin() {
    if (this.begun) return
    this.begun = true
    live.on((e) => this.take(e))
    void this.load()
  }

  reset() {
    this.all.clear()
    this.gone.clear()
    this.ready = false
    this.draw()
    if (this.begun) void this.load()
  }

  async load() {
    try {
      await live.ready
      const found = new Map<string, Box>()
      let next = ''
      do {
        const answer = await send('GET', '/v2/sandboxes', { query: { limit: 100, nextToken: next, state: 'running,paused' } })
        for (const b of (await answer.json()) as Box[]) found.set(b.sandboxID, { ...b, refused: this.all.get(b.sandboxID)?.refused })
        next = answer.headers.get('x-next-token') ?? ''
        if (!this.ready) {
          this.all = new Map(found)
          this.draw()
        }
      } while (next)
      this.all = found
      this.error = null
      await this.ends()
      this.ready = true
      this.draw()
    } catch (e) {
      this.error = e as Failure
      if (this.error.away) setTimeout(() => this.load(), 2000)
    }
  }

  // ends finds what ended lately among the newest events.
  private async ends() {
    const { next } = await get('/cay/v1/events', { after: -1, limit: 1 })
    const { events } = await get('/cay/v1/events', { after: Math.max(0, next - 1000), limit: 1000 })
    for (const e of events as Event[]) this.note(e)
  }

  // note keeps what an event says of a sandbox, and reports whether its row has to
  // be asked for.
  private note(e: Event): boolean {
    const b = this.all.get(e.sandboxID)
    switch (e.type) {
      case 'sandbox.killed': {
        this.all.delete(e.sandboxID)
        const was = b ?? this.gone.get(e.sandboxID) ?? ({ sandboxID: e.sandboxID, templateID: e.data?.template ?? '', startedAt: '' } as Box)
        this.gone.set(e.sandboxID, { ...was, state: 'ended', reason: e.reason, endedAt: e.at })
        if (this.gone.size > ended * 2) this.gone = new Map([...this.gone].slice(-ended))
        return false
      }
      case 'sandbox.pausing':
      case 'sandbox.paused':
        if (b) this.all.set(e.sandboxID, { ...b, state: 'paused', endAt: e.at })
        return !b
      case 'egress.denied':
        if (b) this.all.set(e.sandboxID, { ...b, refused: (b.refused ?? 0) + 1 })
        return false
      case 'sandbox.created':
      case 'sandbox.running':
      case 'sandbox.resumed':
      case 'sandbox.resuming':
      case 'sandbox.timeout_changed':
      case 'sandbox.promoted':
      case 'sandbox.rolled_back':
        return true
    }
    return false
  }

  private take(e: Event) {
    if (!e.sandboxID || !this.begun) return
    if (this.note(e)) {
      this.stale.add(e.sandboxID)
      this.asked ??= setTimeout(() => this.ask(), 150)
    }
    this.draw()
  }

  // ask looks up what events do not say: a few one by one, many as a list.
  private async ask() {
    const ids = [...this.stale]
    this.stale.clear()
    this.asked = undefined
    if (ids.length > 8) return this.load()
    await Promise.all(
      ids.map(async (id) => {
        try {
          const b = await get<Box>('/sandboxes/' + id)
          this.all.set(id, { ...b, refused: this.all.get(id)?.refused })
        } catch (e) {
          if ((e as Failure).status === 404) this.all.delete(id)
          else this.stale.add(id) // asked again: an event comes once
        }
      }),
    )
    if (this.stale.size) this.asked ??= setTimeout(() => this.ask(), 1000)
    this.draw()
  }

  // draw makes what pages see, at most once in each frame.
  private draw() {
    if (this.drawn) return
    this.drawn = true
    const now = () => {
      this.drawn = false
      this.list = [...this.all.values()].sort((a, b) => (a.startedAt < b.startedAt ? 1 : a.startedAt > b.startedAt ? -1 : a.sandboxID < b.sandboxID ? -1 : 1))
      this.over = [...this.gone.values()].sort((a, b) => (a.endedAt! < b.endedAt! ? 1 : -1)).slice(0, ended)
    }
    if (document.hidden) setTimeout(now, 200)
    else requestAnimationFrame(now)
  }
}

export const boxes = new Boxes()
