// Texts of values, and how the page shows text of guests.

// Characters that change how text around them looks, or that none can see: they
// are shown by their number.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu

// show makes text of others safe to read: what it cannot show as it is has its
// number in brackets. Tabs and newlines stay.
export function show(s: unknown): string {
  return String(s ?? '').replace(hidden, (c) => '⟨' + c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0') + '⟩')
}

// line is show for one line of at most so many characters.
export function line(s: unknown, most = 300): string {
  const all = String(s ?? '')
  const text = show(all.slice(0, most).replace(/[\t\n]+/g, ' '))
  return all.length > most || text.length > most ? text.slice(0, most).replace(/[\ud800-\udbff]$/, '') + '…' : text
}

// plain takes the colours of a terminal out of a line.
export function plain(s: string): string {
  return s.replace(/\u001b(\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\)|[@-Z\\-_])/g, '')
}

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']

export function bytes(n: number | undefined): string {
  if (n === undefined || n === null || Number.isNaN(n)) return '–'
  let i = 0
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024
    i++
  }
  return (i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + ' ' + units[i]
}

export const megabytes = (n: number | undefined) => (n === undefined ? '–' : bytes(n * 1048576))

// span is a time between two moments, in at most two units.
export function span(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000))
  if (s < 60) return s + ' s'
  const m = Math.floor(s / 60)
  if (m < 60) return m + ' min' + (m < 10 && s % 60 ? ` ${s % 60} s` : '')
  const h = Math.floor(m / 60)
  if (h < 48) return h + ' h' + (m % 60 ? ` ${m % 60} min` : '')
  return Math.floor(h / 24) + ' d' + (h % 24 ? ` ${h % 24} h` : '')
}

export function ago(at: string | undefined, now: number): string {
  if (!at) return '–'
  const ms = now - Date.parse(at)
  return ms < 5000 && ms > -60000 ? 'just now' : span(ms) + ' ago'
}

export function until(at: string | undefined, now: number): string {
  if (!at) return '–'
  const ms = Date.parse(at) - now
  return ms <= 0 ? 'now' : span(ms)
}

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
export const time = (at: string | number | undefined) => (at ? clock.format(new Date(at)) : '–')
const short = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' })
export const clockTime = (at: string | number) => short.format(new Date(at))

// quote writes a word as a shell reads it.
export function quote(s: string): string {
  return /^[\w./:@=,+-]+$/.test(s) ? s : "'" + s.replaceAll("'", `'\\''`) + "'"
}

export const plural = (n: number, one: string, many = one + 's') => `${n.toLocaleString()} ${n === 1 ? one : many}`

// reasons says why a sandbox is over, in words.
export const reasons: Record<string, string> = {
  asked: 'asked for',
  timeout: 'its time was up',
  out_of_memory: 'out of memory',
  engine_crash: 'the engine crashed',
  host_lost: 'the machine was lost',
  failed_start: 'it did not start',
  budget: 'a budget was used up',
}
