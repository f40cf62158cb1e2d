(() => {
  const fs = require('fs')
  const token = process.env.CAY_TOKEN
  delete process.env.CAY_TOKEN
  delete process.env.CAY_RUNNER
  globalThis.console = new console.Console(process.stderr) // what the program prints
  let kept = Buffer.alloc(0)
  const pause = new Int32Array(new SharedArrayBuffer(4))
  const line = () => {
    for (;;) {
      const end = kept.indexOf(10)
      if (end >= 0) {
        const text = kept.subarray(0, end).toString()
        kept = kept.subarray(end + 1)
        return text
      }
      const piece = Buffer.alloc(65536)
      let n
      try {
        n = fs.readSync(0, piece, 0, piece.length, null)
      } catch (e) {
        if (e.code !== 'EAGAIN') throw e
        Atomics.wait(pause, 0, 0, 5)
        continue
      }
      if (n === 0) throw new CayError(0, undefined, 'the server is gone')
      kept = Buffer.concat([kept, piece.subarray(0, n)])
    }
  }
  class CayError extends Error {
    constructor(status, code, message) {
      super([status, code, message].filter(Boolean).join(' '))
      Object.assign(this, { name: 'CayError', status, code })
    }
  }
  const cay = {
    call(method, path, body, query) {
      fs.writeSync(1, token + JSON.stringify({ method, path, body, query }) + '\n')
      const answer = JSON.parse(line())
      const said = answer.body ?? answer.text
      if (answer.status >= 400) throw new CayError(answer.status, said?.error_code, said?.message ?? said)
      return said
    },
    get: (path, query) => cay.call('GET', path, undefined, query),
    post: (path, body) => cay.call('POST', path, body),
    put: (path, body) => cay.call('PUT', path, body),
    patch: (path, body) => cay.call('PATCH', path, body),
    delete: (path, body) => cay.call('DELETE', path, body),
  }
  const { code } = JSON.parse(line())
  const Program = Object.getPrototypeOf(async () => {}).constructor
  new Program('cay', 'CayError', 'require', code)(cay, CayError, require).catch((e) => {
    console.error(e?.stack ?? e)
    process.exitCode = 1
  })
})()
