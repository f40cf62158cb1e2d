"""The Python SDK of the Model Context Protocol, over HTTP and standard streams."""

import asyncio
import json
import os
import sys

import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


async def use(session):
    await session.initialize()
    names = {tool.name for tool in (await session.list_tools()).tools}
    assert {"run_code", "execute_command", "rollback"} <= names, names
    result = await session.call_tool("run_code", {"code": "print('from Python'); 6 * 7"})
    text = "".join(part.text for part in result.content)
    assert text == "from Python\n42\n", text
    wrong = await session.call_tool("run_code", {"code": 7})
    assert wrong.is_error, wrong


async def over_http():
    headers = json.loads(os.environ.get("CAY_MCP_HEADERS", "{}")) or {"Authorization": f"Bearer {os.environ['E2B_API_KEY']}"}
    client = create_mcp_http_client(headers=headers)
    async with streamable_http_client(os.environ["CAY_MCP_URL"], http_client=client) as streams:
        async with mcp.ClientSession(*streams[:2]) as session:
            await use(session)


async def over_stdio():
    parameters = StdioServerParameters(command=os.environ["CAY"], args=["mcp"], env=dict(os.environ))
    async with stdio_client(parameters) as streams:
        async with mcp.ClientSession(*streams) as session:
            await use(session)


asyncio.run({"http": over_http, "stdio": over_stdio}[sys.argv[1]]())
