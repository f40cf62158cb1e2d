// Data that a page loads, with the error of a load that failed.
import { untrack } from 'svelte'
import { Failure } from './api'
import { live } from './live.svelte'

export class Loaded<T> {
  data = $state.raw<T | undefined>(undefined)
  error = $state.raw<Failure | null>(null)
  loading = $state(true)
  private turn = 0

  constructor(private readonly fetch: () => Promise<T>) {}

  reload = async () => {
    const turn = ++this.turn
    this.loading = true
    try {
      const data = await this.fetch()
      if (turn !== this.turn) return
      this.data = data
      this.error = null
    } catch (e) {
      if (turn !== this.turn) return
      this.error = e instanceof Failure ? e : new Failure(-1, (e as Error).message)
    } finally {
      if (turn === this.turn) this.loading = false
    }
  }
}

// load is what a page shows: it is loaded when the page begins, when what it
// depends on changes, and again when the server has been away.
export function load<T>(fetch: () => Promise<T>, on: () => unknown = () => 0): Loaded<T> {
  const out = new Loaded<T>(fetch)
  $effect(() => {
    on()
    live.back
    untrack(out.reload)
  })
  return out
}

// clock ticks for everything that shows how long ago something was.
export const clock = $state({ now: Date.now() })
setInterval(() => {
  if (!document.hidden) clock.now = Date.now()
}, 1000)
document.addEventListener('visibilitychange', () => (clock.now = Date.now()))

export interface Toast {
  id: number
  text: string
  bad: boolean
  action?: { label: string; run: () => void }
}

export const toasts = $state<Toast[]>([])
let next = 1

export function tell(text: string, o: { bad?: boolean; action?: Toast['action'] } = {}) {
  const id = next++
  toasts.push({ id, text, bad: o.bad ?? false, action: o.action })
  if (toasts.length > 4) toasts.shift()
  setTimeout(() => drop(id), o.bad || o.action ? 10000 : 4000)
}

export function drop(id: number) {
  const i = toasts.findIndex((t) => t.id === id)
  if (i >= 0) toasts.splice(i, 1)
}

// act does something and tells how it went. It returns whether it was done.
export async function act(what: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await what()
    if (done) tell(done)
    return true
  } catch (e) {
    tell((e as Error).message, { bad: true })
    return false
  }
}

export async function copy(text: string) {
  try {
    await navigator.clipboard.writeText(text)
    tell('Copied.')
  } catch {
    tell('The browser does not let this page copy.', { bad: true })
  }
}
