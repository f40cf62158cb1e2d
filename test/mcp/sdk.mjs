// The TypeScript SDK of the Model Context Protocol, over HTTP and standard streams.
import assert from "node:assert/strict"
import { Client } from "@modelcontextprotocol/sdk/client/index.js"
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js"
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js"

const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(process.env.CAY_MCP_URL), {
    requestInit: { headers: { Authorization: `Bearer ${process.env.E2B_API_KEY}` } },
  }),
  stdio: () => new StdioClientTransport({ command: process.env.CAY, args: ["mcp"], env: process.env }),
}

const client = new Client({ name: "typescript-sdk", version: "1" })
await client.connect(transports[process.argv[2]]())
const names = (await client.listTools()).tools.map((tool) => tool.name)
assert.ok(names.includes("run_code") && names.includes("rollback"))
const result = await client.callTool({ name: "run_code", arguments: { code: "print('from TypeScript'); 6 * 7" } })
assert.equal(result.content[0].text, "from TypeScript\n42\n")
assert.deepEqual(result.structuredContent.results, ["42"])
const wrong = await client.callTool({ name: "run_code", arguments: {} })
assert.ok(wrong.isError)
await client.close()
