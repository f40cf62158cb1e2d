package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/edge/mcp"
)

type mcpCmd struct {
	Print string `enum:",claude,cursor,vscode,codex" default:"" placeholder:"CLIENT" help:"Print the lines that connect a client, and end: claude, cursor, vscode or codex."`
	Name  string `help:"Name of the client: each has a default sandbox of its own."`
}

// Help says what it is for.
func (mcpCmd) Help() string {
	return "Speaks the Model Context Protocol on standard input and output, for clients that start programs. " +
		"Others use the server's own address, which --print puts into their settings."
}

func (c *mcpCmd) Run(a *app) error {
	if c.Print != "" {
		api, err := a.clientWith(client.Config{APIKey: "none: it only has to say where the server is"})
		if err != nil {
			return err
		}
		return printMCP(a.out, c.Print, api.URL()+mcp.Path)
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	b := &mcp.Bridge{URL: api.URL() + mcp.Path, HTTP: api.HTTP(), Name: c.Name, Version: cay.Version}
	return b.Run(a.ctx, mcp.Stdio(a.in, a.out))
}

// printMCP prints what connects a client to a server. No key is in it: clients read
// it from E2B_API_KEY, or ask for it.
func printMCP(w io.Writer, reader, url string) error {
	object := func(note string, v any) error {
		text, err := json.MarshalIndent(v, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n%s\n", note, text)
		}
		return err
	}
	type one = map[string]any
	var err error
	switch reader {
	case "claude":
		_, err = fmt.Fprintf(w, "# in a shell where E2B_API_KEY is set\nclaude mcp add --transport http cay %s --header \"Authorization: Bearer $E2B_API_KEY\" --header \"%s: claude\"\n", url, mcp.NameHeader)
	case "cursor":
		err = object("// .cursor/mcp.json, in an environment where E2B_API_KEY is set", one{"mcpServers": one{"cay": one{
			"url": url, "headers": one{"Authorization": "Bearer ${env:E2B_API_KEY}", mcp.NameHeader: "cursor"},
		}}})
	case "vscode":
		err = object("// .vscode/mcp.json", one{
			"inputs": []one{{"type": "promptString", "id": "cay-key", "description": "API key of Cay", "password": true}},
			"servers": one{"cay": one{
				"type": "http", "url": url, "headers": one{"Authorization": "Bearer ${input:cay-key}", mcp.NameHeader: "vscode"},
			}},
		})
	case "codex":
		_, err = fmt.Fprintf(w, "# ~/.codex/config.toml, in an environment where E2B_API_KEY is set\n[mcp_servers.cay]\nurl = %q\nbearer_token_env_var = \"E2B_API_KEY\"\nhttp_headers = { %q = \"codex\" }\n", url, mcp.NameHeader)
	}
	return err
}
