// A notebook: cells of code and what they gave. It is kept by this browser, for
// each sandbox, and goes in and out as Jupyter's format.
import { decode } from './agent'

export interface Result {
  png?: string
  jpeg?: string
  svg?: string
  html?: string
  text?: string
  markdown?: string
  latex?: string
  json?: unknown
  chart?: unknown
  [other: string]: unknown
}

export type Output =
  | { kind: 'stdout' | 'stderr'; text: string }
  | { kind: 'result'; result: Result; main: boolean }
  | { kind: 'error'; name: string; value: string; traceback: string }
  | { kind: 'note'; text: string }

export interface Cell {
  key: number
  code: string
  language: string
  outputs: Output[]
  count?: number
  state: '' | 'waiting' | 'running'
}

export const languages = ['python', 'javascript', 'typescript', 'r', 'java', 'bash']
export const mostText = 1 << 20 // characters of output that a cell shows

let keys = 1
export const cell = (code = '', language = 'python'): Cell => ({ key: keys++, code, language, outputs: [], state: '' })

// add puts an event of the interpreter's stream to a cell's outputs.
export function add(c: Cell, e: any) {
  if (e.type === 'stdout' || e.type === 'stderr') {
    const last = c.outputs[c.outputs.length - 1]
    const room = mostText - c.outputs.reduce((n, o) => n + ('text' in o ? o.text.length : 0), 0)
    if (room <= 0) return
    const text = String(e.text).slice(0, room)
    if (last?.kind === e.type) last.text += text
    else c.outputs.push({ kind: e.type, text })
    if (text.length < e.text.length) c.outputs.push({ kind: 'note', text: 'There is more output than is shown here.' })
  } else if (e.type === 'result') {
    const { type: _, is_main_result, ...result } = e
    c.outputs.push({ kind: 'result', result, main: !!is_main_result })
  } else if (e.type === 'error') c.outputs.push({ kind: 'error', name: String(e.name), value: String(e.value), traceback: String(e.traceback ?? '') })
  else if (e.type === 'number_of_executions') c.count = e.execution_count
}

const key = (id: string) => 'cay.notebook.' + id

// keep stores the cells; their outputs too, while they are small.
export function keep(id: string, cells: Cell[]) {
  const plain = (outputs: boolean) => JSON.stringify(cells.map((c) => ({ code: c.code, language: c.language, count: c.count, outputs: outputs ? c.outputs : [] })))
  try {
    const text = plain(true)
    localStorage.setItem(key(id), text.length < 1 << 20 ? text : plain(false))
  } catch {
    // the browser keeps no more
  }
}

export function kept(id: string): Cell[] {
  try {
    const list = JSON.parse(localStorage.getItem(key(id)) ?? '[]')
    return list.map((c: any) => ({ ...cell(String(c.code), languages.includes(c.language) ? c.language : 'python'), outputs: Array.isArray(c.outputs) ? c.outputs : [], count: c.count }))
  } catch {
    return []
  }
}

const types: Record<string, string> = {
  text: 'text/plain', html: 'text/html', markdown: 'text/markdown', svg: 'image/svg+xml', png: 'image/png', jpeg: 'image/jpeg', latex: 'text/latex', json: 'application/json',
}
const lines = (s: string) => s.split(/(?<=\n)/)

// toJupyter writes the cells as nbformat 4.5.
export function toJupyter(cells: Cell[]): string {
  return JSON.stringify({
    cells: cells.map((c, i) => ({
      id: 'cell-' + (i + 1),
      cell_type: 'code',
      execution_count: c.count ?? null,
      metadata: c.language === 'python' ? {} : { vscode: { languageId: c.language } },
      source: lines(c.code),
      outputs: c.outputs.flatMap((o): any[] => {
        switch (o.kind) {
          case 'stdout':
          case 'stderr':
            return [{ output_type: 'stream', name: o.kind, text: lines(o.text) }]
          case 'error':
            return [{ output_type: 'error', ename: o.name, evalue: o.value, traceback: o.traceback.split('\n') }]
          case 'result': {
            const data = Object.fromEntries(Object.entries(o.result).filter(([k]) => types[k]).map(([k, v]) => [types[k], v]))
            return [o.main ? { output_type: 'execute_result', execution_count: c.count ?? null, metadata: {}, data } : { output_type: 'display_data', metadata: {}, data }]
          }
        }
        return []
      }),
    })),
    metadata: { kernelspec: { display_name: 'Python 3', language: 'python', name: 'python3' } },
    nbformat: 4,
    nbformat_minor: 5,
  }, null, 1)
}

// fromJupyter reads the code of a notebook; text between it becomes comments.
export function fromJupyter(text: string): Cell[] {
  const book = JSON.parse(text)
  if (!Array.isArray(book?.cells)) throw new Error('This is no notebook of Jupyter, of format 4 or later.')
  const source = (s: unknown) => (Array.isArray(s) ? s.join('') : String(s ?? ''))
  const main = String(book.metadata?.kernelspec?.language ?? 'python').toLowerCase()
  return book.cells.slice(0, 1000).map((c: any) => {
    const own = String(c.metadata?.vscode?.languageId ?? main).toLowerCase()
    const language = languages.includes(own) ? own : 'python'
    if (c.cell_type === 'code') return cell(source(c.source), language)
    const mark = language === 'python' || language === 'r' || language === 'bash' ? '# ' : '// '
    return cell(source(c.source).split('\n').map((l) => mark + l).join('\n'), language)
  })
}

// picture is an image of a result, as an address of this browser's own.
export function picture(r: Result): string | null {
  const of = (type: string, data: Uint8Array | string) => URL.createObjectURL(new Blob([data as BlobPart], { type }))
  try {
    if (typeof r.png === 'string') return of('image/png', decode(r.png.replace(/\s/g, '')))
    if (typeof r.jpeg === 'string') return of('image/jpeg', decode(r.jpeg.replace(/\s/g, '')))
    if (typeof r.svg === 'string') return of('image/svg+xml', r.svg)
  } catch {
    // no base64: its other forms are shown
  }
  return null
}
