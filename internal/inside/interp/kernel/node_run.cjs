// Runs one piece of JavaScript after another in the main context, through the
// inspector's evaluate. V8 is the only parser here: where the console knows
// less than a module (import, export), its errors say what to rewrite.
'use strict'

const inspector = require('node:inspector')
const module_ = require('node:module')
const path = require('node:path')
const util = require('node:util')
const vm = require('node:vm')

// Code may put others in their place.
const { Promise, setImmediate } = globalThis
const race = Promise.race.bind(Promise)

const IMPORT = /import\s*(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|\{([^}]*)\}\s*)?(?:\bfrom\s*)?(["'])((?:(?!\4)[^\\\n])*)\4(?:\s*with\s*(\{[^}]*\}))?/y
const EXPORT = /export\s+(?:default\s+)?(?=[\w$[{('"`])/y
const DYNAMIC = /\bimport(?=\s*\()/g
// The name under which rewritten code finds import().
const LOADER = '__import__'

class Runner {
  constructor(kernel) {
    this.kernel = kernel
    this.count = 0
    this.session = new inspector.Session()
    this.session.connect()
    hide(LOADER, (...args) => this.load(...args))
    // The inspector hands out names of values; this receives the values.
    hide('__receive__', (value) => { this.value = value })
    this.session.post('Runtime.evaluate', { expression: '__receive__' }, (_, { result }) => {
      this.receiver = result.objectId
    })
    delete globalThis.__receive__
  }

  /** Runs code and reports its value or its error. */
  async execute(code, language) {
    const { kernel } = this
    const name = `cell-${++this.count}.js`
    this.base()
    let failed = false
    kernel.left = undefined
    kernel.fail = (error) => {
      if (!failed) kernel.emit({ type: 'error', ...report(error, this.place) })
      failed = true
    }
    const stopped = new Promise((_, reject) => {
      kernel.cancel = (why = interrupted()) => reject(why)
    })
    try {
      if (language === 'typescript') code = strip(code)
      let value = await race([stopped, this.evaluate(code, name)])
      // The value of an async function at the end is the result.
      if (util.types.isPromise(value)) value = await race([stopped, value])
      kernel.show(value, true)
      // node reports a promise that failed and that nothing awaits when the code is done.
      await new Promise(setImmediate)
    } catch (error) {
      if (!(error === kernel.left && error?.code === 0)) kernel.fail(error)
    } finally {
      stopped.catch(() => {})
      kernel.cancel = () => {}
      kernel.fail = undefined
    }
  }

  /** Makes require and import start from the working directory. */
  base() {
    const file = path.join(process.cwd(), 'cell.js')
    if (file === this.file) return
    this.file = file
    this.import = new vm.Script('(name, options) => import(name, options)', {
      filename: file,
      importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    }).runInThisContext()
    hide('require', module_.createRequire(file))
    if (!('module' in globalThis)) hide('module', { exports: {} })
    if (!('exports' in globalThis)) hide('exports', globalThis.module.exports)
  }

  load(name, options) {
    return this.import(String(name), options)
  }

  async evaluate(code, name) {
    this.place = undefined
    if (/^\s*\{[^]*\}\s*$/.test(code) && compiles(`async () => (${code}\n)`)) code = `(${code}\n)`
    if (DYNAMIC.test(code)) code = rewriteDynamic(code)
    for (;;) {
      const reply = await this.post('Runtime.evaluate', {
        expression: `${code}\n//# sourceURL=${name}`, replMode: true, awaitPromise: true,
      })
      const problem = reply.exceptionDetails
      if (!problem) return this.receive(reply.result)
      const error = problem.exception ? this.receive(problem.exception) : new Error(problem.text)
      const next = error instanceof SyntaxError && rewriteModule(code, error.message, problem)
      if (!next) {
        if (error instanceof SyntaxError) this.place = { error, name, code, ...problem }
        throw error
      }
      code = next
    }
  }

  post(method, params) {
    return new Promise((resolve, reject) => {
      // It fails where the execution was ended by force.
      this.session.post(method, params, (error, result) => error ? reject(interrupted()) : resolve(result))
    })
  }

  /** The value that the inspector means. */
  receive({ objectId, unserializableValue, value }) {
    const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value }
    this.session.post('Runtime.callFunctionOn', {
      objectId: this.receiver, functionDeclaration: 'function (value) { this(value) }', arguments: [argument],
    })
    if (objectId) this.session.post('Runtime.releaseObject', { objectId })
    const received = this.value
    this.value = undefined
    return received
  }
}

function hide(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false })
}

function interrupted() {
  const error = new Error('the execution was interrupted')
  error.name = 'Interrupted'
  error.stack = ''
  return error
}

function compiles(code) {
  try {
    return Boolean(new vm.Script(code))
  } catch {
    return false
  }
}

/** Lets import() find its way: the console has none. Where the word only
 * seems to be one, in a string say, code with a mistake there compiles. */
function rewriteDynamic(code) {
  let done = ''
  let at = 0
  for (const { index } of code.matchAll(DYNAMIC)) {
    const before = done + code.slice(at, index)
    const after = code.slice(index + 'import'.length)
    const wrap = (text) => `async () => {${text}\n}`
    const real = /^(?:[^]*\n)?\s*(?:im|ex)port\b/.test(code) || !compiles(wrap(`${before}import!${after}`))
    done = before + (real ? LOADER : 'import')
    at = index + 'import'.length
  }
  return done + code.slice(at)
}

/** Rewrites the declaration that V8 stumbled over, or returns nothing. */
function rewriteModule(code, message, { lineNumber, columnNumber }) {
  if (!/import statement outside|Unexpected token 'export'|import\.meta/.test(message)) return
  const start = code.split('\n').slice(0, lineNumber).reduce((sum, line) => sum + line.length + 1, 0) + columnNumber
  const apply = (pattern, replace) => {
    pattern.lastIndex = start
    const match = pattern.exec(code)
    return match && code.slice(0, start) + replace(match) + code.slice(start + match[0].length)
  }
  return apply(IMPORT, importDeclaration) ?? apply(EXPORT, () => '') ?? undefined
}

function importDeclaration([all, one, namespace, list, , name, attributes]) {
  const call = `await ${LOADER}(${JSON.stringify(name)}${attributes ? `, {with: ${attributes}}` : ''})`
  const names = (list ?? '').split(',').map((item) => item.trim()).filter((item) => item && !item.startsWith('type '))
    .map((item) => item.replace(/\s+as\s+/, ': '))
  if (one) names.unshift(`default: ${one}`)
  const lines = '\n'.repeat(all.split('\n').length - 1) // errors keep their lines
  if (namespace) return `const ${namespace} = ${call}${one ? `, {default: ${one}} = ${namespace}` : ''}${lines}`
  return names.length > 0 ? `const {${names.join(', ')}} = ${call}${lines}` : call + lines
}

/** TypeScript without its types. */
function strip(code) {
  if (!module_.stripTypeScriptTypes) {
    throw new Error(`TypeScript needs node 22.13 or newer; this is ${process.version}`)
  }
  try {
    return module_.stripTypeScriptTypes(code)
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error
    return module_.stripTypeScriptTypes(code, { mode: 'transform' }) // enums and the like
  }
}

/** An error as clients see it, whatever the code makes of its parts. place says
 * where a syntax error is. */
function report(error, place) {
  const native = attempt(() => util.types.isNativeError(error) || error instanceof Error)
  if (!native) {
    const value = attempt(() => util.inspect(error)) ?? 'a value that cannot be shown'
    return { name: 'Error', value, traceback: `Uncaught ${value}` }
  }
  const name = attempt(() => String(error.name || 'Error')) ?? 'Error'
  const value = attempt(() => String(error.message)) ?? ''
  const head = value ? `${name}: ${value}` : name
  let traceback = attempt(() => String(error.stack || head).split('\n').filter((line) => !ours(line)).join('\n')) ?? head
  if (error === place?.error) {
    const source = place.code.split('\n')[place.lineNumber] ?? ''
    traceback = `${place.name}:${place.lineNumber + 1}\n${source}\n${' '.repeat(place.columnNumber)}^\n\n${head}`
  }
  const cause = attempt(() => error.cause === undefined ? '' : util.inspect(error.cause)) ?? 'a value that cannot be shown'
  if (cause) traceback += `\n[cause]: ${cause}`
  return { name, value, traceback }
}

/** What a function of the code's returns, undefined where it throws. */
function attempt(get) {
  try {
    return get()
  } catch {}
}

const ours = (line) => /^\s+at /.test(line) && (line.includes('node:internal') || line.includes('node:inspector') || line.includes(__dirname))

module.exports = { Runner }
