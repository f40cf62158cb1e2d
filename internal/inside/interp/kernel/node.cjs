// The JavaScript kernel of one context: node node.cjs DIR.
//
// Requests come as JSON lines from DIR/requests, and what happens goes as JSON
// lines to DIR/events. A thread reads the requests, so that it can interrupt
// code that never gives the main thread back. Code runs as in the console of a
// browser's developer tools: V8's REPL mode lets it await and declare again.
'use strict'

const fs = require('node:fs')
const inspector = require('node:inspector')
const path = require('node:path')
const util = require('node:util')
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads')
const random = require(path.join(__dirname, 'node_random.cjs'))

// Code may put others in their place.
const { Promise } = globalThis
const { parse, stringify } = JSON
const exit = process.reallyExit.bind(process)

// How long the main thread may be deaf to an interrupt before its code is
// ended by force, in milliseconds.
const DEAF = 250
// The most that one event says of an output, in characters.
const MAX_CHUNK = 1 << 17
// Larger values are not shown as JSON.
const MAX_JSON = 1 << 20

if (isMainThread) main(process.argv[2])
else read(workerData)

/** The thread that hands requests on. answered counts answered interrupts. */
function read({ dir, answered }) {
  const main = new inspector.Session()
  main.connectToMainThread()
  const count = new Int32Array(answered)
  const heard = () => {
    const before = Atomics.load(count, 0)
    parentPort.postMessage({ op: 'interrupt' })
    return Atomics.wait(count, 0, before, DEAF) !== 'timed-out'
  }
  const interrupt = () => {
    if (heard()) return
    do main.post('Runtime.terminateExecution')
    while (!heard())
    heard() // force may have hit the answer to the first
  }
  const fd = fs.openSync(path.join(dir, 'requests'), 'r')
  const buffer = Buffer.alloc(1 << 16)
  let parts = []
  for (;;) {
    const n = fs.readSync(fd, buffer)
    if (n === 0) process.kill(process.pid, 'SIGKILL') // the agent is gone
    let rest = buffer.subarray(0, n)
    for (let end; (end = rest.indexOf(10)) >= 0; rest = rest.subarray(end + 1)) {
      const request = parse(Buffer.concat([...parts, rest.subarray(0, end)]).toString())
      parts = []
      if (request.op === 'leave') return
      if (request.op === 'interrupt') interrupt()
      else parentPort.postMessage(request)
    }
    if (rest.length > 0) parts.push(Buffer.from(rest))
  }
}

function main(dir) {
  const events = fs.openSync(path.join(dir, 'events'), 'w')
  // Writing waits while the reader is slow, which holds the code back.
  const say = (text) => {
    const line = Buffer.from(text + '\n')
    for (let n = 0; n < line.length;) n += fs.writeSync(events, line, n)
  }
  const emit = (event) => say(stringify(event))
  // data is JSON: a value goes through it once.
  const result = (main, data) => say(`{"type":"result","main":${main},"data":${data}}`)
  const kernel = { emit, result, cancel: () => {}, undo: [], id: 0 }
  publish(kernel)
  tame(kernel)
  // The process ends after its threads: the one that waits for a request must get one.
  process.reallyExit = (code) => {
    fs.writeFileSync(path.join(dir, 'requests'), '{"op":"leave"}\n')
    exit(code)
  }
  random.install()
  const { Runner } = require(path.join(__dirname, 'node_run.cjs'))
  kernel.runner = new Runner(kernel)

  const answered = new SharedArrayBuffer(4)
  const thread = new Worker(__filename, { workerData: { dir, answered }, execArgv: [], stdin: false })
  thread.on('exit', () => exit(1))
  thread.on('message', (request) => {
    if (request.op === 'interrupt') {
      Atomics.add(new Int32Array(answered), 0, 1)
      Atomics.notify(new Int32Array(answered), 0)
      kernel.cancel()
      // The first should have been enough, but force can end our code too.
      if (kernel.interrupted) finish(kernel, kernel.id)
      kernel.interrupted = true
      return
    }
    kernel.interrupted = false
    kernel.id = request.id
    run(kernel, request)
  })
  emit({ type: 'done', id: 0 })
}

async function run(kernel, request) {
  try {
    await handle(kernel, request)
  } catch {
    kernel.emit({ type: 'error', name: 'Error', value: 'an error that cannot be shown', traceback: '' })
  } finally {
    finish(kernel, request.id)
  }
}

/** Says that a request is done. Saying it twice does no harm. */
function finish(kernel, id) {
  if (kernel.id !== id) return
  kernel.emit({ type: 'done', id })
  kernel.id = 0
}

function handle(kernel, request) {
  switch (request.op) {
    case 'execute':
      return kernel.runner.execute(request.code, request.language)
    case 'prepare':
      return prepare(kernel, request)
    case 'restore':
      for (const [name, value] of kernel.undo.splice(0).reverse()) setVariable(name, value)
  }
}

/** Lets what the code prints and displays become events, in order. */
function publish(kernel) {
  for (const name of ['stdout', 'stderr']) {
    const stream = process[name]
    stream.write = (chunk, encoding, callback) => {
      if (typeof encoding === 'function') callback = encoding
      const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString()
      for (let at = 0; at < text.length;) {
        let end = Math.min(at + MAX_CHUNK, text.length)
        if (end < text.length && (text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end-- // a pair stays whole
        kernel.emit({ type: name, text: text.slice(at, end) })
        at = end
      }
      if (typeof callback === 'function') process.nextTick(callback)
      return true
    }
  }
  kernel.show = (value, main) => {
    if (value !== undefined) kernel.result(main, describe(value))
  }
  /** display(value) shows a value now; {raw: true}: value maps MIME types. */
  const display = (value, { raw = false } = {}) => {
    if (!raw) return kernel.show(value, false)
    const data = stringify(value)
    if (!data?.startsWith('{')) throw new TypeError('display: a raw value is an object by MIME types')
    kernel.result(false, data)
  }
  Object.defineProperty(globalThis, 'display', { value: display, writable: true, configurable: true })
}

/** The forms of a value by MIME type, as JSON. */
function describe(value) {
  const text = util.inspect(value, { maxStringLength: Infinity, maxArrayLength: 1000, depth: 4 })
  const forms = [`"text/plain":${stringify(text)}`]
  const prototype = value !== null && typeof value === 'object' && Object.getPrototypeOf(value)
  if (Array.isArray(value) || prototype === null || prototype === Object.prototype) {
    try {
      const json = stringify(value)
      if (json?.length <= MAX_JSON) forms.push(`"application/json":${json}`)
    } catch {} // a cycle, or a value that JSON does not know
  }
  return `{${forms.join(',')}}`
}

/** Keeps what would end a program from ending the kernel. */
function tame(kernel) {
  process.argv = process.argv.slice(0, 1)
  process.execArgv = []
  process.on('SIGINT', () => {}) // it is for what the code has started
  process.exit = (code = process.exitCode) => {
    process.exitCode = undefined
    const left = new Error(`process.exit(${code ?? 0})`)
    left.name = 'ProcessExit'
    left.code = Number(code ?? 0)
    kernel.left = left
    kernel.cancel(left)
    throw left
  }
  // Errors that no code awaits belong to the execution that runs, if any.
  const stray = (error) => {
    if (error !== kernel.left) kernel.fail?.(error)
  }
  process.on('uncaughtException', stray)
  process.on('unhandledRejection', stray)
}

function prepare(kernel, { set = {}, unset = [], call = {}, entropy }) {
  for (const name of unset) delete process.env[name]
  for (const [name, value] of Object.entries(set)) process.env[name] = value
  for (const [name, value] of Object.entries(call)) {
    kernel.undo.push([name, process.env[name]])
    process.env[name] = value
  }
  if (entropy) random.reseed(entropy)
}

function setVariable(name, value) {
  if (value === undefined) delete process.env[name]
  else process.env[name] = value
}
