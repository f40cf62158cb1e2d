// The session: the person or key that uses the page, and the scopes of both.
import { Failure, chooseTeam, forget, get, post, team, token, whenEnded } from './api'
import { live } from './live.svelte'

export interface Caller {
  kind: 'key' | 'person' | 'operator'
  id?: string
  name?: string
  teamID?: string
  teamName?: string
  scopes: string[]
  session?: string
}

export interface Team {
  id: string
  name: string
}

export const session = $state({
  state: 'loading' as 'loading' | 'in' | 'out' | 'away',
  caller: null as Caller | null,
  teams: [] as Team[],
  ports: '',
  why: '',
})

export function may(...scopes: string[]): boolean {
  return scopes.every((s) => session.caller?.scopes.includes(s))
}

// lacks says why an action is not offered; empty when it is.
export function lacks(...scopes: string[]): string {
  const missing = scopes.filter((s) => !session.caller?.scopes.includes(s))
  return missing.length ? `Needs ${missing.join(', ')}, which this login lacks` : ''
}

whenEnded((why) => end(why.code === 'session_ended' ? 'Your session is over. Log in again.' : why.message))

export function end(why = '') {
  live.stop()
  forget()
  session.state = 'out'
  session.caller = null
  session.why = why
}

export async function begin() {
  if (!token()) {
    session.state = 'out'
    return
  }
  try {
    const caller = await get<Caller>('/cay/v1/caller')
    session.teams = await teamsOf(caller)
    if (!caller.teamID && session.teams.length) {
      chooseTeam(session.teams[0].id)
      return begin()
    }
    session.caller = caller
    session.state = 'in'
    session.why = ''
    if (caller.teamID && caller.scopes.includes('sandboxes:read')) live.start()
  } catch (e) {
    const fail = e as Failure
    if (fail.status === 404 && team()) {
      // the team of an earlier login, which this one is not in
      chooseTeam('')
      sessionStorage.removeItem('cay.team')
      localStorage.removeItem('cay.team')
      return begin()
    }
    if (session.state === 'out') return
    session.state = fail.away ? 'away' : 'out'
    session.why = fail.message
    if (fail.away) setTimeout(begin, 2000)
  }
}

async function teamsOf(c: Caller): Promise<Team[]> {
  if (c.kind === 'person') return (await get('/cay/v1/me')).teams.map((t: any) => ({ id: t.id, name: t.name }))
  if (c.kind === 'operator' || c.scopes.includes('admin'))
    return (await get<any[]>('/cay/v1/admin/teams')).map((t) => ({ id: t.teamID, name: t.name }))
  return c.teamID ? [{ id: c.teamID, name: c.teamName ?? '' }] : []
}

export async function logOut() {
  try {
    await post('/cay/v1/logout')
  } catch {
    // it is forgotten here in any case, and ends by itself
  }
  end()
}

export async function settings() {
  try {
    const answer = await fetch('/settings.json', { credentials: 'omit' })
    session.ports = (await answer.json()).ports
  } catch {
    // asked again where a port is opened
  }
}

export function portURL(sandbox: string, port: number | string): string {
  return session.ports.replace('{sandbox}', sandbox).replace('{port}', String(port))
}
