// The address is the state of the page: filters, tabs and selections are in it.

export const route = $state({ path: location.pathname, query: new URLSearchParams(location.search) })

function read() {
  route.path = location.pathname
  route.query = new URLSearchParams(location.search)
}

window.addEventListener('popstate', read)

export function go(to: string, replace = false) {
  history[replace ? 'replaceState' : 'pushState'](null, '', to)
  read()
  if (!replace) window.scrollTo(0, 0)
}

// setQuery changes parts of the query and keeps the rest.
export function setQuery(change: Record<string, string | undefined>, push = false) {
  const q = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(change)) {
    if (value === undefined || value === '') q.delete(name)
    else q.set(name, value)
  }
  const text = q.toString()
  go(location.pathname + (text ? '?' + text : ''), !push)
}

// follow has links within the page change the address without a load.
export function follow(e: MouseEvent) {
  if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return
  const a = (e.target as Element).closest?.('a')
  if (!a || a.target || a.hasAttribute('download') || a.origin !== location.origin || !a.getAttribute('href')?.startsWith('/')) return
  e.preventDefault()
  go(a.pathname + a.search)
}

// match reads the parts of a path: match('/sandboxes/:id') gives { id }.
export function match(pattern: string, path: string): Record<string, string> | null {
  const want = pattern.split('/')
  const have = path.replace(/\/+$/, '').split('/')
  if (want.length !== have.length) return null
  const out: Record<string, string> = {}
  for (let i = 0; i < want.length; i++) {
    if (want[i].startsWith(':')) {
      try {
        out[want[i].slice(1)] = decodeURIComponent(have[i])
      } catch {
        return null
      }
    } else if (want[i] !== have[i]) return null
  }
  return out
}
