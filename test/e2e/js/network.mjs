// The addresses that a sandbox may reach, and a secret that it uses, from JavaScript.
// test_injection.py makes the internet and runs this.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { ALL_TRAFFIC, Sandbox, Secret } from 'e2b'

const [first, second] = process.env.ADDRESSES.split(',')
const made = []

async function create(opts) {
  const sbx = await Sandbox.create({ timeoutMs: 300_000, ...opts })
  made.push(sbx)
  return sbx
}

after(() => Promise.all(made.map((sbx) => sbx.kill())))

/** The status of a request, or "closed". */
async function get(sbx, address) {
  const run = await sbx.commands.run(
    `curl -sS -m 60 -o /dev/null -w '%{http_code}' http://${address}/ || echo closed`, { timeoutMs: 90_000 })
  return run.stdout.trim()
}

test('allowOut and denyOut at create, and changed while it runs', async () => {
  const sbx = await create({ network: { allowOut: [first], denyOut: [ALL_TRAFFIC] } })
  assert.deepEqual([await get(sbx, first), await get(sbx, second)], ['200', '403'])
  await sbx.updateNetwork({ denyOut: [`${first}/32`] })
  assert.deepEqual([await get(sbx, first), await get(sbx, second)], ['403', '200'])
  await sbx.updateNetwork({ allowInternetAccess: false })
  assert.deepEqual([await get(sbx, first), await get(sbx, second)], ['403', '403'])
  await sbx.updateNetwork({})
  assert.deepEqual([await get(sbx, first), await get(sbx, second)], ['200', '200'])
  await assert.rejects(sbx.updateNetwork({ allowOut: ['not a domain'] }), /network\.allowOut/)
})

test('the policy is shown', async () => {
  const sbx = await create({ network: { allowOut: [process.env.API, first], denyOut: [ALL_TRAFFIC] } })
  const { network } = await sbx.getInfo()
  assert.deepEqual(network.allowOut, [process.env.API, first])
  assert.deepEqual(network.denyOut, [ALL_TRAFFIC])
})

test('a secret is used and never seen', async () => {
  const rules = { [process.env.API]: [{ transform: { headers: { Authorization: `Bearer ${Secret.fill(process.env.SECRET)}` } } }] }
  const sbx = await create({ network: { rules } })
  const run = await sbx.commands.run(`curl -sS -m 60 -d x https://${process.env.API}/`, { timeoutMs: 90_000 })
  const got = JSON.parse(run.stdout)
  assert.equal(got.digest, process.env.DIGEST)
  assert.match(got.key, /^Bearer \*+$/)
})

test('an identity token is made at egress and never seen', async () => {
  const sbx = await create({
    iam: { tokens: { cloud: Secret.iamToken({ audience: 'sts.example', tokenType: 'JWT-SVID' }) } },
    network: { rules: { [process.env.API]: [{ transform: ({ iam }) => ({ headers: { Authorization: `Bearer ${iam.tokens.cloud}` } }) }] } },
  })
  const run = await sbx.commands.run(`curl -sS -m 60 -d x https://${process.env.API}/`, { timeoutMs: 90_000 })
  const got = JSON.parse(run.stdout)
  const claims = JSON.parse(Buffer.from([...got.backwards].reverse().join('').split('.')[1], 'base64url').toString())
  assert.equal(claims.aud, 'sts.example')
  assert.ok(claims.sub.endsWith(`/sandbox/${sbx.sandboxId}`))
  assert.match(got.key, /^Bearer \*+$/)
})
