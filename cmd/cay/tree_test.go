package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
)

func TestTreeCommands(t *testing.T) {
	moved := `{"sandboxID":"i1","state":"running","checkpoint":{"checkpointID":"s1"},"notice":"without its memory"}`
	environ := stand(t, map[string]string{
		"GET /cay/v1/sandboxes/i1/checkpoints":      `{"root":"i1","checkpoints":[{"checkpointID":"s1","label":"good"}],"branches":[]}`,
		"GET /cay/v1/sandboxes/i2/checkpoints":      `{"root":"i1","checkpoints":[],"branches":[]}`,
		"POST /cay/v1/sandboxes/i1/checkpoints":     `{"checkpointID":"s1"}`,
		"POST /cay/v1/sandboxes/i1/rollback":        moved,
		"POST /cay/v1/sandboxes/i1/undo":            moved,
		"POST /cay/v1/sandboxes/i1/promote":         moved,
		"POST /cay/v1/checkpoints/s1/fork":          `[{"sandbox":{"sandboxID":"i2"}}]`,
		"PATCH /cay/v1/checkpoints/s1":              `{"checkpointID":"s1"}`,
		"DELETE /cay/v1/checkpoints/s1":             ``,
		"PUT /cay/v1/sandboxes/i1/auto-checkpoints": `{"everySeconds":30,"beforeCommands":true,"keep":10}`,
		"GET /cay/v1/sandboxes/i1/auto-checkpoints": `{}`,
		"GET /v2/sandboxes":                         `[{"sandboxID":"i1"}]`,
	})
	for _, tt := range []struct {
		args      string
		ok        bool
		out, errs string
	}{
		{"sandbox checkpoint i1 --label good", true, "s1\n", ""},
		{"sandbox checkpoint i9", false, "", "not found"},
		{"sandbox rollback i1 good", true, "s1\n", "i1: without its memory\n"},
		{"sandbox fork i1 --from good", true, "i2\n", ""},
		{"sandbox promote i2", true, "i1\n", ""},
		{"sandbox label s1 better", true, "s1\n", ""},
		{"sandbox rm-checkpoint s1", true, "s1\n", ""},
		{"sandbox auto-checkpoint i1", true, "never\n", ""},
		{"sandbox auto-checkpoint i1 --every 30s --before-commands", true, "every 30 s and before each command; the newest 10 are kept\n", ""},
		{"sandbox auto-checkpoint i1 --keep 3", false, "", "when?"},
		{"sandbox auto-checkpoint i1 --off --every 3s", false, "", "when?"},
		{"undo i1", true, "s1\n", ""},
		{"undo", true, "s1\n", ""},
		{"undo i9", false, "", "not found"},
	} {
		code, out, errs := invoke(t, environ, strings.Fields(tt.args)...)
		if (code == 0) != tt.ok || out != tt.out || !strings.Contains(errs, tt.errs) {
			t.Errorf("cay %s: %d, %q, %q", tt.args, code, out, errs)
		}
	}
}

func TestDrawTree(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(s int64) time.Time { return time.Unix(1000-s, 0) }
	var out bytes.Buffer
	drawTree(&out, client.Tree{
		Root: "i1",
		Checkpoints: []client.Checkpoint{
			{ID: "s1", Sandbox: "i1", Kind: "memory", Label: "go\x1bod", Size: 12e6, CreatedAt: at(60)},
			{ID: "s2", Sandbox: "i1", Kind: "memory", Parent: "s1", Auto: true, Size: 500, CreatedAt: at(30)},
			{ID: "s3", Sandbox: "i2", Kind: "files", Parent: "s1", Size: 500, CreatedAt: at(20)},
		},
		Branches: []client.TreeBranch{
			{Sandbox: "i1", State: "running", Checkpoint: "s2"},
			{Sandbox: "i2", State: "paused", Checkpoint: "s3"},
			{Sandbox: "i3", State: "running"},
		},
	}, now)
	want := `i1
├─ ○ s1  "go\x1bod"  1m ago  12.0 MB
│  ├─ ○ s2  30s ago  500 B  auto
│  │  └─ ● main i1 (running)
│  └─ ○ s3  20s ago  500 B  files  of i2
│     └─ ● fork i2 (paused)
└─ ● fork i3 (running)
`
	if out.String() != want {
		t.Errorf("drawn as\n%swant\n%s", out.String(), want)
	}
}
