// Randomness that clones of one kernel do not share.
//
// A sandbox's memory is copied with the state of every generator in it. V8's
// gets a new sequence when a clone begins. OpenSSL's cannot be seeded again
// from JavaScript, so what node's crypto hands out comes from the kernel of the
// operating system instead, which is told of each copy.
'use strict'

const fs = require('node:fs')
const { syncBuiltinESMExports } = require('node:module')

/** Puts our sources in place of OpenSSL's, before any code can hold the old. */
exports.install = function install() {
  const crypto = require('node:crypto')
  const device = fs.openSync('/dev/urandom', 'r')
  const fill = (bytes) => {
    for (let n = 0; n < bytes.length;) n += fs.readSync(device, bytes, n, bytes.length - n, null)
    return bytes
  }
  const fresh = (size) => fill(Buffer.allocUnsafe(size))

  // The originals run first: they say what is wrong with the arguments.
  const { randomBytes, randomFillSync, randomInt, randomUUID } = crypto
  crypto.randomBytes = function (size, callback) {
    if (callback === undefined) return fill(randomBytes(size))
    return randomBytes(size, (error, bytes) => (error ? callback(error) : callback(null, fill(bytes))))
  }
  crypto.pseudoRandomBytes = crypto.prng = crypto.rng = crypto.randomBytes
  crypto.randomFillSync = function (buffer, offset, size) {
    randomFillSync(buffer, offset, size)
    const unit = buffer.BYTES_PER_ELEMENT ?? 1
    const begin = (offset ?? 0) * unit
    const length = size === undefined ? buffer.byteLength - begin : size * unit
    fill(new Uint8Array(buffer.buffer ?? buffer, (buffer.byteOffset ?? 0) + begin, length))
    return buffer
  }
  crypto.randomFill = function (buffer, ...rest) {
    const callback = rest.pop()
    if (typeof callback !== 'function') throw new TypeError('The "callback" argument must be of type function')
    crypto.randomFillSync(buffer, ...rest)
    process.nextTick(callback, null, buffer)
  }
  crypto.randomInt = function (min, max, callback) {
    if (max === undefined || typeof max === 'function') [min, max, callback] = [0, min, max]
    randomInt(min, max)
    const value = Number(below(BigInt(max) - BigInt(min), fresh) + BigInt(min))
    if (callback === undefined) return value
    process.nextTick(callback, undefined, value)
  }
  crypto.randomUUID = function (options) {
    randomUUID(options)
    return uuid(fresh(16))
  }
  const web = Object.getPrototypeOf(crypto.webcrypto)
  const { getRandomValues, randomUUID: webUUID } = web
  replace(web, 'getRandomValues', function (array) {
    getRandomValues.call(this, array)
    fill(new Uint8Array(array.buffer, array.byteOffset, array.byteLength))
    return array
  })
  replace(web, 'randomUUID', function () {
    webUUID.call(this)
    return uuid(fresh(16))
  })
  syncBuiltinESMExports()
}

function replace(object, name, value) {
  Object.defineProperty(object, name, { ...Object.getOwnPropertyDescriptor(object, name), value })
}

/** A number below a limit of at most 48 bits, each as likely as another. */
function below(limit, fresh) {
  const all = 1n << 48n
  const even = all - (all % limit)
  for (;;) {
    const drawn = BigInt(fresh(6).readUIntBE(0, 6))
    if (drawn < even) return drawn % limit
  }
}

function uuid(bytes) {
  bytes[6] = (bytes[6] & 0x0f) | 0x40
  bytes[8] = (bytes[8] & 0x3f) | 0x80
  const text = bytes.toString('hex')
  return [text.slice(0, 8), text.slice(8, 12), text.slice(12, 16), text.slice(16, 20), text.slice(20)].join('-')
}

/** Gives Math.random a new sequence: V8's cannot be seeded again. */
exports.reseed = function reseed(entropy) {
  const digest = require('node:crypto').createHash('sha256').update(entropy, 'base64').digest()
  let [a, b, c, d] = [0, 4, 8, 12].map((at) => digest.readUInt32LE(at))
  const next = () => { // the generator sfc32
    const sum = (a + b + d) | 0
    d = (d + 1) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = ((c << 21) | (c >>> 11)) + sum | 0
    return sum >>> 0
  }
  Math.random = function random() {
    return ((next() >>> 6) * 2 ** 27 + (next() >>> 5)) / 2 ** 53
  }
}
