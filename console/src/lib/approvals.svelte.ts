// Requests that wait for a decision: loaded once, kept by the team's events. The menu counts
// it, and pages show it.
import { Failure, get } from './api'
import { live } from './live.svelte'
import { clock } from './load.svelte'

export interface Party {
  kind: string
  id: string
  name: string
}

export interface Approval {
  id: string
  sandboxID?: string
  kind: 'custom' | 'egress' | 'secret' | 'tool' | 'command'
  subject?: string
  title: string
  body?: string
  risk: 'low' | 'medium' | 'high'
  state: 'pending' | 'approved' | 'denied' | 'expired'
  askedBy: Party
  createdAt: string
  expiresAt: string
  decidedBy?: Party
  decidedAt?: string
  note?: string
  remember?: 'once' | 'hour' | 'sandbox'
}

class Approvals {
  private all = $state.raw<Approval[]>([])
  // waiting are those whose time is not over: no decision by then is a no, whether
  // an event says so yet or not.
  waiting = $derived(this.all.filter((x) => Date.parse(x.expiresAt) > clock.now))
  ready = $state(false)
  error = $state.raw<Failure | null>(null)

  private begun = false
  private listens = false
  private soon: ReturnType<typeof setTimeout> | undefined
  private turn = 0

  // begin loads them, once.
  begin() {
    if (this.begun) return
    this.begun = true
    if (!this.listens) live.on((e) => { if (this.begun && e.type.startsWith('approval.')) this.soon ??= setTimeout(this.load, 100) })
    this.listens = true
    void this.load()
  }

  // forget is for another login or team.
  forget() {
    this.turn++
    this.begun = this.ready = false
    this.all = []
    this.error = null
  }

  load = async () => {
    const turn = ++this.turn
    this.soon = undefined
    try {
      await live.ready
      const all: Approval[] = []
      let cursor: string | undefined
      do {
        const page = await get('/cay/v1/approvals', { state: 'pending', limit: 100, cursor })
        all.push(...page.approvals)
        cursor = page.next
      } while (cursor)
      if (turn !== this.turn) return
      this.all = all
      this.error = null
      this.ready = true
    } catch (e) {
      if (turn !== this.turn) return
      this.error = e as Failure
      if (this.error.away) setTimeout(this.load, 2000)
    }
  }
}

export const approvals = new Approvals()
