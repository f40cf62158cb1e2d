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
const few = 8 // rows that are asked for one by one
const drawEvery = 100 // ms: a burst of changes leaves frames to scrolls and clicks

class Boxes {
  list = $state.raw<Box[]>([])
  over = $state.raw<Box[]>([])
  ready = $state(false)
  error = $state.raw<Failure | null>(null)

  private all = new Map<string, Box>()
  private gone = new Map<string, Box>()
  private stale = new Set<string>()
  private drawn = false // it will be
  private drawnAt = -drawEvery
  private begun = false
  private listens = false
  private turn = 0
  private asked: ReturnType<typeof setTimeout> | undefined
  private loading: Promise<boolean> | undefined
  // heard are the sandboxes that events told of while the list is loaded: of these
  // its pages may be older than what is known.
  private heard = new Set<string>()
  private asking = new Set<string>()

  // begin loads the list, once.
  begin() {
    if (this.begun) return
    this.begun = true
    if (!this.listens) live.on((e) => this.take(e))
    this.listens = true
    void this.load()
  }

  // forget is for another login or team.
  forget() {
    this.turn++
    this.begun = this.ready = false
    this.loading = undefined
    this.error = null
    this.all = new Map()
    this.gone = new Map()
    this.stale.clear()
    this.list = this.over = []
  }

  // load reads the whole list, and reports whether it could.
  load(): Promise<boolean> {
    if (!this.loading) {
      const one = this.read(this.turn).finally(() => { if (this.loading === one) this.loading = undefined })
      this.loading = one
    }
    return this.loading
  }

  private async read(turn: number): Promise<boolean> {
    try {
      await live.ready
      if (turn !== this.turn) return false
      this.heard = new Set()
      const found = new Map<string, Box>()
      let next = ''
      do {
        const answer = await send('GET', '/v2/sandboxes', { query: { limit: 100, nextToken: next, state: 'running,paused' } })
        const rows: Box[] = await answer.json()
        if (turn !== this.turn) return false
        for (const b of rows) found.set(b.sandboxID, { ...b, refused: this.all.get(b.sandboxID)?.refused })
        next = answer.headers.get('x-next-token') ?? ''
        if (!this.ready) this.join(new Map(found))
      } while (next)
      this.join(found)
      if (!this.ready) await this.lately(turn)
      if (turn !== this.turn) return false
      this.error = null
      this.ready = true
      this.draw()
      return true
    } catch (e) {
      if (turn !== this.turn) return false
      this.error = e as Failure
      if (this.error.away) setTimeout(() => this.load(), 2000)
      return false
    }
  }

  // join takes the rows of the list, but for those that events told of since.
  private join(found: Map<string, Box>) {
    for (const id of this.heard) {
      const known = this.all.get(id)
      if (known) found.set(id, known)
      else if (this.gone.has(id)) found.delete(id)
    }
    this.all = found
    this.draw()
  }

  // lately finds what ended and what was refused among the newest events.
  private async lately(turn: number) {
    const { next } = await get('/cay/v1/events', { after: -1, limit: 1 })
    const { events } = await get('/cay/v1/events', { after: Math.max(0, next - 1000), limit: 1000 })
    if (turn !== this.turn) return
    for (const e of events as Event[]) if (e.type === 'sandbox.killed' || e.type === 'egress.denied') this.note(e)
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
      case 'sandbox.resumed':
      case 'sandbox.timeout_changed':
        if (!b || !e.data?.endAt) return true
        this.all.set(e.sandboxID, { ...b, state: e.type === 'sandbox.resumed' ? 'running' : b.state, endAt: e.data.endAt })
        return false
      case 'egress.denied':
        if (b) this.all.set(e.sandboxID, { ...b, refused: (b.refused ?? 0) + 1 })
        return false
      case 'sandbox.created':
      case 'sandbox.running':
      case 'sandbox.promoted':
      case 'sandbox.rolled_back':
        return true
    }
    return false
  }

  private take(e: Event) {
    if (!e.sandboxID || !this.begun) return
    this.heard.add(e.sandboxID)
    if (this.note(e) || this.asking.has(e.sandboxID)) {
      this.stale.add(e.sandboxID)
      this.asked ??= setTimeout(() => this.ask(), 150)
    }
    this.draw()
  }

  // ask looks up what events do not say: a few one by one, many as a list.
  private async ask() {
    const turn = this.turn
    const ids = [...this.stale]
    this.stale.clear()
    let wait = 150
    if (ids.length > few) {
      await this.loading // it may have read them before they changed
      if (!(await this.load())) for (const id of ids) this.stale.add(id) // asked again: an event comes once
      wait = 1000
    } else {
      this.asking = new Set(ids)
      await Promise.all(
        ids.map(async (id) => {
          try {
            const b = await get<Box>('/sandboxes/' + id)
            if (turn === this.turn && !this.gone.has(id)) this.all.set(id, { ...b, refused: this.all.get(id)?.refused })
          } catch (e) {
            if ((e as Failure).status === 404) return void this.all.delete(id)
            this.stale.add(id)
            wait = 1000
          }
        }),
      )
      this.asking = new Set()
    }
    if (turn !== this.turn) this.stale.clear()
    this.asked = this.stale.size ? setTimeout(() => this.ask(), wait) : undefined
    this.draw()
  }

  // draw makes what pages see: in the next frame, or a while after the last one.
  private draw() {
    if (this.drawn) return
    this.drawn = true
    const now = () => {
      this.drawn = false
      this.drawnAt = performance.now()
      this.list = [...this.all.values()].sort((a, b) => (a.startedAt < b.startedAt ? 1 : a.startedAt > b.startedAt ? -1 : a.sandboxID < b.sandboxID ? -1 : 1))
      this.over = [...this.gone.values()].sort((a, b) => (a.endedAt! < b.endedAt! ? 1 : -1)).slice(0, ended)
    }
    const wait = this.drawnAt + drawEvery - performance.now()
    if (document.hidden) setTimeout(now, 200)
    else if (wait > 0) setTimeout(() => requestAnimationFrame(now), wait)
    else requestAnimationFrame(now)
  }
}

export const boxes = new Boxes()
