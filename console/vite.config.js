import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'
import { gzipSync } from 'node:zlib'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

// gzip puts a packed copy beside each file that the server hands out.
function gzip(dir) {
  return {
    name: 'gzip',
    writeBundle() {
      for (const name of readdirSync(dir, { recursive: true })) {
        if (/\.(js|css|html|svg)$/.test(name)) writeFileSync(join(dir, name + '.gz'), gzipSync(readFileSync(join(dir, name)), { level: 9 }))
      }
    },
  }
}

const out = process.env.CAY_CONSOLE_OUT || '../build/console'

export default defineConfig({
  plugins: [svelte({ compilerOptions: { modernAst: true } }), gzip(out)],
  build: { outDir: out, emptyOutDir: true, target: 'es2022', assetsInlineLimit: 0, modulePreload: { polyfill: false }, reportCompressedSize: false },
})
