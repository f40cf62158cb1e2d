// The shared sandboxes of one test file, made on first use and killed after.
import { after } from 'node:test'
import { Sandbox } from 'e2b'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'

const made = new Map()

function shared(name, make) {
  if (!made.has(name)) made.set(name, make())
  return made.get(name)
}

/** One sandbox of the template base. */
export const sandbox = () => shared('base', () => Sandbox.create({ timeoutMs: 900_000 }))

const called = new Map()

const methodsOf = (proto) => Object.getOwnPropertyNames(proto).filter((name) =>
  name !== 'constructor' && typeof Object.getOwnPropertyDescriptor(proto, name).value === 'function')

/** Has every call of a method of these classes noted. */
export function watch(...classes) {
  for (const { prototype } of classes) {
    if (called.has(prototype)) continue
    const names = new Set()
    called.set(prototype, names)
    for (const name of methodsOf(prototype)) {
      const method = prototype[name]
      prototype[name] = function (...args) {
        names.add(name)
        return method.apply(this, args)
      }
    }
  }
}

/** The methods of these classes that no test called. */
export const uncalled = (...classes) => classes.flatMap(({ name, prototype }) =>
  methodsOf(prototype).filter((method) => !called.get(prototype).has(method)).map((method) => `${name}.${method}`))

/** One code interpreter. */
export const interpreter = () => shared('interpreter', () => Interpreter.create({ timeoutMs: 900_000 }))

/** Calls probe until it is true; throws after a generous deadline. */
export async function eventually(probe, ms = 60_000) {
  const deadline = Date.now() + ms
  for (;;) {
    const result = await probe()
    if (result) return result
    if (Date.now() > deadline) throw new Error(`not true after ${ms} ms: ${probe}`)
    await new Promise((done) => setTimeout(done, 100))
  }
}

after(async () => {
  for (const sandbox of made.values()) await (await sandbox).kill()
})
