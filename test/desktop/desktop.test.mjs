// The JavaScript Desktop SDK, unmodified, on one desktop.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox } from '@e2b/desktop'

/** Calls until the result is true; a command that fails is not true yet. */
async function eventually(probe, seconds = 120) {
  for (const deadline = Date.now() + seconds * 1000; ; await sleep(200)) {
    let result
    try {
      result = await probe()
    } catch (error) {
      if (error.exitCode === undefined) throw error
      result = undefined
    }
    if (result) return result
    assert.ok(Date.now() < deadline, `not true after ${seconds} s: ${probe}`)
  }
}

test('a desktop', async () => {
  const desktop = await Sandbox.create({ resolution: [1152, 720], timeoutMs: 900_000 })
  try {
    assert.deepEqual(await desktop.getScreenSize(), { width: 1152, height: 720 })
    const png = Buffer.from(await desktop.screenshot())
    assert.equal(png.readUInt32BE(16), 1152)
    assert.equal(png.readUInt32BE(20), 720)
    await desktop.moveMouse(77, 88)
    assert.deepEqual(await desktop.getCursorPosition(), { x: 77, y: 88 })
    await desktop.launch('xfce4-terminal')
    const [id] = await eventually(async () => (await desktop.getApplicationWindows('xfce4-terminal')).filter(Boolean))
    await eventually(async () => {
      await desktop.commands.run(`xdotool windowactivate ${id}`)
      return (await desktop.getCurrentWindowId()) === id
    })
    assert.match(await desktop.getWindowTitle(id), /Terminal/)
    await desktop.write("echo 'typed in JavaScript' > /tmp/typed")
    await desktop.press('enter')
    await eventually(async () => (await desktop.files.exists('/tmp/typed')) && (await desktop.files.read('/tmp/typed')) === 'typed in JavaScript\n')
    await desktop.stream.start({ requireAuth: true })
    const url = new URL(desktop.stream.getUrl({ authKey: await desktop.stream.getAuthKey() }))
    assert.ok(url.hostname.startsWith(`6080-${desktop.sandboxId}.`))
    const page = await fetch(`${process.env.E2B_API_URL}/vnc.html`, {
      headers: { 'E2b-Sandbox-Id': desktop.sandboxId, 'E2b-Sandbox-Port': '6080' },
    })
    assert.equal(page.status, 200)
    assert.match(await page.text(), /noVNC/)
    await desktop.stream.stop()
  } finally {
    await desktop.kill()
  }
})
