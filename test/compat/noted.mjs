// Stands in for node:test in the end-to-end tests when they run with an SDK of
// another age. A test of a method which that SDK does not have is skipped,
// and the reason says what is missing. Every test's outcome and the methods
// that it called are written to CAY_COMPAT_OUT when the file's tests are over.
import fs from 'node:fs'
import * as runner from 'node:test'

export const { after, before, beforeEach, afterEach } = runner

class Lacks extends Error {}

const outcomes = []
const methods = new Set()
let called = new Set()

const missing = (name) => new Proxy(class extends Error {}, {
  get: (target, key) => {
    if (typeof key === 'symbol' || key in target) return target[key]
    throw new Lacks(`the SDK has no ${name}.${key}`)
  },
  construct: () => { throw new Lacks(`the SDK has no ${name}`) },
  apply: () => { throw new Lacks(`the SDK has no ${name}`) },
})

/** The names of a package: those that are not there yet can be imported, and say so when they are used. */
export const older = (names, label = '') => {
  for (const [name, value] of Object.entries(names)) watch(name, value, label)
  return new Proxy({ ...names }, { get: (target, key) => (key in target ? target[key] : missing(String(key))) })
}

const watched = new Set()

function watch(name, value, label) {
  if (typeof value !== 'function' || watched.has(value) || value.prototype instanceof Error || !/^[A-Z]/.test(name)) return
  watched.add(value)
  for (const owner of [value, value.prototype]) {
    for (const key of owner ? Object.getOwnPropertyNames(owner) : []) {
      const property = Object.getOwnPropertyDescriptor(owner, key)
      if (key === 'constructor' || key.startsWith('_') || typeof property.value !== 'function' || !property.writable) continue
      if (/^class\b/.test(String(property.value))) continue
      const full = `${label}${value.name || name}.${key}`
      methods.add(full)
      const plain = property.value
      Object.defineProperty(owner, key, { ...property, value: Object.assign(function (...args) {
        called.add(full)
        return plain.apply(this, args)
      }, plain) })
    }
  }
}

const newer = (error) => {
  if (error instanceof Lacks) return error.message
  const found = error instanceof TypeError && /(?:^|\.)(\w+) is not a (?:function|constructor)/.exec(error.message)
  return found ? `the SDK has no ${found[1]}` : undefined
}

export function test(name, ...rest) {
  const body = rest.pop()
  return runner.test(name, ...rest, async (t) => {
    called = new Set()
    const one = { name, outcome: 'passed', reason: '' }
    outcomes.push(one)
    try {
      await body(t)
    } catch (error) {
      const reason = newer(error)
      one.outcome = reason ? 'skipped' : 'failed'
      one.reason = (reason ?? `${error.name}: ${error.message}`).split('\n').slice(0, 12).join(' ').slice(0, 300)
      if (!reason) throw error
      t.skip(reason)
    } finally {
      one.called = [...called].sort()
    }
  })
}

export default test
export const it = test

process.on('exit', () => {
  const out = `${process.env.CAY_COMPAT_OUT}/${process.argv[1].split('/').pop()}.json`
  fs.writeFileSync(out, JSON.stringify({ methods: [...methods].sort(), tests: outcomes }))
})
